"""Pods over time: who they are (M6), whether they are still there (H1), and what they asked for (H2)."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from chargeback.inventory import resource_class
from chargeback.tables import Bools, Ints, Key, Timeline, times

Pod = tuple[str, str, str]
NO_POD: Pod = ("", "", "")
_NEVER = 2**40


class PodHistory:
    """What kube-state-metrics knew of pods in the evidence of a period; windows are numbered from the epoch."""

    def __init__(self, tables: dict[str, pa.Table], w: int, low: int, high: int) -> None:
        pods = tables["pods"]
        self.pods: list[Pod] = sorted({*_pods(pods), *_pods(tables["ended"])})
        self._code = {p: i for i, p in enumerate(self.pods)}
        about = zip(
            _pods(pods), pods["workload_kind"].to_pylist(), pods["workload"].to_pylist(),
            pods["node"].to_pylist(), strict=True,
        )  # fmt: skip
        self.workloads: dict[Pod, tuple[str, str]] = {}
        for pod, kind, name, _ in about:
            if kind or pod not in self.workloads:
                self.workloads[pod] = (kind, name)
        code = np.array([self._code[p] for p in _pods(pods)], np.int64)
        self._first, self._last = times(pods["first"]) // w, times(pods["last"]) // w
        self._listed = Timeline(code, self._first)
        self._began = np.full(len(self.pods), _NEVER, np.int64)
        np.minimum.at(self._began, code, self._first)
        self._ended = np.full(len(self.pods), _NEVER, np.int64)
        for pod, first in zip(_pods(tables["ended"]), (times(tables["ended"]["first"]) // w).tolist(), strict=True):
            self._ended[self._code[pod]] = min(self._ended[self._code[pod]], first)
        self._low = low
        reports = np.zeros(high - low, bool)
        spans = tables["reporting"]
        for a, b in zip((times(spans["first"]) // w).tolist(), (times(spans["last"]) // w).tolist(), strict=True):
            reports[max(a - low, 0) : max(b - low + 1, 0)] = True
        self._last_report = np.maximum.accumulate(np.where(reports, np.arange(reports.size), -1)) + low
        self._last_report[self._last_report < low] = -1
        self._by_name: dict[tuple[str, str], list[int]] = {}
        for i, p in enumerate(self.pods):
            self._by_name.setdefault(p[:2], []).append(i)

    def known(self, pod: Pod) -> int:
        """A pod's place in `pods`, or -1."""
        return self._code.get(pod, -1)

    def identify(self, names: list[Pod], code: Ints, window: Ints) -> tuple[Ints, list[Pod]]:
        """M6: rows (a code in `names`, a window) as codes in a list of identified pods, sorted.

        A row without uid is the pod of that name that was last listed up to the window, else the first one.
        """
        candidates = [self._by_name.get(p[:2], []) if not p[2] else [] for p in names]
        single = [self.pods[c[0]] if len(c) == 1 else p for p, c in zip(names, candidates, strict=True)]
        several = {i: c for i, c in enumerate(candidates) if len(c) > 1}
        extra = {self.pods[j] for c in several.values() for j in c}
        pods = sorted({*single, *extra})
        place = {p: i for i, p in enumerate(pods)}
        table = np.array([place[p] for p in single], np.int64)
        out = table[code] if code.size else code
        if several:
            keys = [(i, j) for i, c in several.items() for j in c]
            line = Timeline(
                np.array([i for i, _ in keys], np.int64), np.array([self._began[j] for _, j in keys], np.int64)
            )
            rows = np.flatnonzero(np.isin(code, list(several)))
            found = line.at(code[rows], window[rows], else_first=True)
            out = out.copy()
            out[rows] = np.array([place[self.pods[j]] for _, j in keys], np.int64)[found]
        return out, pods

    def gone(self, pods: list[Pod], code: Ints, window: Ints) -> Bools:
        """H1: whether each (pod, window) has succeeded, failed, or is no longer listed while its cluster reports."""
        mine = np.array([self._code.get(p, -1) for p in pods] or [-1], np.int64)[code] if code.size else code
        known = mine >= 0
        mine = np.where(known, mine, 0)
        if not len(self.pods):
            return np.zeros(code.size, bool)
        report = self._last_report[np.clip(window - self._low, 0, self._last_report.size - 1)]
        row = self._listed.at(mine, report)
        unlisted = (row >= 0) & (self._last[row] < report)
        return known & ((window >= self._ended[mine]) | unlisted)

    def last_report(self, window: Ints) -> Ints:
        """The last window up to each in which kube-state-metrics reported, -1 before any."""
        return self._last_report[np.clip(window - self._low, 0, self._last_report.size - 1)]


@dataclass(frozen=True)
class Requests:
    """What pods asked for, by window: rows (pod, node, class of device, quantity) in stretches of windows."""

    pod: list[Pod]
    node: list[str]
    kind: list[str]
    quantity: Ints
    first: Ints
    last: Ints

    @classmethod
    def read(cls, table: pa.Table, w: int) -> "Requests":
        """From rows of `schemas.REQUESTS` and the length of a window in ms."""
        return cls(
            _pods(table), table["node"].to_pylist(), [resource_class(r) for r in table["resource"].to_pylist()],
            np.array(table["quantity"].to_pylist(), np.int64), times(table["first"]) // w, times(table["last"]) // w,
        )  # fmt: skip

    def between(self, low: int, high: int) -> "Requests":
        """Those in force at any report of the windows from `low` to `high`."""
        kept = np.flatnonzero((self.first <= high) & (self.last >= low))
        at = kept.tolist()
        return Requests(
            [self.pod[i] for i in at], [self.node[i] for i in at], [self.kind[i] for i in at],
            self.quantity[kept], self.first[kept], self.last[kept],
        )  # fmt: skip

    def rows(self, windows: Ints, report: Ints) -> tuple[Ints, Ints]:
        """(row, window) of every request in force; while nothing is reported, what was last reported stands."""
        low = np.searchsorted(report, self.first)
        high = np.searchsorted(report, self.last, side="right")
        count = np.maximum(high - low, 0)
        row = np.repeat(np.arange(count.size), count)
        ends = np.cumsum(count)
        offset = np.arange(row.size) - np.repeat(ends - count, count)
        return row, windows[np.repeat(low, count) + offset]


def _pods(table: pa.Table) -> list[Pod]:
    columns = (table[c].to_pylist() for c in ("namespace", "pod", "pod_uid"))
    return list(zip(*columns, strict=True))


__all__ = ["NO_POD", "Key", "Pod", "PodHistory", "Requests"]
