"""What exporters say of devices, of memory by process or pod, and of who holds what."""

import fnmatch
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from chargeback.config import Metric, MetricLabels, Profile
from chargeback.evidence.readings import (
    Bools,
    Floats,
    Ints,
    Slice,
    cleaned,
    concat,
    label,
)
from chargeback.period import DAY
from chargeback.problems import Problems
from chargeback.sources import Labels, Matchers, Windows
from chargeback.tables import find, starts_of

SCALE = {"bytes": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10, "ratio": 1.0, "percent": 0.01}
MEMORY_LIMIT_MIB = 2.0 * 2**20  # no card has 2 TiB; where its total is known, 4 times that is the limit (M3)
ACTIVITY_LIMIT = 2.0
MEMORY_ROLES = ("used", "free", "reserved", "total")


@dataclass(frozen=True)
class NodeShare:
    """Every node, or the `index`-th (from 0) of `of` shares into which nodes fall by a digest of their name."""

    index: int = 0
    of: int = 1

    def __contains__(self, node: str) -> bool:
        return self.of == 1 or zlib.crc32(node.encode()) % self.of == self.index


ALL_NODES = NodeShare()


@dataclass
class Names:
    """Codes for things as they are met; `all()` lists them in code order."""

    _codes: dict[tuple[str, ...], int] = field(default_factory=dict)

    def code(self, *key: str) -> int:
        return self._codes.setdefault(key, len(self._codes))

    def all(self) -> list[tuple[str, ...]]:
        return list(self._codes)


@dataclass
class Directory:
    """Who is who in a partition: codes of nodes, devices (node, UUID, instance) and pods (namespace, name, uid)."""

    known_nodes: Collection[str]
    pod_nodes: dict[str, str]
    system_pods: tuple[str, ...]
    replica_label: str | None
    nodes: Names = field(default_factory=Names)
    devices: Names = field(default_factory=Names)
    pods: Names = field(default_factory=Names)
    about: Names = field(default_factory=Names)
    homes: dict[str, str] = field(default_factory=dict)
    share: NodeShare = ALL_NODES

    def node_of(self, labels: Labels, names: tuple[str, ...]) -> str:
        """The node that a series speaks of: of its labels the first that Kubernetes knows as a node, or as a pod
        (the exporter's own) that has one; else the first that is a name at all.
        """
        values = [v for n in (*names, *(f"exported_{n}" for n in names)) if (v := labels.get(n)) and v != "localhost"]
        for value in values:
            if value in self.known_nodes:
                return value
        for value in (*values, labels.get("pod", "")):
            if value in self.pod_nodes:
                return self.pod_nodes[value]
        return values[0] if values else ""

    def is_system(self, namespace: str, pod: str) -> bool:
        """Whether a pod matches `system_pods` (M6)."""
        return any(fnmatch.fnmatchcase(f"{namespace}/{pod}", glob) for glob in self.system_pods)


@dataclass(frozen=True)
class Role:
    """One metric of an exporter: its windows in MiB (or 0 to 1), `exposed` with blanks; by series what it is of.

    `pod` is -1 where a series names none, or only the exporter's own; `slot` likewise; `process` tells processes of
    one pod apart; `about` is a (model, MIG profile); `dropped` says
    which blanks were dropped: metric, device, how many; `rank` is a canonical order of the series.
    """

    found: Windows
    exposed: Windows
    metric: list[str]
    scale: float
    limit: Floats
    node: Ints
    device: Ints
    pod: Ints
    slot: Ints
    process: Ints
    replica: Ints
    about: Ints
    dropped: list[tuple[str, int, int]]
    rank: Ints
    names: tuple[str, ...]

    def has_blanks(self, series: list[int]) -> bool:
        """Whether any of these series has values that are no measurement (M3)."""
        f = self.found
        with np.errstate(invalid="ignore"):
            bad = (f.low[series] < 0) | (f.high[series] * self.scale > self.limit[series])
        return bool(bad.any()) or bool((~np.isfinite(self.exposed.total))[np.isin(self.exposed.series, series)].any())

    def keep(self, rows: Bools) -> "Role":
        """The same with some rows only."""
        f = self.found
        kept = replace(f, series=f.series[rows], window=f.window[rows], total=f.total[rows], count=f.count[rows])
        return replace(self, found=kept)


@dataclass(frozen=True)
class Reading:
    """An exporter's roles: `used`, `free`, `reserved`, `total`, `activity` and `process`, those that it has."""

    profile: Profile
    roles: dict[str, Role]


def read(
    cut: Slice, profile: Profile, present: set[str], book: Directory, totals: dict[int, float], problems: Problems
) -> Reading:
    """Reads what `profile` maps of the metrics `present`, blanks mended (M3); `totals` (MiB by device) grows."""
    roles: dict[str, Role] = {}
    device = profile.device_memory
    if device:
        for name in MEMORY_ROLES:
            metric = getattr(device, name)
            if metric and (role := _role(cut, profile, metric, device.labels, present, book, MEMORY_LIMIT_MIB, None)):
                roles[name] = role
        for metric in device.activity:
            if "activity" not in roles and (
                role := _role(cut, profile, metric, device.labels, present, book, ACTIVITY_LIMIT, None)
            ):
                roles["activity"] = role
        _learn_totals(roles, totals)
        for name in MEMORY_ROLES:
            if name in roles and _over(roles[name], totals):
                metric = getattr(device, name)
                again = _role(cut, profile, metric, device.labels, present, book, MEMORY_LIMIT_MIB, totals)
                assert again is not None
                roles[name] = again
    if profile.process_memory:
        role = _role(
            cut, profile, profile.process_memory, profile.process_memory.labels, present, book,
            MEMORY_LIMIT_MIB, totals,
        )  # fmt: skip
        if role:
            roles["process"] = role
    for role in roles.values():
        for name, where, count in role.dropped:
            problems.add(
                "blank-value", "/".join(p for p in book.devices.all()[where] if p),
                f"{name}: values that mean 'not available' stand for the last good value of at most max_gap before",
                count=count,
            )  # fmt: skip
    return Reading(profile, roles)


def _over(role: Role, totals: dict[int, float]) -> bool:
    limit = np.array([4 * totals.get(int(d), np.inf) for d in role.device])
    return bool((role.found.high * role.scale > limit).any())


def _learn_totals(roles: dict[str, Role], totals: dict[int, float]) -> None:
    """Each device's memory in MiB: the median over windows of `total`, else of used and free together."""
    names = ("total",) if "total" in roles else ("used", "free")
    if not all(n in roles for n in names):
        return
    parts = []
    for name in names:
        f = roles[name].found
        device = roles[name].device[f.series]
        order = np.lexsort((f.window, device))
        starts = starts_of(device[order], f.window[order])
        mean = (f.total / np.maximum(f.count, 1))[order]
        largest = np.maximum.reduceat(mean, starts) if starts.size else mean
        parts.append((device[order][starts], f.window[order][starts], largest))
    device, window, whole = parts[0]
    for other_device, other_window, more in parts[1:]:
        span = int(max(window.max(initial=0), other_window.max(initial=0))) + 1
        at = find(other_device * span + other_window, device * span + window)
        device, window, whole = device[at >= 0], window[at >= 0], whole[at >= 0] + more[at[at >= 0]]
    order = np.lexsort((whole, device))
    starts = starts_of(device[order])
    middle = starts + np.diff(np.append(starts, order.size)) // 2
    for d, total in zip(device[order][starts].tolist(), whole[order][middle].tolist(), strict=True):
        if total > 0:
            totals[d] = max(total, totals.get(d, 0.0))


def _role(
    cut: Slice, profile: Profile, metric: Metric, mapped: MetricLabels, present: set[str], book: Directory,
    limit: float, totals: dict[int, float] | None,
) -> Role | None:  # fmt: skip
    names = tuple(dict.fromkeys(n for field_ in mapped for n in field_[1]))
    scale = SCALE[metric.unit]
    parts, metrics = [], []
    for name in metric.metric:
        if name not in present:
            continue
        matchers = _of_share(cut, name, mapped, book)
        found = cut.source.windows(name, cut.start, cut.end, cut.window, matchers=matchers)
        found = _only_share(found, mapped, book)
        parts.append((name, found))
        metrics += [name] * len(found.labels)
    if not any(f.labels for _, f in parts):
        return None
    labels = [ls for _, f in parts for ls in f.labels]
    node, device, pod, slot, process, replica, about = _subjects(
        labels, mapped, book, mapped is not profile.process_labels
    )
    allowed = np.full(len(labels), limit)
    if totals is not None:
        allowed = np.minimum(allowed, [4 * totals.get(int(d), np.inf) for d in device])
    mended, at = [], 0
    blanks: list[tuple[str, int, int]] = []
    for name, found in parts:
        here = allowed[at : at + len(found.labels)] / scale
        clean, dropped = cleaned(cut, name, found, here, names)
        mended.append(clean)
        blanks += [(name, int(device[at + series]), count) for series, count in dropped.items()]
        at += len(found.labels)
    found = concat(mended)
    found = replace(found, total=found.total * scale)
    order = sorted(range(len(labels)), key=lambda i: (metrics[i], sorted(labels[i].items())))
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels))
    return Role(
        found,
        concat([f for _, f in parts]),
        metrics,
        scale,
        allowed,
        node,
        device,
        pod,
        slot,
        process,
        replica,
        about,
        blanks,
        rank,
        names,
    )


def _of_share(cut: Slice, metric: str, mapped: MetricLabels, book: Directory) -> Matchers | None:
    """Matchers that let the share's nodes through; None where all are wanted, or no label tells them apart."""
    if book.share.of == 1:
        return None
    keys = [*mapped.node, *(f"exported_{n}" for n in mapped.node)]
    day = cut.start - cut.start % DAY
    found = cut.source.windows(metric, day, day + DAY, DAY, by=[*keys, "pod"], values=False).labels
    mine = [ls for ls in found if book.node_of(ls, mapped.node) in book.share]
    key = next((k for k in keys if found and all(ls.get(k) for ls in found)), None)
    return {key: {ls[key] for ls in mine}} if key else None


def _only_share(found: Windows, mapped: MetricLabels, book: Directory) -> Windows:
    if book.share.of == 1:
        return found
    mine = np.array([book.node_of(ls, mapped.node) in book.share for ls in found.labels], bool)
    rows = mine[found.series] if found.series.size else mine[:0]
    code = np.cumsum(mine) - 1
    return Windows(
        [ls for ls, ok in zip(found.labels, mine, strict=True) if ok],
        code[found.series[rows]], found.window[rows], found.total[rows], found.count[rows],
        found.low[mine], found.high[mine],
    )  # fmt: skip


def _subjects(labels: list[Labels], mapped: MetricLabels, book: Directory, device_level: bool) -> tuple[Ints, ...]:
    """By series: node, device, pod (-1 none), slot (-1 none), process, replica and (model, profile), as codes.

    System pods hold nothing, so a device's row that names one names nobody; their processes stay theirs (M6).
    """
    own = {(ls.get("namespace", ""), ls["pod"]) for ls in labels if ls.get("exported_pod") and ls.get("pod")}
    slots, processes, replicas = Names(), Names(), Names()
    out = np.empty((7, len(labels)), np.int64)
    for i, ls in enumerate(labels):
        uuid = label(ls, mapped.gpu)
        if uuid and not uuid.startswith(("GPU-", "MIG-")):
            uuid = f"GPU-{uuid}"
        node = book.node_of(ls, mapped.node)
        if node not in book.known_nodes:
            node = book.homes.get(uuid, node)
        elif device_level:
            book.homes.setdefault(uuid, node)
        instance = label(ls, mapped.gpu_instance)
        device = book.devices.code(node, uuid, instance)
        profile = label(ls, mapped.mig_profile)
        out[6, i] = book.about.code(label(ls, mapped.model), "" if profile == "<<<NULL>>>" else profile)
        namespace, pod = label(ls, mapped.namespace), label(ls, mapped.pod)
        bare = not pod or ((namespace, pod) in own and not ls.get("exported_pod"))
        bare = bare or (device_level and book.is_system(namespace, pod))
        uid, container = ("", "") if bare else (label(ls, mapped.pod_uid), label(ls, mapped.container))
        slot = label(ls, mapped.slot)
        out[0, i] = book.nodes.code(node)
        out[1, i] = device
        out[2, i] = -1 if bare else book.pods.code(namespace, pod, uid)
        out[3, i] = slots.code(slot) if slot and not bare else -1
        out[4, i] = processes.code(str(out[2, i]), container, label(ls, mapped.pid), slot, pod if bare else "")
        out[5, i] = replicas.code(ls.get(book.replica_label, "") if book.replica_label else "")
    return tuple(out)
