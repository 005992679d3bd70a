"""What exporters say and how: their metrics, scrapes, ways to name pods, rows that repeat, and replicas."""

import fnmatch
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chargeback import exporters
from chargeback.config import MetricLabels, Profile
from chargeback.doctor.findings import Exporter, Honouring, Notes, Repeated, Replicas, Scrape, counted, some
from chargeback.doctor.look import Look
from chargeback.evidence.collect import KSM
from chargeback.evidence.readings import label
from chargeback.sources import Labels, Windows

Workload = tuple[str, str, str, str]
"""namespace, pod, container and slot."""
_COARSE = 60_000
_TARGET = {"instance", "job", "endpoint", "service", "container"}
_CLUSTERS = ("cluster", "cluster_name", "k8s_cluster", "k8s_cluster_name")


@dataclass(frozen=True)
class Heard:
    """A metric of an exporter as it was found: its labels' mapping, and what workload each series names."""

    profile: Profile
    metric: str
    mapped: MetricLabels
    found: Windows
    workloads: list[Workload | None]

    def device(self, series: int) -> tuple[str, str]:
        """UUID and instance of a series."""
        uuid = label(self.found.labels[series], self.mapped.gpu)
        known = uuid.startswith(("GPU-", "MIG-")) or not uuid
        return (uuid if known else f"GPU-{uuid}"), label(self.found.labels[series], self.mapped.gpu_instance)


def heard(look: Look) -> list[Heard]:
    """Every metric that was found, exporter by exporter."""
    out = []
    for profile in look.profiles:
        for name in dict.fromkeys(exporters.metric_names(profile)):
            found = look.series.get(name)
            mapped = _mapping(profile, name)
            if found and mapped:
                globs = look.job.config.system_pods
                out.append(Heard(profile, name, mapped, found, _workloads(found.labels, mapped, globs)))
    return out


def _mapping(profile: Profile, metric: str) -> MetricLabels | None:
    if profile.process_memory and metric in profile.process_memory.metric:
        return profile.process_memory.labels
    return profile.device_memory.labels if profile.device_memory else None


def _workloads(labels: list[Labels], mapped: MetricLabels, system: tuple[str, ...]) -> list[Workload | None]:
    """The workload of each series; none where it names no pod, a system pod, or only the exporter's own."""
    own = {(ls.get("namespace", ""), ls["pod"]) for ls in labels if ls.get("exported_pod") and ls.get("pod")}
    out: list[Workload | None] = []
    for ls in labels:
        pod = (label(ls, mapped.namespace), label(ls, mapped.pod))
        bare = not pod[1] or (pod in own and not ls.get("exported_pod"))
        bare = bare or any(fnmatch.fnmatchcase("/".join(pod), glob) for glob in system)
        out.append(None if bare else (*pod, label(ls, mapped.container), label(ls, mapped.slot)))
    return out


def found_exporters(look: Look, all_heard: list[Heard], notes: Notes) -> tuple[list[Exporter], list[str]]:
    """The exporters that report, and the names of those that do not."""
    inventory = look.text("inventory", "exporter", "node", "gpu_uuid", "gpu_instance_id")
    out, absent = [], []
    for profile in look.profiles:
        mine = [h for h in all_heard if h.profile.name == profile.name]
        rows = [r[1:] for r in inventory if r[0] == profile.name]
        if not mine and not rows:
            absent.append(profile.name)
            continue
        metrics = tuple(sorted(h.metric for h in mine))
        missing = () if look.in_store else _missing_roles(profile, set(metrics))
        out.append(
            Exporter(
                profile.name,
                metrics,
                missing,
                len({r[0] for r in rows}),
                len({r[1] for r in rows}),
                len(rows),
                sum(len(h.found.labels) for h in mine),
            )
        )
        _tell_roles(profile, missing, notes)
        if "" in {r[0] for r in rows}:
            notes.warn(
                "no-node", f"{profile.name}: series name no node, so nobody can be charged for their GPUs",
                "relabel the scrape so that a label `node` holds the Kubernetes node's name",
            )  # fmt: skip
    if look.job.config.exporters != "auto" and (gone := sorted(absent)):
        notes.warn("exporter-missing", f"configured, but without a sample: {', '.join(gone)}", "see that it is scraped")
    return out, sorted(absent)


def _missing_roles(profile: Profile, metrics: set[str]) -> tuple[str, ...]:
    device = profile.device_memory
    if device is None:
        return ()
    here = {r for r in ("used", "free", "total") if (m := getattr(device, r)) and metrics & set(m.metric)}
    missing = [] if "used" in here or device.used is None else ["used"]
    if "total" not in here and not {"used", "free"} <= here and (device.free or device.total):
        missing.append("free or total")
    if device.activity and not metrics & {n for m in device.activity for n in m.metric}:
        missing.append("activity")
    return tuple(missing)


def _tell_roles(profile: Profile, missing: tuple[str, ...], notes: Notes) -> None:
    device = profile.device_memory
    if device is None:
        return
    names = {role: m.metric[0] for role in ("used", "free", "total") if (m := getattr(device, role))}
    if "used" in missing:
        notes.warn(
            "role-missing", f"{profile.name} does not export the memory in use", f"have it export {names['used']}"
        )
    if "free or total" in missing:
        notes.warn(
            "capacity-from-book",
            f"{profile.name} exports neither free nor total memory: capacity comes from the price book",
            f"have it export {names.get('free') or names['total']}, or write gpu_memory_gib into the book",
        )
    if "activity" in missing:
        notes.hint(
            "role-missing",
            f"{profile.name} exports no activity: reserved but idle memory is not recognised",
            f"have it export {' or '.join(n for m in device.activity for n in m.metric)}",
        )


def scrapes(look: Look, notes: Notes) -> list[Scrape]:
    """W3 by exporter; those over a minute are reported."""
    every = _intervals(look)
    wanted = {p.name for p in look.profiles} | {KSM}
    out = []
    for name in sorted({family for family, _ in every} & wanted):
        by_node = {node: ms for (family, node), ms in every.items() if family == name}
        common = min(Counter(by_node.values()).items(), key=lambda kv: (-kv[1], kv[0]))[0]
        others = {n: ms / 1000 for n, ms in sorted(by_node.items()) if ms != common}
        out.append(Scrape(name, common / 1000, len(by_node), others))
        coarse = {n: ms for n, ms in by_node.items() if ms > _COARSE}
        if coarse and name != KSM:
            notes.warn(
                "coarse-scrape",
                f"{name} is scraped every {_spread(coarse)} on {counted(len(coarse), 'node')} ({some(coarse)}): "
                "jobs shorter than a scrape leave no trace",
                "scrape_interval: 30s for this job",
            )
    return out


def _intervals(look: Look) -> dict[tuple[str, str], int]:
    """W3, as measured: by exporter and node the most frequent distance between samples in ms; ties: the shorter."""
    often: Counter[tuple[str, str, int]] = Counter()
    for r in look.rows("intervals"):
        often[str(r["family"]), str(r["node"]), int(str(r["distance_ms"]))] += int(str(r["count"]))
    ranked = sorted(often.items(), key=lambda kv: (kv[1], -kv[0][2]))
    return {(family, node): distance for (family, node, distance), _ in ranked}


def _spread(by_node: dict[str, int]) -> str:
    low, high = min(by_node.values()) / 1000, max(by_node.values()) / 1000
    return f"{low:g} s" if low == high else f"{low:g} to {high:g} s"


def honouring(look: Look, all_heard: list[Heard], notes: Notes) -> list[Honouring]:
    """How series name their pods, exporter by exporter, and kube-state-metrics."""
    counts: dict[str, Counter[str]] = {}
    for h in all_heard:
        of = counts.setdefault(h.profile.name, Counter())
        for ls, workload in zip(h.found.labels, h.workloads, strict=True):
            of["renamed" if ls.get("exported_pod") else "plain" if workload else "none"] += 1
    info = look.hourly("kube_pod_info", ["namespace", "pod", "exported_namespace", "exported_pod"])
    if info:
        counts[KSM] = Counter("renamed" if ls.get("exported_pod") else "plain" for ls in info)
    out = []
    for name, of in counts.items():
        out.append(Honouring(name, sum(of.values()), of["renamed"], of["plain"], of["none"]))
        if of["renamed"]:
            both = f", {of['plain']:,} in `pod`: both are read, series by series" if of["plain"] else "; that is read"
            notes.hint(
                "label-honouring", f"{name}: {of['renamed']:,} series name the pod in `exported_pod`{both}",
                f"honorLabels: true in the ServiceMonitor of {name}",
            )  # fmt: skip
    return out


def repeated(look: Look, all_heard: list[Heard], notes: Notes) -> list[Repeated]:
    """M2: devices whose rows by pod repeat the device's value, with what they would add up to."""
    every = _intervals(look)
    homes = {(e, g): n for e, n, g in look.text("inventory", "exporter", "node", "gpu_uuid")}
    out = []
    for h in all_heard:
        device = h.profile.device_memory
        if not (device and device.used and device.pod_rows == "copies" and h.metric in device.used.metric):
            continue
        for (uuid, instance), windows in _by_device(h, look.cluster.source.replica_label).items():
            node = homes.get((h.profile.name, uuid), "")
            step = every.get((h.profile.name, node), 0)
            full = look.job.config.window // step if step else 0
            sums = [_adds_up(rows, full) for rows in windows.values()]
            steady = [s for s in sums if s[0] == 100 * s[2]]  # no pod came or went in the window
            best = max(steady if max(steady, default=(0,))[0] > 105 else sums, default=(0, 0, 0))
            if best[0] > 105:
                where = "/".join(p for p in (node, uuid, instance) if p)
                out.append(Repeated(where, h.metric, best[1], best[2], best[0]))
    out.sort(key=lambda r: (-r.percent, r.device))
    if out:
        worst = out[0]
        many = f"; {len(out) - 1:,} more devices have such rows" if len(out) > 1 else ""
        pods = "one pod shows" if worst.pods == 1 else f"{_word(worst.pods)} pods show"
        notes.hint(
            "device-level-duplicates",
            f"{pods} {worst.percent} % of one GPU ({worst.device}): these rows cannot be added, "
            f"and are read once{many}",
        )
    return out


def _by_device(h: Heard, replica_label: str | None) -> dict[tuple[str, str], dict[int, dict[Workload | None, int]]]:
    """By device and window: samples of each workload's row (None: the device's own), the fullest where it is there
    more than once.
    """
    out: dict[tuple[str, str], dict[int, dict[Workload | None, int]]] = {}
    f = h.found
    for series, window, count in zip(f.series.tolist(), f.window.tolist(), f.count.tolist(), strict=True):
        replica = f.labels[series].get(replica_label or "", "")
        rows = out.setdefault((*h.device(series)[:1], h.device(series)[1]), {}).setdefault(window, {})
        key = h.workloads[series]
        rows[key] = max(rows.get(key, 0), count) if replica or key in rows else count
    return out


def _adds_up(rows: dict[Workload | None, int], full: int) -> tuple[int, int, int]:
    """(percent, pods, rows) of rows that repeat one value; nothing where the device has a row of its own (4.8.2)."""
    named = {k: n for k, n in rows.items() if k}
    if None in rows or not named:
        return 0, 0, 0
    scrapes_ = max(full, *named.values())
    return round(100 * sum(named.values()) / scrapes_), len({k[:2] for k in named}), len(named)


def _word(number: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[number] if number < len(words) else str(number)


def replicas(look: Look, all_heard: list[Heard], notes: Notes) -> Replicas:
    """M7: the configured label's values, and series that are there twice without one that tells why."""
    configured = look.cluster.source.replica_label or ""
    values = {v for h in all_heard for ls in h.found.labels if configured and (v := ls.get(configured))}
    if configured and all_heard and not values:
        notes.warn(
            "replica-duplicates", f"source.replica_label is {configured}, which no series has",
            "correct the name, or leave it out",
        )  # fmt: skip
    doubled, differ = 0, Counter[str]()
    for h in all_heard:
        for group in _doubles(h, configured):
            doubled += len(group)
            every = {n for i in group for n in h.found.labels[i]}
            differ.update(n for n in every if len({h.found.labels[i].get(n, "") for i in group}) > 1)
    names = tuple(sorted(differ, key=lambda n: (-differ[n], n)))
    if doubled:
        target = set(names) <= _TARGET
        notes.warn(
            "replica-duplicates",
            f"{doubled:,} series are there more than once and differ only in {', '.join(names[:4]) or 'nothing'}",
            "an exporter is scraped by two jobs: drop one"
            if target
            else f"source.replica_label: {names[0]}, if that label tells replicas apart",
        )
    for name in _CLUSTERS:
        seen = {v for h in all_heard for ls in h.found.labels if (v := ls.get(name))}
        if len(seen) > 1 and name != look.cluster.source.cluster_label:
            notes.warn(
                "several-clusters", f"series have {len(seen)} values of the label {name} ({some(seen)})",
                f"source.cluster_label: {name}, and one entry of `clusters` for each",
            )  # fmt: skip
    return Replicas(configured, tuple(sorted(values)), doubled, names)


def _doubles(h: Heard, replica_label: str) -> Iterator[list[int]]:
    """Series of one subject that report in the same windows, at least two where there are two."""
    mapped = {n for _, names in h.mapped for n in names}
    mapped |= {f"exported_{n}" for n in mapped} | {replica_label} | set(_CLUSTERS)
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for i, ls in enumerate(h.found.labels):
        key = tuple(sorted((n, v) for n, v in ls.items() if n in mapped and (h.workloads[i] or n not in _own(h))))
        groups.setdefault(key, []).append(i)
    bounds = np.searchsorted(h.found.series, np.arange(len(h.found.labels) + 1))
    for group in groups.values():
        if len(group) < 2:
            continue
        windows = Counter(w for i in group for w in h.found.window[bounds[i] : bounds[i + 1]].tolist())
        together = sum(n > 1 for n in windows.values())
        if together >= min(2, len(windows)):
            yield group


def _own(h: Heard) -> set[str]:
    """Labels that name the exporter's own pod where a series names no workload."""
    return {n for names in (h.mapped.namespace, h.mapped.pod, h.mapped.container) for n in names}
