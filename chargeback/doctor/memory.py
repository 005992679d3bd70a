"""How memory by pod can be had, device by device, and what would give more of it."""

import itertools
import re
from collections import Counter, defaultdict
from typing import Any

from chargeback.doctor.findings import MemoryByPod, Notes, counted, some
from chargeback.doctor.heard import Heard
from chargeback.doctor.look import Look, read_metrics
from chargeback.evidence.readings import label

Device = tuple[str, str, str]
_PAIRS = 8
_WAYS = ("measured", "one-pod", "slots", "pid-only", "request", "free")
VIRTUAL = (
    "dcgm-exporter 4.8.2 or later with KUBERNETES_VIRTUAL_GPUS=true, and hostPID: true in its DaemonSet; "
    "or an exporter of memory by process that names pods (see `exporters` in docs/configuration.md)"
)
_HOST_PID = "hostPID: true in the DaemonSet of dcgm-exporter, so that it sees the processes of pods"
_KUBERNETES = "DCGM_EXPORTER_KUBERNETES=true in dcgm-exporter, with the node's /var/lib/kubelet/pod-resources mounted"
_PIDS = "pods' labels joined to the pids before they are stored; or "
_LOOKS_LIKE = re.compile(r"(gpu|cuda|accelerator|vgpu|nvidia).*(mem|vram)|vram|(mem|vram).*(gpu|vgpu)", re.IGNORECASE)
_NEVER = {"accelerator_memory_used_bytes"}  # a utilisation in %, whatever its name


def memory_by_pod(look: Look, all_heard: list[Heard], notes: Notes) -> MemoryByPod:
    """Which way each device of the look goes, and the worst of them."""
    named, nameless = _consumers(look)
    holders = _holders(look)
    blind = _blind(look, named)
    named = {d: names for d, names in named.items() if d not in blind}
    ways = {d: _way(d, named, nameless, holders) for d in {d for _, d in _inventory(look)}}
    unplaced = _unplaced(look, holders)
    for node, pods in unplaced.items():
        free = [d for d in sorted(ways) if d[0] == node and ways[d] == "free"]
        asked = sum(pods.values())
        ways |= dict.fromkeys(free[:asked], "request") if asked <= len(free) else dict.fromkeys(free, "slots")
    counts = Counter(ways.values())
    sources = tuple(sorted({e for names in named.values() for e in names}))
    how, why, change = _verdict(look, counts, sources, blind, unplaced, all_heard)
    if how in ("estimated", "impossible") and not blind:
        notes.warn("no-process-data", why, change)
    if counts["request"]:
        notes.hint("no-pod-labels", f"no series names a pod on {counted(counts['request'], 'device')}", _KUBERNETES)
    _tell_podless(look, nameless, notes)
    _tell_unexplained(look, {d for d, way in ways.items() if way == "free" and not nameless.get(d)}, notes)
    if blind:
        notes.warn(
            "no-process-data",
            f"rows by pod are all 0 while memory is in use, on {counted(len(blind), 'device')} ({_shown(blind)}): "
            "that is no process data, not idle pods",
            _HOST_PID,
        )
    _tell_sharing(look, how, sources, notes)
    _tell_unrequested(look, holders, notes)
    _tell_uids(all_heard, notes)
    if how != "exact":
        _tell_unread(look, notes)
    return MemoryByPod(how, why, sources, {w: counts[w] for w in _WAYS if counts[w]}, change)


def _inventory(look: Look) -> list[tuple[str, Device]]:
    return [(e, (n, g, i)) for e, n, g, i in look.text("inventory", "exporter", "node", "gpu_uuid", "gpu_instance_id")]


def _consumers(look: Look) -> tuple[dict[Device, set[str]], dict[Device, set[str]]]:
    """By device: exporters whose rows name a pod, and those whose rows name none."""
    named: dict[Device, set[str]] = defaultdict(set)
    nameless: dict[Device, set[str]] = defaultdict(set)
    for node, gpu, instance, exporter, pod in look.text(
        "consumers", "node", "gpu_uuid", "gpu_instance_id", "exporter", "pod"
    ):
        (named if pod else nameless)[node, gpu, instance].add(exporter)
    return named, nameless


def _holders(look: Look) -> dict[Device, dict[Any, set[tuple[str, str]]]]:
    """By device and window: pods that rows name and that have not ended."""
    ended = {(r["namespace"], r["pod"]): r["first"] for r in look.rows("ended")}
    out: dict[Device, dict[Any, set[tuple[str, str]]]] = defaultdict(lambda: defaultdict(set))
    for r in look.rows("holders"):
        pod, window = (str(r["namespace"]), str(r["pod"])), r["window"]
        end: Any = ended.get(pod)
        if end is None or window < end:
            out[str(r["node"]), str(r["gpu_uuid"]), str(r["gpu_instance_id"])][window].add(pod)
    return out


def _way(
    device: Device,
    named: dict[Device, set[str]],
    nameless: dict[Device, set[str]],
    holders: dict[Device, dict[Any, set[tuple[str, str]]]],
) -> str:
    if named.get(device):
        return "measured"
    by_window = holders.get(device, {})
    if _share(by_window):
        return "pid-only" if nameless.get(device) else "slots"
    return "one-pod" if by_window else "free"


def _share(by_window: dict[Any, set[tuple[str, str]]]) -> bool:
    """Whether two pods are there together in more than one window; in one alone they may follow each other."""
    together = Counter(pair for pods in by_window.values() for pair in itertools.combinations(sorted(pods)[:_PAIRS], 2))
    return max(together.values(), default=0) >= max(1, min(2, len(by_window)))


def _unplaced(
    look: Look, holders: dict[Device, dict[Any, set[tuple[str, str]]]]
) -> dict[str, dict[tuple[str, str], int]]:
    """By node: pods that asked for GPUs at the end of the look and that no series names there."""
    seen = {(d[0], p) for d, by_window in holders.items() for pods in by_window.values() for p in pods}
    seen |= {(node, (ns, pod)) for node, ns, pod in look.text("consumers", "node", "namespace", "pod")}
    nodes = {d[0] for _, d in _inventory(look)}
    over = {(r["namespace"], r["pod"]) for r in look.rows("ended")}
    rows = look.rows("requests")
    latest: Any = max((r["last"] for r in rows), default=None)  # type: ignore[type-var]
    out: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    for r in rows:
        pod, node = (str(r["namespace"]), str(r["pod"])), str(r["node"])
        if node in nodes and (node, pod) not in seen and pod not in over and r["last"] == latest:
            out[node][pod] = out[node].get(pod, 0) + int(str(r["quantity"]))
    return dict(out)


def _blind(look: Look, named: dict[Device, set[str]]) -> set[Device]:
    """Devices with memory in use whose rows by pod, of an exporter of devices, are all 0."""
    of_devices = {p.name for p in look.profiles if p.device_memory and not p.process_memory}
    sums: dict[Device, float] = defaultdict(float)
    for r in look.rows("consumers"):
        if r["pod"] and r["exporter"] in of_devices:
            device = str(r["node"]), str(r["gpu_uuid"]), str(r["gpu_instance_id"])
            sums[device] += float(str(r["container_sum_mib"] or 0))
    busy = _busy(look)
    return {d for d, total in sums.items() if not total and d in busy and named[d] <= of_devices}


def _busy(look: Look) -> set[Device]:
    """Devices with more memory in use than what the driver takes (H3)."""
    out = set()
    for r in look.rows("devices"):
        used, free = (float(str(r[c] or 0)) for c in ("used_mib", "free_mib"))
        if used > max(512, 0.02 * (used + free)):
            out.add((str(r["node"]), str(r["gpu_uuid"]), str(r["gpu_instance_id"])))
    return out


def _tell_podless(look: Look, nameless: dict[Device, set[str]], notes: Notes) -> None:
    """M6, H3: what becomes of processes without a pod."""
    can = {p.name for p in look.profiles if (p.process_labels and p.process_labels.pod) or p.device_memory}
    for name in sorted({e for names in nameless.values() for e in names}):
        devices = {d for d, names in nameless.items() if name in names}
        where = f"{name} shows processes without a pod on {counted(len(devices), 'device')} ({_shown(devices)})"
        if name in can:
            notes.warn("unattributed-memory", f"{where}: their memory is charged to the platform team")
        else:
            notes.hint("pid-only", f"{where}: it goes to the one pod there, or by slots held")


def _tell_unexplained(look: Look, free: set[Device], notes: Notes) -> None:
    if used := free & _busy(look):
        notes.warn(
            "unattributed-memory",
            f"memory is in use on {counted(len(used), 'device')} without a known pod ({_shown(used)}): it is charged "
            "to the platform team",
            f"see what runs there; if pods do: {_KUBERNETES}",
        )


def _verdict(
    look: Look,
    counts: Counter[str],
    sources: tuple[str, ...],
    blind: set[Device],
    unplaced: dict[str, dict[tuple[str, str], int]],
    all_heard: list[Heard],
) -> tuple[str, str, str]:
    """How, why, and what would change it."""
    pids = sorted({h.profile.name for h in all_heard if h.profile.process_memory and not any(h.workloads)})
    named = any(w for h in all_heard for w in h.workloads) or look.in_store
    pods = counted(sum(len(p) for p in unplaced.values()), "pod")
    shared = {way: counted(counts[way], "shared device") for way in ("slots", "pid-only")}
    cases = (
        (not counts, "unknown", "no GPU reported", ""),
        (
            counts["pid-only"], "impossible",
            f"{', '.join(pids)} shows processes without pods: memory by pod cannot be had on {shared['pid-only']}",
            _PIDS + VIRTUAL,
        ),
        (
            counts["slots"] and blind, "estimated",
            f"rows by pod show no memory: memory on {shared['slots']} is divided by slots", _HOST_PID,
        ),
        (
            counts["slots"] and not named, "estimated",
            f"no series names a pod, and {pods} ask for GPUs: memory on {shared['slots']} is divided by slots", VIRTUAL,
        ),
        (
            counts["slots"], "estimated",
            f"no exporter tells the pods on {shared['slots']} apart: memory there is divided by slots", VIRTUAL,
        ),
        (
            counts["request"], "exact",
            f"of {counted(counts['request'], 'device')} no series names the pod, but a request does", _KUBERNETES,
        ),
        (sources, "exact", f"{' and '.join(sources)} tells the memory of each pod", ""),
        (counts["one-pod"], "exact", "each GPU in use has one pod, which pays for all of it", ""),
        (True, "exact", "no GPU has a pod at this time", ""),
    )  # fmt: skip
    return next((how, why, change) for true, how, why, change in cases if true)


def _tell_sharing(look: Look, how: str, sources: tuple[str, ...], notes: Notes) -> None:
    """GPUs that are set up for sharing, though no two pods share one now."""
    shared = {str(r["node"]) for r in look.rows("node_labels") if _replicas(str(r["labels"]))}
    if shared and how == "exact" and not sources:
        notes.warn(
            "no-process-data",
            f"GPUs of {counted(len(shared), 'node')} ({some(shared)}) are set up for sharing; when pods share one, its "
            "memory is divided by slots",
            VIRTUAL,
        )


def _replicas(labels: str) -> bool:
    return any(int(n) > 1 for n in re.findall(r'"label_nvidia_com_[a-z0-9_]+_replicas":"(\d{1,6})"', labels))


def _tell_unrequested(look: Look, holders: dict[Device, dict[Any, set[tuple[str, str]]]], notes: Notes) -> None:
    """Pods that rows name on a GPU and that ask for none: guests, claims, or the exporter's own pod."""
    asked = {(ns, pod) for ns, pod in look.text("requests", "namespace", "pod")}
    listed = {(ns, pod) for ns, pod in look.text("pods", "namespace", "pod")}
    named = {p for by_window in holders.values() for pods in by_window.values() for p in pods}
    if asked and (guests := (named & listed) - asked):
        notes.warn(
            "unrequested-use",
            f"{counted(len(guests), 'pod')} named on GPUs without a request for one: "
            f"{some({'/'.join(p) for p in guests})}",
            "if it is an exporter's own pod: add it to `system_pods`, or set honorLabels: true in its ServiceMonitor",
        )


def _tell_uids(all_heard: list[Heard], notes: Notes) -> None:
    for name in sorted({h.profile.name for h in all_heard}):
        mine = [h for h in all_heard if h.profile.name == name and h.mapped.pod_uid]
        with_pod = [ls for h in mine for ls, w in zip(h.found.labels, h.workloads, strict=True) if w]
        if with_pod and not any(label(ls, mine[0].mapped.pod_uid) for ls in with_pod):
            flag = "--kubernetes-enable-pod-uid for dcgm-exporter" if name == "dcgm-exporter" else "export pod_uid"
            notes.hint("pod-uid", f"{name} names pods without their uid: a name that is used again goes by time", flag)


def _tell_unread(look: Look, notes: Notes) -> None:
    others = {m for m in look.present - read_metrics(look.profiles) - _NEVER if _LOOKS_LIKE.search(m)}
    if others:
        notes.hint(
            "unread-metrics", f"metrics that may tell of GPU memory and that no profile reads: {some(others, 6)}",
            "if one names pods, map it under `exporters` (docs/configuration.md)",
        )  # fmt: skip


def _shown(devices: set[Device]) -> str:
    return some({"/".join(p for p in d if p) for d in devices}, 3)
