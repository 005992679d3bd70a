"""The accounting model once more: slow, plain and exact, written from the numbered rules alone.

Everything is a `Fraction`; windows, devices and pods are walked in simple loops. Each function names its rule.

    python -m tests.reference.model CASE_FOLDER...

prints what a case's samples come to and compares that with its expected.csv. Not covered: bills (P5), hosts apart
(C4 other than `include`), `mig.weight: price` (D3), spot series (P3), other currencies (P4), handing on (T3), R and L.

Where the rules leave room, this is how they are read here:

- Evidence is what lies in [start - max_gap, end + max_gap); nothing before or after is looked at, labels neither.
- W3: distances are those between an exporter's distinct sample times on a node, in each replica; ties: the shorter.
- C1: a gap is the distance between two sample times. Samples of GPU exporters at device level and of processes both
  show a node alive. The provider id of a side is the last known before the gap, the first known after it.
- C2, C5, H5: node labels are those last seen up to the window's end; before the first, the first.
- C5: "at once" means at one sample time, over one life of the node; "those seen" means that too. Should more GPUs
  report in one window than there is room for, there are so many in that window. Of the silent ones, those that
  reported last come first, ties by UUID. Nothing is carried from one life of a node into the next.
- D2: all instances that report in a window are its layout, also when the layout changes inside it (then scaled).
- D4: the capacity is mean used + mean free; with an exported total, mean total - mean reserved.
- M1: "the whole period" is all the evidence.
- M1: a device's samples are the distinct times at which any usable device-level row of it was read. Where nothing
  reports at device level, the fullest process series of the whole node stands in.
- M3: the device's total is the median of its used + free + reserved, else the book's.
- M5: an exporter "reports" processes on a device in a window if it has one usable row there, a system pod's too.
  Pod rows of dcgm-exporter that are all 0 in a window while the device row is not are no process data.
- M6, H1: whether a pod has ended is asked window by window: if kube-state-metrics was read in the window and no sample
  of it there shows the pod bound and unfinished, though one did before, then all its rows in the window are stale.
  Where it was not read, what it said last stands. A pod that it has not listed yet has not ended.
- M6: a name without a uid means the pod of that name that was listed last before the sample, else first after it.
- H2: a label without slot rows counts as one slot. Slots held on silent, carried devices count as well. Where no
  slot is free, the rest of a request holds nothing. Instances of one GPU go by the number of their id.
- H2: `nvidia_com_gpu` and `nvidia_com_gpu_shared` mean whole GPUs, and MIG instances where the strategy is `single`.
- H5: a request is spread evenly over the devices of its resource that the pod holds, in fractions of a slot.
- H3: a pod "uses" a device if it has memory there. Memory that falls to a single pod is not `estimated`.
- S3, G3: under `request` no `used` charge comes from memory, so none is `estimated` by H3; under `max` those are whose
  part by memory is the larger one.
- S4: memory of 0 makes no consumer.
- G1: without the pods that are gone, a device's slots are the replicas label's, never fewer than the slots still held.
- G2: memory that stands in for a pod that has ended by now is left out. All charges of the node's reporting devices
  are `estimated`, an `unpartitioned` part is not. Nothing stands in where processes explained nothing.
- T1: the row last seen counts whole: one without the label means no label. A label not yet seen does not count.
"""

from __future__ import annotations

import bisect
import csv
import gzip
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml

MIB = 2**20
NANO = 10**9
TOLERANCE = Fraction(2, 1_000_000)
SYSTEM_PODS = (
    "*/*dcgm-exporter*",
    "*/nvidia-device-plugin*",
    "*/nvidia-mps-*",
    "*/mps-control-daemon*",
    "*/*gpu-feature-discovery*",
    "*/hami-device-plugin*",
    "*/nvidia-gpu-exporter*",
    "*/nvitop-exporter*",
)
UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# MIG: what a GPU's model name contains (the first that fits), its profiles (1g, 1g double, 2g, 3g, 4g, 7g), slices.
MIG_CARDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("A100", "40GB"), "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
    (("A100", "80GB"), "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    (("H100", "80GB"), "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
    (("H100", "NVL"), "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
    (("GH200", "144"), "1g.18gb 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb"),
    (("GH200",), "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
    (("H200",), "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
    (("H100", "96"), "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
    (("H20",), "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
    (("GB200",), "1g.23gb 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"),
    (("GB300",), "1g.35gb 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb"),
    (("B200",), "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
    (("B300",), "1g.34gb 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb"),
)
MIG_SLICES = ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8))
A30_SLICES = {"1g.6gb": 1, "2g.12gb": 2, "4g.24gb": 4}


class MissingPriceError(Exception):
    """C2: a missing price is never zero."""


# ---------------------------------------------------------------------------------------------------------------------
# What is read


@dataclass(frozen=True)
class Pod:
    """M6: a pod, known by its uid, else by its name."""

    namespace: str
    name: str
    uid: str = ""


class _System:
    """Owner of memory that explains nothing (M6)."""


SYSTEM = _System()
Owner = Pod | None  # None: the platform team, pod left empty
Device = tuple[str, str]  # GPU UUID, GPU instance id ("" for a whole GPU)


@dataclass
class Series:
    metric: str
    labels: dict[str, str]
    samples: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Row:
    """One sample of a GPU exporter; `value` is None where it was dropped (M3)."""

    time: int
    device: Device
    metric: str
    value: Fraction | None
    owner: Owner | _System
    slot: str
    series: int
    replica: str
    profile: str = ""


@dataclass
class Config:
    window: int
    max_gap: int
    zone: ZoneInfo
    replica_label: str
    system_pods: tuple[str, ...]
    basis: str
    idle: str
    weight: str
    order: tuple[str, ...]
    team_label: str
    default_team: str
    platform: str
    rules: list[dict[str, Any]]
    teams: set[str]
    default_option: str
    nodes: list[dict[str, Any]]
    interval: int | None
    cluster: str

    @staticmethod
    def read(raw: dict[str, Any]) -> Config:
        allocation = raw.get("allocation") or {}
        ownership = raw.get("ownership") or {}
        pricing = raw.get("pricing") or {}
        if pricing.get("host", "include") != "include":
            raise NotImplementedError("C4")
        interval = raw.get("scrape_interval", "auto")
        return Config(
            window=duration(raw.get("window", "5m")),
            max_gap=duration(raw.get("max_gap", "1h")),
            zone=ZoneInfo(raw.get("timezone", "UTC")),
            replica_label=(raw.get("source") or {}).get("replica_label") or "",
            system_pods=tuple(raw.get("system_pods", SYSTEM_PODS)),
            basis=allocation.get("basis", "memory"),
            idle=allocation.get("idle", "holders"),
            weight=(raw.get("mig") or {}).get("weight", "memory"),
            order=tuple(ownership.get("order", ("rules", "pod", "namespace"))),
            team_label=ownership.get("team_label", "team"),
            default_team=ownership.get("default", "unowned").strip(),
            platform=ownership.get("platform", "platform").strip(),
            rules=list(ownership.get("rules") or []),
            teams={str(t).strip() for t in raw.get("teams") or {}},
            default_option=pricing.get("default_purchase_option", "on-demand"),
            nodes=list(raw.get("nodes") or []),
            interval=None if interval == "auto" else duration(interval),
            cluster=str(raw.get("cluster", "")),
        )


def duration(text: Any) -> int:
    """Milliseconds of `5m`, `300s`, `1h`, `1h30m`."""
    parts = re.findall(r"(\d+)([smhd])", str(text))
    if not parts or "".join(a + b for a, b in parts) != str(text):
        raise ValueError(f"no duration: {text}")
    return sum(int(number) * UNITS[unit] for number, unit in parts)


def instant(value: Any, zone: ZoneInfo) -> int:
    """Milliseconds of an instant; bare dates are midnights in the configured time zone (W3)."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - the zone follows
    if value.tzinfo is None:
        value = value.replace(tzinfo=zone)
    since: timedelta = value - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(milliseconds=1)


LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
UNESCAPE = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def series_of(text: str) -> list[Series]:
    """All series of an OpenMetrics text."""
    found: dict[str, Series] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        key, value, time = line.rsplit(" ", 2)
        series = found.get(key)
        if series is None:
            metric, _, rest = key.partition("{")
            labels = {k: re.sub(r"\\.", lambda m: UNESCAPE.get(m[0], m[0]), v) for k, v in LABEL.findall(rest)}
            series = found[key] = Series(metric, labels)
        series.samples.append((int(Decimal(time) * 1000), value))
    for series in found.values():
        series.samples.sort(key=lambda s: s[0])
    return list(found.values())


def text_of(source: Path | str, config: dict[str, Any]) -> str:
    """The samples' text: of a case's folder, of a file, or as it is given."""
    if isinstance(source, str):
        return source
    path = source / str(config["source"]["openmetrics"]) if source.is_dir() else source
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


# ---------------------------------------------------------------------------------------------------------------------
# kube-state-metrics


@dataclass
class Request:
    time: int
    container: str
    init: bool
    resource: str
    value: Fraction


class Kube:
    """What kube-state-metrics says; of several replicas all are read together (M7)."""

    def __init__(self, series: Iterable[Series], window: int) -> None:
        self.window = window
        self.read_windows: set[int] = set()
        self.listed: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)  # name -> (time, uid)
        self.pods: dict[str, Pod] = {}
        self.node_of: dict[str, list[tuple[int, str]]] = defaultdict(list)  # uid -> (time, node), where bound
        self.finished: dict[str, set[int]] = defaultdict(set)
        self.pod_labels: dict[str, list[tuple[int, dict[str, str]]]] = defaultdict(list)
        self.namespace_labels: dict[str, list[tuple[int, dict[str, str]]]] = defaultdict(list)
        self.node_labels: dict[str, list[tuple[int, dict[str, str]]]] = defaultdict(list)
        self.provider: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.node_times: dict[str, list[tuple[int, str]]] = defaultdict(list)  # node -> (time, replica)
        self.requests: dict[str, list[Request]] = defaultdict(list)
        for s in series:
            self._add(s)
        self.held_windows: dict[str, set[int]] = defaultdict(set)
        for uid, bound in self.node_of.items():
            for time, _ in bound:
                if time not in self.finished[uid]:
                    self.held_windows[uid].add(time // window)
        self.first_bound = {uid: min(t for t, _ in bound) // window for uid, bound in self.node_of.items()}
        self.read_sorted = sorted(self.read_windows)
        for table in (self.listed, self.node_of, self.pod_labels, self.namespace_labels, self.node_labels):
            for rows in table.values():
                rows.sort(key=lambda r: r[0])
        for provider in self.provider.values():
            provider.sort()
        for requests in self.requests.values():
            requests.sort(key=lambda r: r.time)

    def _add(self, s: Series) -> None:
        get = s.labels.get
        self.read_windows |= {time // self.window for time, _ in s.samples}
        name = (get("namespace", ""), get("pod", ""))
        uid = get("uid") or "/".join(name)
        times = [time for time, value in s.samples if Fraction(value)]
        if s.metric == "kube_pod_info":
            self.pods[uid] = Pod(*name, get("uid", ""))
            self.listed[name] += [(t, uid) for t in times]
            if get("node"):
                self.node_of[uid] += [(t, s.labels["node"]) for t in times]
        elif s.metric == "kube_pod_status_phase" and get("phase") in ("Succeeded", "Failed"):
            self.finished[uid] |= set(times)
        elif s.metric == "kube_pod_labels":
            self.pod_labels[uid] += [(t, s.labels) for t in times]
        elif s.metric == "kube_namespace_labels":
            self.namespace_labels[s.labels["namespace"]] += [(t, s.labels) for t in times]
        elif s.metric in ("kube_node_labels", "kube_node_info"):
            node = s.labels["node"]
            self.node_times[node] += [(t, s.labels.get("\0replica", "")) for t in times]
            if s.metric == "kube_node_labels":
                self.node_labels[node] += [(t, s.labels) for t in times]
            else:
                self.provider[node] += [(t, get("provider_id", "")) for t in times]
        elif s.metric.endswith("container_resource_requests") and get("node"):
            init = s.metric == "kube_pod_init_container_resource_requests"
            self.requests[uid] += [
                Request(t, get("container", ""), init, s.labels["resource"], Fraction(v)) for t, v in s.samples
            ]

    def pod(self, namespace: str, name: str, uid: str, time: int) -> Pod:
        """M6: the pod that a row names."""
        if not uid:
            rows = self.listed.get((namespace, name), [])
            if rows:
                i = bisect.bisect_right(rows, (time, "\uffff"))
                uid = rows[i - 1][1] if i else rows[0][1]
                return self.pods[uid]
        return Pod(namespace, name, uid)

    def last_read(self, w: int) -> int | None:
        i = bisect.bisect_right(self.read_sorted, w)
        return self.read_sorted[i - 1] if i else None

    def key(self, pod: Pod) -> str:
        return pod.uid or f"{pod.namespace}/{pod.name}"

    def holding(self, uid: str, w: int) -> bool:
        """H1: bound to its node and not finished, at any sample of the window (or of the last that was read)."""
        seen = self.last_read(w)
        return seen is not None and seen in self.held_windows[uid]

    def gone(self, pod: Pod, w: int) -> bool:
        """H1, M6, G1: the pod has succeeded, failed, or is no longer listed."""
        uid = self.key(pod)
        seen = self.last_read(w)
        return (
            seen is not None
            and uid in self.first_bound
            and self.first_bound[uid] <= seen
            and seen not in self.held_windows[uid]
        )

    def request(self, uid: str, w: int) -> dict[str, Fraction]:
        """H2: by resource, the larger of the containers' sum and the largest init container."""
        last: dict[tuple[str, str, bool], Fraction] = {}
        for r in self.requests.get(uid, []):
            if r.time // self.window <= w:
                last[r.resource, r.container, r.init] = r.value
        sums: dict[str, Fraction] = defaultdict(Fraction)
        most: dict[str, Fraction] = defaultdict(Fraction)
        for (resource, _, init), value in last.items():
            if init:
                most[resource] = max(most[resource], value)
            else:
                sums[resource] += value
        return {r: max(sums[r], most[r]) for r in sums.keys() | most.keys() if r.startswith("nvidia_com_")}

    @staticmethod
    def last_labels(rows: list[tuple[int, dict[str, str]]], end: int, *, first: bool = False) -> dict[str, str]:
        """Labels last seen before `end`; with `first`, the first ones where there are none yet."""
        i = bisect.bisect_left(rows, end, key=lambda r: r[0])
        if i:
            return rows[i - 1][1]
        return rows[0][1] if first and rows else {}


# ---------------------------------------------------------------------------------------------------------------------
# The price book


@dataclass
class Entry:
    keys: dict[str, str]
    per_hour: Fraction | None
    per_month: Fraction | None
    start: int
    end: int

    def price(self, at: int, zone: ZoneInfo) -> Fraction:
        if self.per_hour is not None:
            return self.per_hour
        day = datetime.fromtimestamp(at / 1000, zone)  # P6
        first = datetime(day.year, day.month, 1, tzinfo=zone)
        after = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=zone)
        hours = Fraction(instant(after, zone) - instant(first, zone), UNITS["h"])
        assert self.per_month is not None
        return self.per_month / hours


class Book:
    def __init__(self, books: list[dict[str, Any]], zone: ZoneInfo) -> None:
        self.zone = zone
        self.instances: dict[str, dict[str, Any]] = {}
        self.entries: list[Entry] = []
        for book in books:
            self.instances |= book.get("instances") or {}
            entries = []
            for p in book.get("prices") or []:
                keys = {k: str(p[k]) for k in ("node", "instance_type", "region", "purchase_option") if k in p}
                entries.append(
                    Entry(
                        keys,
                        Fraction(str(p["per_hour"])) if "per_hour" in p else None,
                        Fraction(str(p["per_month"])) if "per_month" in p else None,
                        instant(p["from"], zone) if "from" in p else -(2**62),
                        instant(p["to"], zone) if "to" in p else 2**62,
                    )
                )
            later = [e.keys for e in entries]  # P1: a later book replaces the same keys
            self.entries = [e for e in self.entries if e.keys not in later] + entries

    def price(self, facts: dict[str, str], at: int) -> Fraction:
        """C2, P1: the most specific entry in force."""
        fits = [e for e in self.entries if e.start <= at < e.end and all(facts.get(k) == v for k, v in e.keys.items())]

        def rank(e: Entry) -> tuple[int, int]:
            place = 2 if "node" in e.keys else 1 if "region" in e.keys else 0
            return place, int("purchase_option" in e.keys)

        if not fits:
            raise MissingPriceError(f"{facts} at {at}")
        best = max(rank(e) for e in fits)
        chosen = [e for e in fits if rank(e) == best]
        if len(chosen) != 1:
            raise ValueError(f"price-overlap: {facts} at {at}")
        return chosen[0].price(at, self.zone)


def purchase_option(labels: dict[str, str]) -> str:
    """P2: a node's purchase option, from its labels."""
    for name in ("label_karpenter_sh_capacity_type", "label_eks_amazonaws_com_capacity_type"):
        if labels.get(name):
            value = labels[name].lower().replace("_", "-")
            return "reserved" if value == "capacity-block" else value
    for name in ("label_cloud_google_com_gke_spot", "label_cloud_google_com_gke_preemptible"):
        if labels.get(name) == "true":
            return "spot"
    if labels.get("label_kubernetes_azure_com_scalesetpriority", "").lower() == "spot":
        return "spot"
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# Teams


def owners(pod: Owner, w: int, config: Config, kube: Kube) -> list[tuple[str, Fraction]]:
    """T1, T2: who pays for a pod in a window, and which part."""
    if pod is None:
        return [(config.platform, Fraction(1))]
    start, end = w * config.window, (w + 1) * config.window
    labels = kube.last_labels(kube.pod_labels.get(kube.key(pod), []), end)
    for source in config.order:
        if source == "rules":
            for rule in config.rules:
                if "from" in rule and start < instant(rule["from"], config.zone):
                    continue
                if "to" in rule and start >= instant(rule["to"], config.zone):
                    continue
                if not matches(rule.get("match") or {}, pod, labels, config):
                    continue
                if "split" in rule:
                    return [(str(t).strip(), Fraction(str(p)) / 100) for t, p in rule["split"].items()]
                return [(str(rule["team"]).strip(), Fraction(1))]
        else:
            if source == "namespace":
                found = kube.last_labels(kube.namespace_labels.get(pod.namespace, []), end)
            else:
                found = labels
            team = found.get("label_" + config.team_label, "").strip()
            if team:
                known = not config.teams or team in config.teams
                return [(team if known else config.default_team, Fraction(1))]
    return [(config.default_team, Fraction(1))]


def matches(match: dict[str, Any], pod: Pod, labels: dict[str, str], config: Config) -> bool:
    """Whether a rule's `match` fits a pod: all that it names must fit."""
    for key, want in match.items():
        if key == "labels":
            if not all(fnmatchcase(labels.get("label_" + k, ""), str(v)) for k, v in want.items()):
                return False
        else:
            have = {"namespace": pod.namespace, "pod": pod.name, "cluster": config.cluster}[key]
            if not any(fnmatchcase(have, str(x)) for x in (want if isinstance(want, list) else [want])):
                return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# GPU exporters


def blank(value: Fraction | None, *, dcgm: bool, total: Fraction | None, memory: bool) -> bool:
    """M3: a value (memory in MiB) that means "not available"."""
    if value is None or value < 0:
        return True
    if dcgm and (2147483632 <= value <= 2147483647 or 9223372036854775792 <= value <= 9223372036854775808):
        return True
    if memory:
        if value in (Fraction(2**64 - 1, MIB), Fraction(2**64, MIB)) or value >= (2**64 - 1) // MIB:
            return True
        return total is not None and value > 4 * total
    return False


def number(text: str) -> Fraction | None:
    return None if text in ("NaN", "+Inf", "-Inf", "Inf") else Fraction(text)


class Gpus:
    """All rows of dcgm-exporter and of the `process` exporter, by node and window."""

    def __init__(self, series: list[Series], config: Config, kube: Kube, book_memory: dict[str, Fraction]) -> None:
        self.config = config
        self.kube = kube
        self.dcgm: dict[tuple[str, int], list[Row]] = defaultdict(list)
        self.process: dict[tuple[str, int], list[Row]] = defaultdict(list)
        self.times: dict[tuple[str, str, str], set[int]] = defaultdict(set)  # exporter, node, replica
        self.model: dict[str, str] = {}
        self.reported: set[tuple[str, Device]] = set()  # (node, device) that some exporter reports at device level
        dcgm = [s for s in series if s.metric.startswith("DCGM_FI_")]
        processes = [s for s in series if s.metric == "gpu_process_memory_used_bytes"]
        totals = self._totals(dcgm)
        for i, s in enumerate(dcgm + processes):
            self._add(i, s, totals, book_memory, dcgm=i < len(dcgm))

    @staticmethod
    def _device(labels: dict[str, str]) -> Device:
        return labels.get("UUID") or labels.get("uuid", ""), labels.get("GPU_I_ID", "")

    @staticmethod
    def _node(labels: dict[str, str]) -> str:
        return labels.get("Hostname") or labels.get("hostname", "")

    def _totals(self, dcgm: list[Series]) -> dict[Device, Fraction]:
        """D4: a device's total, for M3's plausibility: the median of used + free + reserved."""
        at: dict[tuple[Device, int], dict[str, Fraction]] = defaultdict(dict)
        for s in dcgm:
            if "_DEV_FB_" in s.metric:
                for time, text in s.samples:
                    value = number(text)
                    if value is not None and not blank(value, dcgm=True, total=None, memory=True):
                        parts = at[self._device(s.labels), time]
                        parts[s.metric] = max(value, parts.get(s.metric, value))
        sums: dict[Device, list[Fraction]] = defaultdict(list)
        for (device, _), parts in at.items():
            if "DCGM_FI_DEV_FB_TOTAL" in parts:
                sums[device].append(parts["DCGM_FI_DEV_FB_TOTAL"])
            elif {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"} <= parts.keys():
                sums[device].append(sum(parts.values(), Fraction()))
        return {device: sorted(values)[len(values) // 2] for device, values in sums.items()}

    def _workload(self, labels: dict[str, str], time: int) -> Owner | _System:
        """Whom a row names: exported_* first, series by series; a system pod names nobody."""
        schemes = (("exported_namespace", "exported_pod"), ("namespace", "pod"), ("pod_namespace", "pod_name"))
        for namespace, name in schemes:
            if labels.get(name):
                where, what = labels.get(namespace, ""), labels[name]
                if any(fnmatchcase(f"{where}/{what}", glob) for glob in self.config.system_pods):
                    return SYSTEM
                return self.kube.pod(where, what, labels.get("pod_uid", ""), time)
        return None

    def _add(
        self, index: int, s: Series, totals: dict[Device, Fraction], book_memory: dict[str, Fraction], *, dcgm: bool
    ) -> None:
        node, device = self._node(s.labels), self._device(s.labels)
        replica = s.labels.get("\0replica", "")
        memory = not dcgm or "_DEV_FB_" in s.metric
        total = totals.get(device, book_memory.get(node))
        table = self.dcgm if dcgm else self.process
        good: tuple[int, Fraction] | None = None
        if s.labels.get("modelName"):
            self.model[device[0]] = s.labels["modelName"]
        if dcgm:
            self.reported.add((node, device))
        for time, text in s.samples:
            value = number(text)
            if value is not None and not dcgm:
                value /= MIB
            if blank(value, dcgm=dcgm, total=total, memory=memory):
                value = good[1] if good and time - good[0] <= self.config.max_gap else None  # M3
            elif value is not None:
                good = (time, value)
            self.times["dcgm" if dcgm else "process", node, replica].add(time)
            owner = self._workload(s.labels, time)
            table[node, time // self.config.window].append(
                Row(
                    time, device, s.metric, value, owner, s.labels.get("vgpu", ""), index, replica,
                    s.labels.get("GPU_I_PROFILE", ""),
                )
            )  # fmt: skip

    def intervals(self) -> dict[tuple[str, str], int]:
        """W3: the most frequent distance between an exporter's samples on a node."""
        counts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        times = dict(self.times)
        for node, rows in self.kube.node_times.items():
            for time, replica in rows:
                times.setdefault(("kube", node, replica), set()).add(time)
        for (exporter, node, _), found in times.items():
            ordered = sorted(found)
            counts[exporter, node].update(b - a for a, b in pairwise(ordered))
        result: dict[tuple[str, str], int] = {}
        for exporter, node in {(e, n) for e, n, _ in times}:
            own = counts[exporter, node] or sum((c for (e, _), c in counts.items() if e == exporter), Counter())
            most = max(own.values(), default=0)
            result[exporter, node] = self.config.interval or min(
                (d for d, n in own.items() if n == most), default=self.config.window
            )
        return result


# ---------------------------------------------------------------------------------------------------------------------
# Devices in a window


@dataclass
class State:
    """A device in a window: all that S1 to S4 need."""

    device: Device
    profile: str
    capacity: Fraction
    used: Fraction | None
    replicas: int
    memory: dict[Owner, Fraction] = field(default_factory=dict)
    with_data: set[Owner] = field(default_factory=set)
    slots: dict[Pod, Fraction] = field(default_factory=dict)
    guessed: set[Owner] = field(default_factory=set)
    silent: bool = False  # G2


@dataclass
class Layout:
    """A GPU in the last window in which it reported: its devices, each with its part of the GPU (D2)."""

    window: int
    life: int
    devices: list[tuple[State, Fraction]]


@dataclass(frozen=True)
class Charge:
    owner: Owner
    kind: str
    cost: Fraction
    estimated: bool


def slices(model: str, profile: str) -> tuple[Fraction, Fraction] | None:
    """D2: an instance's part of its GPU by compute and by memory slices; None where the profile is not in the table."""
    profile = profile.partition("+")[0]
    if "A30" in model:
        count = A30_SLICES.get(profile)
        return None if count is None else (Fraction(count, 4), Fraction(count, 4))
    for words, names in MIG_CARDS:
        if all(word in model for word in words):
            for name, (compute, memory) in zip(names.split(), MIG_SLICES, strict=True):
                if name == profile:
                    return Fraction(compute, 7), Fraction(memory, 8)
            return None
    return None


def parts(states: list[State], model: str, weight: str, card: Fraction | None) -> list[Fraction]:
    """D2: each device's part of its GPU, scaled to 1 where they add up to more."""
    if [s.device[1] for s in states] == [""]:
        return [Fraction(1)]
    found = []
    for s in states:
        known = slices(model, s.profile)
        if known is None:
            by_size = s.capacity / card if card else Fraction(1, len(states))
            known = (by_size, by_size)
        compute, memory = known
        found.append({"memory": memory, "compute": compute, "max": max(memory, compute)}[weight])
    total = sum(found, Fraction())
    return [p / total for p in found] if total > 1 else found


def shares(s: State, gone: set[Pod], basis: str, policy: str) -> list[Charge]:
    """S1 to S4: how 1 of a device's cost is divided, without the pods that are gone."""
    memory = {o: m for o, m in s.memory.items() if m and o not in gone}
    held = {p: n for p, n in s.slots.items() if p not in gone}
    slots = max(Fraction(s.replicas), sum(held.values(), Fraction()))  # H5
    if not memory and not held:
        return [Charge(None, "unallocated", Fraction(1), s.silent)]  # S4
    charges: list[Charge] = []
    by_memory = {o: m / s.capacity if s.capacity else Fraction() for o, m in memory.items()}
    by_slots = {p: n / slots for p, n in held.items()}
    everyone: list[Owner] = list(dict.fromkeys([*by_memory, *by_slots]))
    used: dict[Owner, Fraction] = {}
    for o in everyone:
        mine, slot = by_memory.get(o, Fraction()), Fraction() if o is None else by_slots.get(o, Fraction())
        used[o] = {"memory": mine, "request": slot, "max": max(mine, slot)}[basis]
    total = sum(used.values(), Fraction())
    if total > 1:
        used = {o: u / total for o, u in used.items()}
    for o, u in used.items():
        from_memory = basis == "memory" or (
            basis == "max" and by_memory.get(o, 0) > (0 if o is None else by_slots.get(o, 0))
        )
        charges.append(Charge(o, "used", u, s.silent or (o in s.guessed and from_memory)))  # G3
    left = 1 - sum(used.values(), Fraction())
    idle: dict[Owner, Fraction] = defaultdict(Fraction)
    unallocated = Fraction()
    whole = sum(memory.values(), Fraction())
    if basis == "request":
        unallocated = left  # S3
    elif policy == "platform":
        idle[None] = left
    elif policy == "holders" and held:
        for p, part in by_slots.items():
            idle[p] = left * part
        unallocated = left * (1 - sum(by_slots.values(), Fraction()))
    elif whole:
        for o, m in memory.items():
            idle[o] = left * m / whole
    else:
        for p, n in held.items():
            idle[p] = left * n / sum(held.values(), Fraction())
    charges += [Charge(o, "idle", part, s.silent) for o, part in idle.items()]
    charges.append(Charge(None, "unallocated", unallocated, s.silent))
    return [c for c in charges if c.cost]


# ---------------------------------------------------------------------------------------------------------------------
# A node


@dataclass
class Life:
    start: int
    end: int
    gpus: int = 0  # seen at once


@dataclass
class Node:
    name: str
    model: Model
    lives: list[Life]
    dcgm_interval: int
    process_interval: int
    layouts: dict[str, Layout] = field(default_factory=dict)
    last_processes: tuple[int, dict[Device, dict[Owner, Fraction]]] | None = None  # G2

    # C2, P2
    def facts(self, w: int) -> tuple[dict[str, str], dict[str, str]]:
        """What identifies the node's price in a window, and its labels."""
        config = self.model.config
        labels = self.model.kube.last_labels(
            self.model.kube.node_labels.get(self.name, []), (w + 1) * config.window, first=True
        )
        facts = {
            "node": self.name,
            "instance_type": labels.get("label_node_kubernetes_io_instance_type", ""),
            "region": labels.get("label_topology_kubernetes_io_region", ""),
            "purchase_option": purchase_option(labels) or config.default_option,
        }
        for override in config.nodes:
            if fnmatchcase(self.name, str(override["match"])):
                facts |= {k: str(v) for k, v in override.items() if k != "match"}
                break
        return facts, labels

    def alive(self, w: int, start: int, end: int) -> int:
        """C1: alive milliseconds in a window, within the period."""
        first, last = max(w * self.model.config.window, start), min((w + 1) * self.model.config.window, end)
        return sum(max(0, min(life.end, last) - max(life.start, first)) for life in self.lives)

    def life(self, w: int) -> int:
        """The last life that reaches into a window; -1 if none."""
        window = self.model.config.window
        found = [i for i, x in enumerate(self.lives) if x.start < (w + 1) * window and x.end > w * window]
        return found[-1] if found else -1

    # M7
    def rows(self, w: int) -> tuple[list[Row], list[Row]]:
        """The window's rows of the replica with the most device samples, ties by name."""
        dcgm, process = self.model.gpus.dcgm.get((self.name, w), []), self.model.gpus.process.get((self.name, w), [])
        replicas = sorted({r.replica for r in dcgm + process})
        if not replicas:
            return [], []

        def count(replica: str) -> int:
            devices = {(r.device, r.time) for r in dcgm if r.replica == replica}
            return len(devices) if dcgm else sum(r.replica == replica for r in process)

        most = max(count(r) for r in replicas)
        chosen = next(r for r in replicas if count(r) == most)
        return [r for r in dcgm if r.replica == chosen], [r for r in process if r.replica == chosen]

    def observe(self, w: int) -> dict[str, Layout]:
        """D, M, H: the GPUs that report in a window."""
        config, kube = self.model.config, self.model.kube
        dcgm, process = self.rows(w)
        facts, labels = self.facts(w)
        by_device: dict[Device, list[Row]] = defaultdict(list)
        for r in dcgm:
            by_device[r.device].append(r)
        instances = {uuid for uuid, instance in by_device if instance}
        # A parent row and its instances' rows are one GPU.
        by_device = {d: rows for d, rows in by_device.items() if d[1] or d[0] not in instances}
        processes: dict[Device, list[Row]] = defaultdict(list)
        for r in process:
            if r.value is not None:
                processes[r.device].append(r)
        alone = [d for d in processes if (self.name, d) not in self.model.gpus.reported]  # M1: no device-level rows
        states: dict[Device, State] = {}
        label_slots: dict[tuple[Device, Pod], int] = {}
        labelled: set[tuple[Device, Pod]] = set()
        any_process = bool(processes)
        book = self.model.book_memory(facts)
        fullest = max(Counter(r.series for r in process if r.value is not None).values(), default=0)
        for device in sorted([*by_device, *alone], key=device_order):
            rows = by_device.get(device, [])
            times = {r.time for r in rows if r.value is not None}
            seconds = len(times) * self.dcgm_interval
            if device in alone:
                seconds = fullest * self.process_interval
            if not seconds:
                continue
            used, pod_rows = device_memory(rows)
            last = max(rows, key=lambda r: r.time, default=None)
            state = State(
                device,
                profile=last.profile if last else "",
                capacity=capacity(rows, used, book),
                used=used,
                replicas=self.replicas(device, last.profile if last else "", labels),
            )
            states[device] = state
            # M1, M5, M6: memory, from the first exporter that reports processes here
            sums: dict[Owner, Fraction] = defaultdict(Fraction)
            if device in processes:
                for r in processes[device]:
                    if isinstance(r.owner, _System) or (isinstance(r.owner, Pod) and kube.gone(r.owner, w)):
                        continue
                    assert r.value is not None
                    sums[r.owner] += r.value * self.process_interval / seconds
                    state.with_data.add(r.owner)
            elif any(v for _, v in pod_rows.items()) or (pod_rows and not used):
                any_process = True
                for (pod, _), value in pod_rows.items():
                    if not kube.gone(pod, w):
                        sums[pod] += value * self.dcgm_interval / seconds
                        state.with_data.add(pod)
            state.memory = dict(sums)
            # H1, H5: pods that a device-level row names
            seen: dict[tuple[Pod, int], set[str]] = defaultdict(set)
            for r in rows:
                if isinstance(r.owner, Pod) and not kube.gone(r.owner, w):
                    labelled.add((device, r.owner))
                    if r.slot:
                        seen[r.owner, r.time].add(r.slot)
            for (pod, _), slots in seen.items():
                label_slots[device, pod] = max(label_slots.get((device, pod), 0), len(slots))
        self.silence(w, states, any_process=any_process)
        carried = self.carried(w, {d[0] for d in states}, labels, facts)
        self.hold(w, states, labelled, label_slots, carried, labels)
        for state in states.values():
            unexplained(state)
        layouts: dict[str, Layout] = {}
        for uuid in sorted({d[0] for d in states}):
            own = [s for d, s in states.items() if d[0] == uuid]
            weights = parts(own, self.model.gpus.model.get(uuid, ""), config.weight, book)
            layouts[uuid] = Layout(w, self.life(w), list(zip(own, weights, strict=True)))
        return layouts

    def replicas(self, device: Device, profile: str, labels: dict[str, str]) -> int:
        """H5: the replicas label of a device's resource; 1 where it is not shared."""
        name = "label_nvidia_com_gpu"
        if device[1] and labels.get("label_nvidia_com_mig_strategy") != "single":
            name = "label_nvidia_com_mig_" + re.sub(r"[^a-zA-Z0-9]", "_", profile)
        if labels.get(name + "_sharing_strategy") == "none":
            return 1
        text = labels.get(name + "_replicas", "")
        return max(1, int(text)) if text.isdigit() else 1

    def silence(self, w: int, states: dict[Device, State], *, any_process: bool) -> None:
        """G2: where all process series stop and the memory stays, the last window's memory stands in."""
        config, kube = self.model.config, self.model.kube
        if any_process:
            if states:
                self.last_processes = (w, {d: dict(s.memory) for d, s in states.items()})
            return
        if self.last_processes is None or not states:
            return
        last, memory = self.last_processes
        if (w - last) * config.window > config.max_gap:
            return
        explained = sum((m for by_owner in memory.values() for m in by_owner.values()), Fraction())
        used = sum((s.used or Fraction() for s in states.values()), Fraction())
        if not explained or 2 * used < explained:
            return
        for device, s in states.items():
            s.silent = True
            s.memory = {o: m for o, m in memory.get(device, {}).items() if o is None or not kube.gone(o, w)}
            s.with_data = set(s.memory)

    def room(self, w: int, reporting: set[str], labels: dict[str, str], facts: dict[str, str]) -> tuple[int, list[str]]:
        """C5: how many GPUs the node has, and which silent ones have room, those that reported last first."""
        life = self.life(w)
        seen = self.lives[life].gpus if life >= 0 else 0
        book = self.model.book.instances.get(facts["instance_type"], {}).get("gpus")
        label = labels.get("label_nvidia_com_gpu_count", "")
        if book is not None:
            known = max(1, int(Fraction(str(book)))) if Fraction(str(book)) > 0 else 0
        else:
            known = int(label) if label.isdigit() else 0
        count = max(known, seen, len(reporting))
        silent = [u for u, x in self.layouts.items() if u not in reporting and x.life == life and x.window < w]
        silent.sort(key=lambda u: (-self.layouts[u].window, u))
        return count, silent[: count - len(reporting)]

    def fresh(self, layout: Layout, w: int) -> bool:
        """G1: a window that ends at most max_gap after the last reported one."""
        return (w - layout.window) * self.model.config.window <= self.model.config.max_gap

    def carried(self, w: int, reporting: set[str], labels: dict[str, str], facts: dict[str, str]) -> list[State]:
        _, silent = self.room(w, reporting, labels, facts)
        return [s for u in silent if self.fresh(self.layouts[u], w) for s, _ in self.layouts[u].devices]

    # H2, H5
    def hold(
        self,
        w: int,
        states: dict[Device, State],
        labelled: set[tuple[Device, Pod]],
        label_slots: dict[tuple[Device, Pod], int],
        carried: list[State],
        labels: dict[str, str],
    ) -> None:
        kube = self.model.kube
        single = labels.get("label_nvidia_com_mig_strategy") == "single"
        order = sorted(states, key=device_order)
        held: dict[tuple[Device, Pod], int] = {(d, p): label_slots.get((d, p), 1) for d, p in labelled}
        requests: list[tuple[Pod, str, Fraction]] = []
        for uid, bound in kube.node_of.items():
            pod = kube.pods[uid]
            nodes = [node for time, node in bound if time // kube.window <= w]
            if not nodes or nodes[-1] != self.name or not kube.holding(uid, w) or self.model.system(pod):
                continue
            requests += [(pod, resource, n) for resource, n in kube.request(uid, w).items() if n]
        requests.sort(key=lambda r: (r[0].namespace, r[0].name, r[0].uid, r[1]))
        left: dict[tuple[Pod, str], Fraction] = {}
        for pod, resource, n in requests:
            by_label = sum(k for (d, p), k in held.items() if p == pod and fits(states[d], resource, single=single))
            before = sum(
                (s.slots[pod] for s in carried if pod in s.slots and fits(s, resource, single=single)), Fraction()
            )
            left[pod, resource] = n - by_label - before
        for pod, resource, _ in requests:  # first, where they have processes
            for d in order:
                s = states[d]
                if (
                    left[pod, resource] >= 1
                    and fits(s, resource, single=single)
                    and pod in s.with_data
                    and (d, pod) not in held
                ):
                    held[d, pod] = 1
                    left[pod, resource] -= 1
        for pod, resource, _ in requests:  # then, where nobody is
            while left[pod, resource] >= 1:
                best: tuple[int, Device] | None = None
                for d in order:
                    s = states[d]
                    taken = sum(k for (x, _), k in held.items() if x == d)
                    free = s.replicas - taken if s.replicas > 1 else int(taken == 0)
                    if free > 0 and fits(s, resource, single=single) and (best is None or free > best[0]):
                        best = (free, d)
                if best is None:
                    break
                held[best[1], pod] = held.get((best[1], pod), 0) + 1
                left[pod, resource] -= 1
        for d, pod in held:  # H5
            slots = Fraction(label_slots.get((d, pod), 0))
            if not slots:
                slots = Fraction(1)
                for other, resource, n in requests:
                    if other == pod and fits(states[d], resource, single=single):
                        mine = sum(p == pod and fits(states[x], resource, single=single) for x, p in held)
                        mine += sum(pod in s.slots and fits(s, resource, single=single) for s in carried)
                        slots = n / mine
            states[d].slots[pod] = slots

    def charge(self, w: int, start: int, end: int) -> tuple[int, list[Charge]]:
        """The node's cost in a window in nano-units, and who is charged for it (C3, C5, G1)."""
        config, kube = self.model.config, self.model.kube
        now = self.observe(w)
        alive = self.alive(w, start, end)
        facts, labels = self.facts(w)
        count, silent = self.room(w, set(now), labels, facts)
        charges: list[Charge] = []
        cost = 0
        if alive:
            price = self.model.book.price(facts, w * config.window)
            cost = round(price * alive / 3_600_000 * NANO)  # C3: half-even
            each = Fraction(cost, count * NANO)
            for layout in now.values():
                for s, part in layout.devices:
                    charges += [scaled(c, each * part) for c in shares(s, set(), config.basis, config.idle)]
            for uuid in silent:
                layout = self.layouts[uuid]
                for s, part in layout.devices:
                    if self.fresh(layout, w):
                        gone = {p for p in {*s.memory, *s.slots} if p is not None and kube.gone(p, w)}
                        for c in shares(s, gone, config.basis, config.idle):
                            charges.append(Charge(c.owner, c.kind, c.cost * each * part, estimated=True))
                    else:
                        charges.append(Charge(None, "unobserved", each * part, estimated=False))
            for layout in [*now.values(), *(self.layouts[u] for u in silent)]:
                rest = 1 - sum((part for _, part in layout.devices), Fraction())
                charges.append(Charge(None, "unpartitioned", each * rest, estimated=False))
            absent = count - len(now) - len(silent)
            charges.append(Charge(None, "unobserved", each * absent, estimated=False))
            assert sum((c.cost for c in charges), Fraction()) == Fraction(cost, NANO)
        self.layouts |= now
        return cost, [c for c in charges if c.cost]


def scaled(c: Charge, cost: Fraction) -> Charge:
    return Charge(c.owner, c.kind, c.cost * cost, c.estimated)


def device_order(device: Device) -> tuple[str, int, str]:
    return device[0], int(device[1]) if device[1].isdigit() else -1, device[1]


def fits(s: State, resource: str, *, single: bool) -> bool:
    """H2: whether a device is of a requested resource."""
    if resource in ("nvidia_com_gpu", "nvidia_com_gpu_shared"):
        return single or not s.device[1]
    profile = re.sub(r"[^a-zA-Z0-9]", "_", s.profile)
    return bool(s.device[1]) and resource.removesuffix("_shared") == "nvidia_com_mig_" + profile


def mean(values: list[Fraction]) -> Fraction | None:
    return sum(values, Fraction()) / len(values) if values else None


def once(rows: list[Row], metric: str) -> dict[int, Fraction]:
    """M2: a device-level value, once per sample time, however many rows repeat it."""
    found: dict[int, Fraction] = {}
    for r in rows:
        if r.metric == metric and r.value is not None:
            found[r.time] = max(r.value, found.get(r.time, r.value))
    return found


def device_memory(rows: list[Row]) -> tuple[Fraction | None, dict[tuple[Pod, int], Fraction]]:
    """The device's mean used memory, and by pod and time what dcgm-exporter from 4.8.2 says of each pod (M2)."""
    by_time: dict[int, list[Row]] = defaultdict(list)
    for r in rows:
        if r.metric == "DCGM_FI_DEV_FB_USED":
            by_time[r.time].append(r)
    used: list[Fraction] = []
    pods: dict[tuple[Pod, int], Fraction] = {}
    for time, at in by_time.items():
        bare = [r for r in at if not isinstance(r.owner, Pod)]
        named = [r for r in at if isinstance(r.owner, Pod)]
        if bare and named:
            for r in named:
                if r.value is not None:
                    assert isinstance(r.owner, Pod)
                    pods[r.owner, time] = max(r.value, pods.get((r.owner, time), r.value))
        values = [r.value for r in bare or named if r.value is not None]
        if values:
            used.append(max(values))
    return mean(used), pods


def capacity(rows: list[Row], used: Fraction | None, book: Fraction | None) -> Fraction:
    """D4."""
    total = mean(list(once(rows, "DCGM_FI_DEV_FB_TOTAL").values()))
    free = mean(list(once(rows, "DCGM_FI_DEV_FB_FREE").values()))
    if total is not None:
        return total - (mean(list(once(rows, "DCGM_FI_DEV_FB_RESERVED").values())) or 0)
    if used is not None and free is not None:
        return used + free
    return book or Fraction()


def unexplained(s: State) -> None:
    """H3: used memory that no process explains; M4: never more than capacity."""
    rest = (s.used or Fraction()) - sum(s.memory.values(), Fraction())
    if rest > max(s.capacity / 50, Fraction(512)):
        pods = {*s.slots, *(o for o, m in s.memory.items() if o is not None and m)}
        blind = {p: n for p, n in s.slots.items() if p not in s.with_data}
        if len(pods) == 1:
            pod = next(iter(pods))
            s.memory[pod] = s.memory.get(pod, Fraction()) + rest
        elif blind:
            for p, n in blind.items():
                s.memory[p] = s.memory.get(p, Fraction()) + rest * n / sum(blind.values(), Fraction())
                s.guessed.add(p)
        else:
            s.memory[None] = s.memory.get(None, Fraction()) + rest
    total = sum(s.memory.values(), Fraction())
    if total > s.capacity:
        s.memory = {o: m * s.capacity / total for o, m in s.memory.items()}


# ---------------------------------------------------------------------------------------------------------------------
# All of it


class Model:
    def __init__(self, text: str, config: dict[str, Any], books: list[dict[str, Any]], start: int, end: int) -> None:
        self.config = Config.read(config)
        self.start, self.end = start, end
        self.book = Book(books, self.config.zone)
        first, last = start - self.config.max_gap, end + self.config.max_gap
        series = []
        for s in series_of(text):
            s.samples = [x for x in s.samples if first <= x[0] < last]
            if not s.samples:
                continue
            if self.config.replica_label:
                s.labels["\0replica"] = s.labels.pop(self.config.replica_label, "")
            series.append(s)
        self.kube = Kube((s for s in series if s.metric.startswith("kube_")), self.config.window)
        memory = {}
        for node in self.kube.node_times:
            card = self.book_memory(Node(node, self, [], 0, 0).facts(last // self.config.window)[0])
            if card is not None:
                memory[node] = card
        self.gpus = Gpus(series, self.config, self.kube, memory)
        self.nodes = list(self._nodes())

    def system(self, pod: Pod) -> bool:
        return any(fnmatchcase(f"{pod.namespace}/{pod.name}", glob) for glob in self.config.system_pods)

    def book_memory(self, facts: dict[str, str]) -> Fraction | None:
        gib = self.book.instances.get(facts["instance_type"], {}).get("gpu_memory_gib")
        return None if gib is None else Fraction(str(gib)) * 1024

    def _nodes(self) -> Iterator[Node]:
        """C1: the GPU nodes and their lives."""
        intervals = self.gpus.intervals()
        samples: dict[str, list[tuple[int, int]]] = defaultdict(list)
        with_gpu = {name for _, name, _ in self.gpus.times}
        for (exporter, gpu_node, _), times in self.gpus.times.items():
            samples[gpu_node] += [(t, t + intervals[exporter, gpu_node]) for t in times]
        for kube_node, rows in self.kube.node_times.items():
            samples[kube_node] += [(t, t + intervals["kube", kube_node]) for t, _ in rows]
        for name in sorted(samples):
            node = Node(name, self, [], intervals.get(("dcgm", name), 0), intervals.get(("process", name), 0))
            facts, _ = node.facts(self.end // self.config.window)
            known = self.book.instances.get(facts["instance_type"], {}).get("gpus")
            if name not in with_gpu and not (known and Fraction(str(known)) > 0):
                continue
            node.lives = self._lives(name, sorted(samples[name]))
            for life in node.lives:
                life.gpus = self._at_once(name, life)
            yield node

    def _lives(self, name: str, samples: list[tuple[int, int]]) -> list[Life]:
        """C1: gaps are bridged when short, or when the provider id is the same on both sides."""
        provider = self.kube.provider.get(name, [])
        lives = [Life(samples[0][0], samples[0][1])]
        before = samples[0][0]
        for time, end in samples[1:]:
            if time - before > self.config.max_gap:
                left = [p for t, p in provider if t <= before]
                right = [p for t, p in provider if t >= time]
                if not (left and right and left[-1] and left[-1] == right[0]):
                    lives.append(Life(time, end))
            lives[-1].end = max(lives[-1].end, end)
            before = time
        return lives

    def _at_once(self, name: str, life: Life) -> int:
        """C5: the most GPUs that one sample time shows."""
        at: dict[tuple[int, str, str], set[str]] = defaultdict(set)
        for kind, table in (("dcgm", self.gpus.dcgm), ("process", self.gpus.process)):
            for (node, _), rows in table.items():
                if node == name:
                    for r in rows:
                        alone = kind == "process" and (name, r.device) not in self.gpus.reported
                        if (kind == "dcgm" or alone) and life.start <= r.time < life.end:
                            at[r.time, r.replica, kind].add(r.device[0])
        return max((len(x) for x in at.values()), default=0)

    def charges(self) -> tuple[dict[tuple[str, str], tuple[Fraction, Fraction]], Fraction]:
        w = self.config.window
        whole: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        guessed: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        node_cost = 0
        for node in self.nodes:
            for window in range((self.start - self.config.max_gap) // w, -(-self.end // w)):
                cost, charges = node.charge(window, self.start, self.end)
                node_cost += cost
                for c in charges:
                    for team, part in owners(c.owner, window, self.config, self.kube):
                        whole[team, c.kind] += c.cost * part
                        if c.estimated:
                            guessed[team, c.kind] += c.cost * part
        return {k: (v, guessed[k]) for k, v in sorted(whole.items())}, Fraction(node_cost, NANO)


def charges(
    source: Path | str,
    config: dict[str, Any],
    prices: dict[str, Any] | list[dict[str, Any]],
    start: datetime | int,
    end: datetime | int,
) -> tuple[dict[tuple[str, str], tuple[Fraction, Fraction]], Fraction]:
    """Cost and its estimated part by (team, kind), and the node cost; instants may be milliseconds."""
    zone = ZoneInfo("UTC")
    first, last = (x if isinstance(x, int) else instant(x, zone) for x in (start, end))
    books = prices if isinstance(prices, list) else [prices]
    return Model(text_of(source, config), config, books, first, last).charges()


def period_of(text: str) -> tuple[int, int]:
    """`START/END`, in milliseconds."""
    start, end = (instant(x, ZoneInfo("UTC")) for x in text.strip().split("/"))
    return start, end


def case(folder: Path) -> tuple[dict[tuple[str, str], tuple[Fraction, Fraction]], Fraction]:
    """What a case's folder comes to."""
    config = yaml.safe_load((folder / "chargeback.yaml").read_text())
    books = [yaml.safe_load((folder / name).read_text()) for name in config["pricing"]["books"]]
    return charges(folder, config, books, *period_of((folder / "period").read_text()))


def nine(value: Fraction) -> str:
    """Nine digits, half-even, never -0 (R4)."""
    nano = round(value * NANO)
    return f"{'-' if nano < 0 else ''}{abs(nano) // NANO}.{abs(nano) % NANO:09d}"


def expected_csv(found: dict[tuple[str, str], tuple[Fraction, Fraction]], node_cost: Fraction) -> str:
    lines = ["team,kind,cost,estimated", f"*,node_cost,{nine(node_cost)},0.000000000"]
    lines += [f"{t},{k},{nine(cost)},{nine(guess)}" for (t, k), (cost, guess) in sorted(found.items()) if cost]
    return "\n".join(lines) + "\n"


def compare(folder: Path) -> list[str]:
    """Prints a case's charges; returns where they differ from its expected.csv."""
    found, node_cost = case(folder)
    sys.stdout.write(expected_csv(found, node_cost))
    got = {("*", "node_cost"): (node_cost, Fraction()), **found}
    with (folder / "expected.csv").open(newline="") as file:
        want = {(r["team"], r["kind"]): (Fraction(r["cost"]), Fraction(r["estimated"])) for r in csv.DictReader(file)}
    wrong = []
    for key in sorted(got.keys() | want.keys()):
        a, b = got.get(key, (Fraction(), Fraction())), want.get(key, (Fraction(), Fraction()))
        for what, x, y in zip(("", " estimated"), a, b, strict=True):
            if abs(x - y) > TOLERANCE:
                wrong.append(f"{key[0]}/{key[1]}{what} {nine(x)}, expected {nine(y)}")
    return wrong


def main(folders: list[str]) -> int:
    failed = 0
    for name in folders:
        print(f"== {name}")
        wrong = compare(Path(name))
        failed += bool(wrong)
        print("\n".join(wrong) or "ok")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
