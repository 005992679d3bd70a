"""The series of the example month, as Prometheus would hold them: what `cluster.py` says, as arrays.

State is known by whole minutes. GPU exporters are scraped every minute, kube-state-metrics every second one, each
target at a moment of its own.
"""

import numpy as np
from numpy.typing import NDArray

from chargeback.demo.cluster import (
    BLANK_DEVICE,
    DAY,
    FIRST,
    GAPS,
    HOST_PROCESSES,
    HOUR,
    LAST,
    MINUTE,
    NAMESPACES,
    SECOND,
    STORY,
    Device,
    Node,
    Pod,
)
from chargeback.sources import Labels, Samples

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
Mask = NDArray[np.bool_]

MIB = 2**20
GPU_SCRAPE, KSM_SCRAPE = MINUTE, 2 * MINUTE
MINUTES: Times = np.arange(FIRST, LAST, GPU_SCRAPE)
KSM_TIMES: Times = np.arange(FIRST, LAST, KSM_SCRAPE) + 11 * SECOND
LOADING = 2 * MINUTE  # from a pod's start until its process has GPU memory
BLANK = 2147483632.0  # what DCGM says where there is no value


def of(nodes: list[Node], pods: list[Pod], rng: np.random.Generator) -> dict[str, Samples]:
    """Samples by metric of a cluster with these nodes and pods."""
    held = _Held()
    for node in nodes:
        _gpu_exporters(held, node, [p for p in pods if p.node == node.name], rng)
    _kube_state_metrics(held, nodes, pods)
    return held.all()


class _Held:
    """Series as they are made, in pieces."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[tuple[tuple[str, str], ...], list[tuple[Times, Floats]]]] = {}

    def add(self, metric: str, labels: Labels, time: Times, value: Floats | float) -> None:
        """Samples of a series; those of later calls for it must be later ones. Empty labels are none."""
        if time.size:
            values = np.broadcast_to(np.asarray(value, np.float64), time.shape)
            key = tuple((k, v) for k, v in labels.items() if v)
            self._pieces.setdefault(metric, {}).setdefault(key, []).append((time, values))

    def all(self) -> dict[str, Samples]:
        return {metric: self._one(self._pieces.pop(metric)) for metric in sorted(self._pieces)}

    @staticmethod
    def _one(series: dict[tuple[tuple[str, str], ...], list[tuple[Times, Floats]]]) -> Samples:
        sizes = [sum(t.size for t, _ in pieces) for pieces in series.values()]
        return Samples(
            [dict(labels) for labels in series],
            np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
            np.concatenate([t for pieces in series.values() for t, _ in pieces]),
            np.concatenate([v for pieces in series.values() for _, v in pieces]),
        )


# What the GPU exporters of a node say


def _gpu_exporters(held: _Held, node: Node, pods: list[Pod], rng: np.random.Generator) -> None:
    minutes = MINUTES[(node.start <= MINUTES) & (node.end > MINUTES)]
    processes: list[list[tuple[Labels, Mask, Floats]]] = [[] for _ in node.devices]
    active = np.zeros((len(node.devices), minutes.size))
    for pod in pods:
        alive = (pod.start + LOADING <= minutes) & (pod.stopped > minutes)
        activity, filled = _load(pod, minutes[alive], rng)
        for place, _ in pod.places:
            active[place, alive] += activity * rng.uniform(0.97, 1.0, activity.size)
            for nth in range(pod.processes):
                who = {"pid": _pid(pod.uid, place, nth)} | _pod_labels(pod) | {"pod_uid": pod.uid}
                processes[place].append((who, alive, filled * (pod.gib / pod.processes * 1024 * MIB)))
    for host in HOST_PROCESSES:
        if host.node == node.name:
            alive = (host.start <= minutes) & (host.end > minutes)
            processes[host.device].append(({"pid": "4711"}, alive, np.full(int(alive.sum()), host.gib * 1024 * MIB)))

    moments = {name: int(rng.integers(0, 55)) * SECOND for name in ("dcgm", "process")}
    heard = {name: _heard(node, name, minutes) for name in moments}
    for at, device in enumerate(node.devices):
        context = int(rng.integers(280, 320))
        total = np.zeros(minutes.size)
        labels = _device_labels(node, device)
        for who, alive, exact in processes[at]:
            size = np.floor(exact)
            total[alive] += size
            said = heard["process"][alive]
            where = {"UUID": device.uuid, "Hostname": node.name}
            where |= {"GPU_I_ID": device.instance} if device.instance else {}
            time = minutes[alive][said] + moments["process"]
            held.add("gpu_process_memory_used_bytes", where | who, time, size[said])
        used = np.floor(np.where(total > 0, total / MIB + context, 4.0))
        values = {
            "DCGM_FI_DEV_FB_USED": used,
            "DCGM_FI_DEV_FB_FREE": device.total - device.reserved - used,
            "DCGM_FI_DEV_FB_RESERVED": np.full(minutes.size, float(device.reserved)),
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": np.round(np.clip(active[at], 0.0, 1.0), 4),
        }
        if (node.name, at) == BLANK_DEVICE:
            blank = (STORY["blanks"].start <= minutes) & (STORY["blanks"].end > minutes)
            values["DCGM_FI_DEV_FB_USED"] = np.where(blank, BLANK, used)
        for row, mask in _rows(node, at, pods, minutes):
            said = mask & heard["dcgm"]
            for metric, value in values.items():
                held.add(metric, labels | row, minutes[said] + moments["dcgm"], value[said])


def _rows(node: Node, device: int, pods: list[Pod], minutes: Times) -> list[tuple[Labels, Mask]]:
    """The pod labels that dcgm-exporter puts on this device's series, and when; without a pod, none.

    On a shared device each pod has a copy of the device's value. A finished pod is named until it is deleted.
    """
    rows: dict[tuple[tuple[str, str], ...], Mask] = {}
    named = np.zeros(minutes.size, bool)
    for pod in pods:
        for place, slot in pod.places:
            if place == device:
                here = (pod.start <= minutes) & (pod.end > minutes)
                labels = _pod_labels(pod) | ({"vgpu": str(slot)} if node.replicas > 1 else {})
                key = tuple(labels.items())
                rows[key] = rows.get(key, np.zeros(minutes.size, bool)) | here
                named |= here
    return [*((dict(key), mask) for key, mask in rows.items()), ({}, ~named)]


def _heard(node: Node, exporter: str, minutes: Times) -> Mask:
    heard = np.ones(minutes.size, bool)
    for gap in GAPS:
        if gap.node == node.name and exporter in gap.exporters:
            heard &= (gap.start > minutes) | (gap.end <= minutes)
    return heard


def _load(pod: Pod, when: Times, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A pod's activity (0 to 1), and the part of its memory that is filled, at these minutes."""
    hour, weekday = when % DAY / HOUR, (when // DAY + 3) % 7
    noise = rng.normal(0.0, 0.04, when.size)
    office = np.where(weekday < 5, np.sin(np.pi * np.clip((hour - 8) / 10, 0.0, 1.0)), 0.0)
    filling = np.minimum(1.0, (when - pod.start) / (8 * MINUTE))
    match pod.load:
        case "train":  # runs of half a day, more of them in the working week
            on = _coin(when, 12 * HOUR, rng) < np.where(weekday < 5, 0.34, 0.14)
            return np.where(on, np.clip(pod.peak + noise, 0, 1), 0.0), filling
        case "batch":
            return np.clip(pod.peak + noise, 0, 1), filling
        case "serve":  # users come by day, and fewer of them at weekends
            traffic = (0.5 - 0.5 * np.cos(2 * np.pi * (hour - 3) / 24)) * np.where(weekday < 5, 1.0, 0.5)
            return np.clip(pod.peak * (0.06 + 0.94 * traffic) + noise / 4, 0, 1), filling * (0.88 + 0.12 * traffic)
        case "notebook":  # somebody tries something for 20 min, now and then, in working hours
            on = (_coin(when, 20 * MINUTE, rng) < 0.45) & (office > 0)
            return np.where(on, np.clip(pod.peak + noise, 0, 1), 0.0), filling * (
                0.4 + 0.6 * _coin(when, 3 * HOUR, rng)
            )
        case "none":
            return np.zeros(when.size), np.ones(when.size)


def _coin(when: Times, block: int, rng: np.random.Generator) -> Floats:
    """A number from 0 to 1 for each block of time."""
    return rng.random((LAST - FIRST) // block + 2)[when // block - FIRST // block]


def _pid(uid: str, place: int, nth: int) -> str:
    return str(1000 + int(uid[:6], 16) % 30000 + 10 * place + nth)


def _pod_labels(pod: Pod) -> Labels:
    return {"namespace": pod.namespace, "pod": pod.name, "container": "main"}


def _device_labels(node: Node, device: Device) -> Labels:
    labels = {
        "gpu": str(device.gpu),
        "UUID": device.uuid,
        "device": f"nvidia{device.gpu}",
        "modelName": device.model,
        "Hostname": node.name,
    }
    return labels | ({"GPU_I_PROFILE": device.profile, "GPU_I_ID": device.instance} if device.instance else {})


# What kube-state-metrics says


def _kube_state_metrics(held: _Held, nodes: list[Node], pods: list[Pod]) -> None:
    for node in nodes:
        time = _between(node.start, node.end)
        held.add("kube_node_info", {"node": node.name, "provider_id": node.provider_id}, time, 1.0)
        held.add("kube_node_labels", {"node": node.name} | _node_labels(node), time, 1.0)
    for namespace, team in NAMESPACES.items():
        labels = {"namespace": namespace, "label_kubernetes_io_metadata_name": namespace}
        held.add("kube_namespace_labels", labels | ({"label_team": team} if team else {}), KSM_TIMES, 1.0)
    for pod in pods:
        _pod_series(held, pod)
    _owner_series(held, pods)


def _pod_series(held: _Held, pod: Pod) -> None:
    which = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
    made = {"created_by_kind": pod.owner[0], "created_by_name": pod.owner[1]}
    for node, time in (("", _between(pod.created, pod.start)), (pod.node, _between(pod.start, pod.end))):
        held.add("kube_pod_info", which | {"node": node} | made, time, 1.0)
        request = {"container": "main", "node": node, "resource": pod.resource, "unit": "integer"}
        held.add("kube_pod_container_resource_requests", which | request, time, float(len(pod.places)))

    listed = _between(pod.created, pod.end)
    running = pod.start + MINUTE
    phases = {"Running": (running <= listed) & (pod.stopped > listed)}
    if pod.created < pod.start:
        phases["Pending"] = listed < running
    if pod.outcome:
        phases[pod.outcome] = listed >= pod.stopped
    for phase, at in phases.items():
        held.add("kube_pod_status_phase", which | {"phase": phase}, listed, at.astype(np.float64))

    change, later = pod.relabelled or (pod.end, {})
    app = {"app": pod.owner[1].split("-")[0]}
    for time, labels in ((_between(pod.created, change), pod.labels), (_between(change, pod.end), later)):
        held.add("kube_pod_labels", which | {f"label_{k}": v for k, v in (app | labels).items()}, time, 1.0)


def _owner_series(held: _Held, pods: list[Pod]) -> None:
    """Jobs are listed for as long as their pods; a ReplicaSet stays, as history of its Deployment."""
    lives: dict[tuple[str, tuple[str, str], tuple[str, str]], tuple[int, int]] = {}
    for pod in pods:
        start, end = lives.get(key := (pod.namespace, pod.owner, pod.made_by), (LAST, FIRST))
        lives[key] = min(start, pod.created), max(end, pod.end)
    for (namespace, (kind, name), (maker_kind, maker)), (start, end) in lives.items():
        which = {"namespace": namespace, "job_name" if kind == "Job" else "replicaset": name}
        made = {"owner_kind": maker_kind, "owner_name": maker, "owner_is_controller": "true" if maker else ""}
        if kind in ("Job", "ReplicaSet"):
            metric = "kube_job_owner" if kind == "Job" else "kube_replicaset_owner"
            held.add(metric, which | made, _between(start, end if kind == "Job" else LAST), 1.0)


def _node_labels(node: Node) -> Labels:
    shared = node.replicas > 1
    labels = {
        "label_node_kubernetes_io_instance_type": node.instance_type,
        "label_topology_kubernetes_io_region": node.region,
        "label_topology_kubernetes_io_zone": node.zone,
        "label_nvidia_com_gpu_product": node.card.model.replace(" ", "-") + ("-SHARED" if shared else ""),
        "label_nvidia_com_gpu_count": str(node.gpus),
        "label_nvidia_com_gpu_replicas": str(node.replicas),
        "label_nvidia_com_gpu_sharing_strategy": "time-slicing" if shared else "none",
        "label_nvidia_com_mig_strategy": "mixed" if node.mig else "single",
    }
    return labels if node.option == "owned" else labels | {"label_karpenter_sh_capacity_type": node.option}


def _between(start: int, end: int) -> Times:
    return KSM_TIMES[(start <= KSM_TIMES) & (end > KSM_TIMES)]
