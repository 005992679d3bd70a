"""The frame of a day's run: what a cluster is in the period, and how the day's devices and windows are numbered."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from chargeback.config import Config
from chargeback.inventory import MigWeights, NodeFacts, NodeHistory
from chargeback.ownership import Owners
from chargeback.pods import PodHistory, Requests
from chargeback.prices import Prices
from chargeback.problems import Problems
from chargeback.tables import Ints, Key, keys, times

DEVICE = ("node", "gpu_uuid", "gpu_instance_id")
POD = ("namespace", "pod", "pod_uid")


@dataclass(frozen=True)
class Before:
    """A GPU's devices as last reported before a day: the window, and (instance, model, profile) of each."""

    window: int
    devices: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Cluster:
    """What a period's rules need to know of a cluster beside a day's rows.

    `lives`: by node [start, end) in ms (C1). `seen_at_once`: by node, GPUs (C5). `intervals`: by (exporter, node)
    in ms (W3). Ranks: M5. `names_pods`: whether an exporter can name pods (M6). `pod_row_exporters`: those that show
    memory by pod in rows of the device's own metric. `only_processes`: devices that no
    exporter reports at device level in the period (M1). `before`: by a day's first window, then GPU.
    """

    name: str
    config: Config
    prices: Prices
    mig: MigWeights
    nodes: NodeHistory
    lives: dict[str, list[tuple[int, int]]]
    seen_at_once: dict[str, int]
    intervals: dict[tuple[str, str], int]
    device_rank: dict[str, int]
    process_rank: dict[str, int]
    names_pods: dict[str, bool]
    pod_row_exporters: set[str]
    only_processes: set[Key]
    before: dict[int, dict[tuple[str, str], Before]]
    pods: PodHistory
    requests: Requests
    owners: Owners


class Frame:
    """A day's numbering. Column 0 stands for what was last known before; columns `[first, last)` are charged.

    Devices, GPUs (node, UUID) and nodes are sorted by name, so that numbers give the canonical order.
    """

    def __init__(self, cluster: Cluster, tables: dict[str, pa.Table], first: int, last: int, lead: int) -> None:
        """`tables`: rows of windows `[first - lead, last)`; charges are for `[first, last)`, windows from the epoch."""
        self.cluster, self.config, self.tables = cluster, cluster.config, tables
        self.w = cluster.config.window
        self.reach = cluster.config.max_gap // self.w
        self.base = first - lead - 1
        self.first, self.last, self.width = first - self.base, last - self.base, last - self.base
        self.problems = Problems()
        windows = np.array([self.base + 1, self.base + self.width - 1])
        self.requests = cluster.requests.between(*cluster.pods.last_report(windows).tolist())
        self.before = cluster.before.get(first, {})
        code, found = {}, {}
        for name in ("devices", "consumers", "holders"):
            code[name], found[name] = keys(tables[name], DEVICE)
        earlier = [(*gpu, instance) for gpu, b in self.before.items() for instance, _, _ in b.devices]
        alone = [d for d in found["consumers"] if d in cluster.only_processes]
        self.devices: list[Key] = sorted({*found["devices"], *alone, *earlier})
        self.number = {d: i for i, d in enumerate(self.devices)}
        self._code, self._found = code, found
        self.nodes = sorted({d[0] for d in self.devices} | set(cluster.lives))
        self.node_number = {n: i for i, n in enumerate(self.nodes)}
        self.gpus = sorted({d[:2] for d in self.devices})
        gpu_number = {g: i for i, g in enumerate(self.gpus)}
        self.node_of = np.array([self.node_number[d[0]] for d in self.devices], np.int64)
        self.gpu_of = np.array([gpu_number[d[:2]] for d in self.devices], np.int64)
        self.node_of_gpu = np.array([self.node_number[g[0]] for g in self.gpus], np.int64)
        self.is_slice = np.array([bool(d[2]) for d in self.devices], bool)
        names: set[str] = set()
        for name in ("devices", "consumers"):
            names |= set(tables[name]["exporter"].unique().to_pylist())
        self.exporters = sorted(names)

    def device(self, table: str) -> Ints:
        """Device numbers of a table's rows, -1 for a device that is none of the day's."""
        code = self._code[table]
        return np.array([self.number.get(d, -1) for d in self._found[table]] or [-1], np.int64)[code]

    def column(self, table: str) -> Ints:
        """Columns of a table's rows."""
        return times(self.tables[table]["window"]) // self.w - self.base

    def exporter(self, table: str) -> Ints:
        """Exporter numbers of a table's rows."""
        code, found = keys(self.tables[table], ("exporter",))
        return np.array([self.exporters.index(e) for (e,) in found] or [0], np.int64)[code]

    def rank(self, rank: dict[str, int]) -> Ints:
        """By exporter its rank (M5)."""
        return np.array([rank[e] for e in self.exporters] or [0], np.int64)

    def interval(self, exporter: Ints, device: Ints) -> Ints:
        """Scrape interval in ms of exporters on the nodes of devices, 0 where it is not known (W3)."""
        every = self.cluster.intervals
        table = np.array([[every.get((e, n), 0) for n in self.nodes] for e in self.exporters] or [[0]], np.int64)
        return table[exporter, self.node_of[device]] if exporter.size else exporter

    def facts(self, node: str) -> NodeFacts:
        """What a node is at the end of the day."""
        row = self.cluster.nodes.rows(node, np.array([self.last - 1 + self.base]))[0]
        return self.cluster.nodes.facts(node, int(row))

    def fact_rows(self) -> Ints:
        """(nodes, width): places of the nodes' facts in each window."""
        windows = np.arange(self.width) + self.base
        rows = [self.cluster.nodes.rows(n, windows) for n in self.nodes]
        return np.array(rows, np.int64).reshape(len(self.nodes), self.width)

    def shown(self, device: int) -> str:
        """A device for people: node/UUID/instance."""
        return "/".join(p for p in self.devices[device] if p)

    def find(self, code: str, subjects: list[str], at: Ints, text: str, severity: str = "warning") -> None:
        """Records a finding for each subject that `at` names, with how often it does."""
        for subject, count in zip(*(a.tolist() for a in np.unique(at, return_counts=True)), strict=True):
            self.problems.add(code, subjects[subject], text, count=count, severity=severity)
