"""Pod -> team over time (T1, T2), and the extra columns that labels give (dimensions)."""

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa

from chargeback.config import Config, OwnershipRule
from chargeback.evidence.kube import sanitized
from chargeback.period import to_ms, zone_of
from chargeback.pods import NO_POD, Pod
from chargeback.problems import Problem, Problems
from chargeback.tables import Ints, Timeline, times

Parts = tuple[tuple[str, int], ...]
"""Teams with their parts in millionths of a percent: one team has all 100 * 10^6."""
WHOLE = 100 * 10**6
Event = tuple[int, int, int, str]
"""Labels seen from a window to another, the time in ms up to which, and the labels as JSON."""
_EVER = 2**62


@dataclass(frozen=True)
class Owner:
    """Who pays, and the dimension columns, for a pod in some stretch of time."""

    parts: Parts
    dimensions: tuple[str, ...]


class Owners:
    """Look-up of `Owner`s: `rows(pods, code, window)` gives places in `owners`."""

    def __init__(self, labels: pa.Table, config: Config, w: int) -> None:
        self._config, self._w, self._problems = config, w, Problems()
        self.owners: list[Owner] = []
        self._place: dict[Owner, int] = {}
        zone = zone_of(config.timezone)
        self._rules = [
            (to_ms(r.since, zone) if r.since else -_EVER, to_ms(r.until, zone) if r.until else _EVER, r)
            for r in config.ownership.rules
        ]
        events: dict[Pod, list[Event]] = {}
        columns = [labels[c].to_pylist() for c in ("namespace", "pod", "pod_uid", "labels")]
        firsts, lasts = times(labels["first"]) // w, times(labels["last"])
        for ns, name, uid, text, first, last in zip(*columns, firsts.tolist(), lasts.tolist(), strict=True):
            events.setdefault((ns, name, uid), []).append((first, last // w, last, text))
        self._events = {pod: _joined(sorted(found)) for pod, found in events.items()}
        self._known: dict[Pod, tuple[list[tuple[int, int]], list[Problem]]] = {}
        self._label = sanitized(config.ownership.team_label)
        self._dimensions = [sanitized(label) for _, label in sorted(config.dimensions.items())]
        self._names: dict[tuple[str, str], list[Pod]] = {}
        for pod in self._events:
            self._names.setdefault(pod[:2], []).append(pod)

    @cached_property
    def _edges(self) -> list[int]:
        """Windows at whose start the rules in force change: a rule counts from the first window that starts in it."""
        moments = {m for since, until, _ in self._rules for m in (since, until) if abs(m) < _EVER}
        return sorted(-(-m // self._w) for m in moments)

    def rows(self, pods: Sequence[Pod], code: Ints, window: Ints, problems: Problems) -> Ints:
        """For rows (code of a pod in `pods`, window) the place of the owner in `owners`; what is odd goes to
        `problems`.
        """
        for pod in pods:
            if pod not in self._known:
                self._problems = Problems()
                self._known[pod] = (self._segments(pod), self._problems.sorted())
            problems.extend(self._known[pod][1])
        keys, windows, owners = [], [], []
        for i, pod in enumerate(pods):
            for start, owner in self._known[pod][0]:
                keys.append(i)
                windows.append(start)
                owners.append(owner)
        line = Timeline(np.array(keys, np.int64), np.array(windows, np.int64))
        return np.array(owners, np.int64)[line.at(code, window, else_first=True)] if code.size else code

    def _segments(self, pod: Pod) -> list[tuple[int, int]]:
        """(first window, owner) stretches of a pod; the first one holds from the beginning of time."""
        if pod == NO_POD:
            return [(0, self._intern(self._one(self._config.ownership.platform), ("",) * len(self._config.dimensions)))]
        mine = self._events.get(pod) or next(
            (self._events[p] for p in self._names.get(pod[:2], []) if not p[2] or not pod[2]), []
        )
        space = self._events.get((pod[0], "", ""), [])
        marks = sorted({0, *(m for e in (*mine, *space) for m in (e[0], e[1] + 1)), *self._edges})
        out: list[tuple[int, int]] = []
        for mark in marks:
            owner = self._owner(pod, _at(mine, mark), _at(space, mark), mark * self._w)
            if not out or out[-1][1] != owner:
                out.append((mark, owner))
        return out

    def _owner(self, pod: Pod, own: dict[str, str], space: dict[str, str], start: int) -> int:
        o = self._config.ownership
        parts: Parts | None = None
        for place in o.order:
            if place == "rules":
                parts = self._by_rule(pod, own, start)
            else:
                parts = self._by_label(pod, own if place == "pod" else space)
            if parts:
                break
        dimensions = tuple(own.get(n) or space.get(n, "") for n in self._dimensions)
        return self._intern(parts or self._one(o.default), dimensions)

    def _by_rule(self, pod: Pod, own: dict[str, str], start: int) -> Parts | None:
        for since, until, rule in self._rules:
            if since <= start < until and _matches(rule, pod[0], own):
                if rule.team is not None:
                    return self._one(rule.team)
                assert rule.split is not None
                merged: dict[str, Decimal] = {}
                for team, percent in rule.split.items():
                    merged[team.strip()] = merged.get(team.strip(), Decimal(0)) + percent
                return tuple((team, int(percent * 10**6)) for team, percent in sorted(merged.items()))
        return None

    def _by_label(self, pod: Pod, labels: dict[str, str]) -> Parts | None:
        name = self._label
        clashing = {v for n, v in labels.items() if n.startswith(f"{name}_conflict") and v}
        shown = "/".join(pod[:2])
        if len(clashing) > 1:
            both = ", ".join(sorted(clashing))
            self._problems.add(
                "ownership-conflict", shown,
                f"two labels become {name} and disagree ({both}); the default team pays",
            )  # fmt: skip
            return self._one(self._config.ownership.default)
        team = (labels.get(name) or next(iter(clashing), "")).strip()
        if not team:
            return None
        if self._config.teams and team not in self._config.teams:
            self._problems.add(
                "unknown-team", shown, f"label names team {team!r}, which `teams` does not list; the default team pays"
            )
            return self._one(self._config.ownership.default)
        return self._one(team)

    def _one(self, team: str) -> Parts:
        return ((team.strip(), WHOLE),)

    def _intern(self, parts: Parts, dimensions: tuple[str, ...]) -> int:
        owner = Owner(parts, dimensions)
        if owner not in self._place:
            self._place[owner] = len(self.owners)
            self.owners.append(owner)
        return self._place[owner]


def _joined(events: list[Event]) -> list[Event]:
    """Stretches of one set of labels that follow one another without a window between them as one."""
    out: list[Event] = []
    for event in events:
        if out and out[-1][3] == event[3] and event[0] <= out[-1][1] + 1:
            first, last, ms, text = out[-1]
            out[-1] = (first, max(last, event[1]), max(ms, event[2]), text)
        else:
            out.append(event)
    return out


def _at(events: list[Event], window: int) -> dict[str, str]:
    """The labels last seen up to a window's end; of those first seen in one window, the one that stayed longer."""
    found = [(min(last, window), first, ms, text) for first, last, ms, text in events if first <= window]
    return dict(json.loads(max(found)[3])) if found else {}


def _matches(rule: OwnershipRule, namespace: str, labels: dict[str, str]) -> bool:
    return fnmatch.fnmatchcase(namespace, rule.match.namespace) and all(
        labels.get(sanitized(n)) == v for n, v in rule.match.labels.items()
    )


def report_alike(teams: Sequence[str], problems: Problems) -> None:
    """T2: names that differ only in case are two teams, and reported."""
    by_folded: dict[str, list[str]] = {}
    for team in sorted(set(teams)):
        by_folded.setdefault(team.casefold(), []).append(team)
    for names in by_folded.values():
        if len(names) > 1:
            problems.add(
                "team-names-alike", ", ".join(names), "names that differ only in case are billed as different teams"
            )
