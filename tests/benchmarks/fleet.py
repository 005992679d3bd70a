"""A made-up cluster of any size, and its samples as a text for a real Prometheus.

Nodes have eight GPUs each. Some nodes are time-sliced: three pods with one process each share a GPU, and the
exporter repeats its rows for each of them. On the others each pod has a GPU to itself and runs three processes in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

GPUS = 8
SHARERS = 3
REPLICAS = 4
CARD_MIB = 81_559
RESERVED_MIB = 559
MIB = 2**20
MODEL = "NVIDIA A100-SXM4-80GB"
BOX = "box.8xgpu"
TEAMS = ("search", "ads", "vision", "speech", "maps")
START = 1_741_046_400_000  # 2025-03-04
SCRAPE, KUBE_SCRAPE = 30_000, 60_000
WINDOW = 300_000
PRICES = {
    "currency": "USD",
    "source": "a benchmark",
    "as_of": "2025-01-01",
    "instances": {BOX: {"gpus": GPUS, "gpu_model": MODEL, "gpu_memory_gib": 80}},
    "prices": [{"instance_type": BOX, "per_hour": "21.957642"}],
}

Ints = NDArray[np.int64]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Gpu:
    node: str
    number: int
    uuid: str
    slots: int


@dataclass(frozen=True)
class Pod:
    """A pod on a GPU, with the pids of its processes; `slot` is its place on a shared one."""

    namespace: str
    name: str
    uid: str
    gpu: Gpu
    slot: int
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Fleet:
    """`nodes` nodes, of which one in `one_in` is time-sliced; `era` is part of the pods' names."""

    nodes: int
    one_in: int
    era: int = 0

    @cached_property
    def gpus(self) -> list[Gpu]:
        """All GPUs, node by node."""
        return [
            Gpu(name, i, f"GPU-{n:08x}-0000-4000-8000-{i:012x}", REPLICAS if n % self.one_in == 0 else 1)
            for n, name in enumerate(self.names)
            for i in range(GPUS)
        ]

    @cached_property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [f"gpu-node-{n:04}" for n in range(self.nodes)]

    @cached_property
    def pods(self) -> list[Pod]:
        """All pods, GPU by GPU."""
        out = []
        for gpu in self.gpus:
            pods = SHARERS if gpu.slots > 1 else 1
            for slot in range(pods):
                number = len(out)
                pids = tuple(20_000 + SHARERS * number + p for p in range(SHARERS // pods))
                uid = f"{number:08x}-1111-4222-8333-{self.era:012x}"
                out.append(Pod(_team(number), f"train-{number:05}-{self.era}", uid, gpu, slot, pids))
        return out


def _team(number: int) -> str:
    return TEAMS[number % len(TEAMS)]


def write_text(fleet: Fleet, path: Path, start: int, end: int) -> int:
    """The OpenMetrics text of `[start, end)` ms; gives the number of samples.

    Written a series at a time as one array, since there are millions of lines.
    """
    count = 0
    with path.open("wb") as out:
        before = ""
        for metric, labels, values in _series(fleet, (end - start) // SCRAPE):
            if metric != before:
                out.write(f"# TYPE {metric} gauge\n".encode())
                before = metric
            every = KUBE_SCRAPE if metric.startswith("kube_") else SCRAPE
            seconds = _seconds(start, end, every)
            inside = ",".join(f'{name}="{value}"' for name, value in labels.items())
            numbers = pa.array(values).cast(pa.string()) if isinstance(values, np.ndarray) else str(values)
            lines = pc.binary_join_element_wise(f"{metric}{{{inside}}}", numbers, seconds, " ")
            offsets, text = lines.buffers()[1:]
            out.write(memoryview(text)[: int(np.frombuffer(offsets, np.int32)[len(lines)])])
            count += len(lines)
        out.write(b"# EOF\n")
    return count


@lru_cache
def _seconds(start: int, end: int, every: int) -> pa.Array:
    """The times of scrapes as text, each with the end of its line."""
    return pc.binary_join_element_wise(pa.array(np.arange(start, end, every) // 1000).cast(pa.string()), "\n", "")


def _series(fleet: Fleet, samples: int) -> Iterator[tuple[str, Labels, Ints | int]]:
    """(metric, labels, values) of every series, metric by metric."""
    dice = np.random.default_rng(1)
    memory = {pid: _memory(dice, samples) for pod in fleet.pods for pid in pod.pids}
    by_gpu: dict[str, list[Pod]] = {}
    for pod in fleet.pods:
        by_gpu.setdefault(pod.gpu.uuid, []).append(pod)
    used = {
        uuid: sum((memory[pid] for pod in pods for pid in pod.pids), np.full(samples, 450))
        for uuid, pods in by_gpu.items()
    }
    for name in ("USED", "FREE", "RESERVED"):
        for pod in fleet.pods:
            mine = used[pod.gpu.uuid]
            free = CARD_MIB - RESERVED_MIB - mine
            values = {"USED": mine, "FREE": free, "RESERVED": RESERVED_MIB}[name]
            yield f"DCGM_FI_DEV_FB_{name}", _device(pod), values
    for pod in fleet.pods:
        yield "DCGM_FI_DEV_GPU_UTIL", _device(pod), np.asarray(used[pod.gpu.uuid] % 101, np.int64)
    for pod in fleet.pods:
        for pid in pod.pids:
            yield "gpu_process_memory_used_bytes", _process(pod, pid), memory[pid] * MIB
    yield from _kube(fleet)


def _memory(dice: np.random.Generator, samples: int) -> Ints:
    """What a process uses in MiB: another amount every twenty minutes or so."""
    steps = -(-samples // 40)
    return np.repeat(dice.integers(2_000, 25_000, steps), 40)[:samples]


def _scraped(node: str, by: str) -> dict[str, str]:
    return {"instance": f"{node}:9400", "job": by}


def _device(pod: Pod) -> Labels:
    gpu = pod.gpu
    return {
        "gpu": str(gpu.number), "UUID": gpu.uuid, "device": f"nvidia{gpu.number}", "modelName": MODEL,
        "Hostname": gpu.node, "container": "main", "namespace": pod.namespace, "pod": pod.name,
        **({"vgpu": str(pod.slot)} if gpu.slots > 1 else {}), **_scraped(gpu.node, "dcgm-exporter"),
    }  # fmt: skip


def _process(pod: Pod, pid: int) -> Labels:
    return {
        "Hostname": pod.gpu.node, "UUID": pod.gpu.uuid, "pid": str(pid), "namespace": pod.namespace, "pod": pod.name,
        "pod_uid": pod.uid, "container": "main", **_scraped(pod.gpu.node, "gpu-process-exporter"),
    }  # fmt: skip


def _kube(fleet: Fleet) -> Iterator[tuple[str, Labels, int]]:
    by = {"instance": "kube-state-metrics:8080", "job": "kube-state-metrics"}
    for node in fleet.names:
        yield "kube_node_info", {"node": node, "provider_id": f"example:///{node}", "kernel_version": "6.1.0", **by}, 1
    for node in sorted({g.node for g in fleet.gpus}):
        yield "kube_node_labels", {"node": node, **node_labels(fleet, node), **by}, 1
    for team in TEAMS:
        yield "kube_namespace_labels", {"namespace": team, "label_team": team, **by}, 1
    for pod in fleet.pods:
        about = {"node": pod.gpu.node, "created_by_kind": "StatefulSet", "created_by_name": workload(pod)}
        yield "kube_pod_info", {**_ids(pod), **about, **by}, 1
    for pod in fleet.pods:
        yield "kube_pod_labels", {**_ids(pod), "label_team": pod.namespace, **by}, 1
    for pod in fleet.pods:
        asked = {"node": pod.gpu.node, "container": "main", "resource": "nvidia_com_gpu", "unit": "integer"}
        yield "kube_pod_container_resource_requests", {**_ids(pod), **asked, **by}, 1
    for pod in fleet.pods:
        for phase in ("Pending", "Succeeded", "Failed", "Running", "Unknown"):
            yield "kube_pod_status_phase", {**_ids(pod), "phase": phase, **by}, int(phase == "Running")


def node_labels(fleet: Fleet, node: str) -> dict[str, str]:
    """What kube_node_labels shows of a node."""
    slots = next(g.slots for g in fleet.gpus if g.node == node)
    labels = {"label_node_kubernetes_io_instance_type": BOX, "label_topology_kubernetes_io_region": "eu-north-1"}
    return labels | ({"label_nvidia_com_gpu_replicas": str(slots)} if slots > 1 else {})


def workload(pod: Pod) -> str:
    """The StatefulSet that a pod is of: ten pods have one."""
    return f"train-{int(pod.name.split('-')[1]) // 10:04}"


def _ids(pod: Pod) -> dict[str, str]:
    return {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
