"""Nodes and devices over time: lives, types, physical GPUs and MIG slices."""

import fnmatch
import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from chargeback.config import Config
from chargeback.prices import MigCard, MigTable, Prices
from chargeback.problems import Problems
from chargeback.tables import Ints, Timeline, times

Spans = tuple[int, int]


@dataclass(frozen=True)
class NodeFacts:
    """What a node is at some time, from its labels and the overrides of the configuration."""

    instance_type: str
    region: str
    option: str
    provider_id: str
    gpu_count: int
    replicas: dict[str, int]
    strategy: str
    mig_strategy: str


def intervals(table: pa.Table, fixed: int | None, nodes: pa.Table) -> dict[tuple[str, str], int]:
    """W3: by (exporter, node) the most frequent distance between samples in ms; ties: the shorter one.

    Where a node shows a single sample and no distance, the exporter's on most nodes; `fixed` stands for all.
    """
    families = [f.partition("/")[0] for f in nodes["family"].to_pylist()]
    seen = set(zip(families, nodes["node"].to_pylist(), strict=True))
    if fixed is not None:
        return dict.fromkeys(sorted(seen), fixed)
    summed = table.group_by(["family", "node", "distance_ms"]).aggregate([("count", "sum")])
    summed = summed.sort_by([("count_sum", "ascending"), ("distance_ms", "descending")])
    rows = zip(*(summed[c].to_pylist() for c in ("family", "node", "distance_ms")), strict=True)
    found = {(family, node): distance for family, node, distance in rows}
    usual: dict[str, Counter[int]] = {}
    for (family, _), distance in found.items():
        usual.setdefault(family, Counter())[distance] += 1
    for family, node in sorted(seen - set(found)):
        if family in usual:
            found[family, node] = max(usual[family], key=lambda d: (usual[family][d], -d))
    return found


def lives(
    nodes: pa.Table, facts: "NodeHistory", every: dict[tuple[str, str], int], low: int, high: int, max_gap: int, w: int
) -> dict[str, list[Spans]]:
    """C1: by node its lives as [start, end) in ms, from samples in `[low, high)`."""
    by_node: dict[str, list[tuple[int, int, int]]] = {}
    first, last = times(nodes["first"]), times(nodes["last"])
    for name, family, a, b in zip(
        nodes["node"].to_pylist(), nodes["family"].to_pylist(), first.tolist(), last.tolist(), strict=True
    ):
        if b < low or a >= high:
            continue
        step = every.get((family.partition("/")[0], name), 0)
        start, stop = max(a, low), min(b, high - 1)
        by_node.setdefault(name, []).append((start, stop, stop + step))
    out = {}
    for name, runs in sorted(by_node.items()):
        merged: list[list[int]] = []
        for a, b, end in sorted(runs):
            if merged:
                before = merged[-1]
                bridged = a - before[1] <= max_gap or facts.same_machine(name, before[1] // w, a // w)
                if bridged:
                    before[1], before[2] = max(before[1], b), max(before[2], end)
                    continue
            merged.append([a, b, end])
        out[name] = [(a, end) for a, _, end in merged]
    return out


class NodeHistory:
    """Facts of nodes by window: the labels last seen up to it, else the first that come."""

    def __init__(self, table: pa.Table, config: Config, w: int) -> None:
        self.names = sorted(set(table["node"].to_pylist()))
        self._code = {n: i for i, n in enumerate(self.names)}
        self._config = config
        texts = table["labels"].to_pylist()
        nodes = table["node"].to_pylist()
        first = times(table["first"]) // w
        events: list[tuple[str, int, str]] = sorted(zip(nodes, first.tolist(), texts, strict=True))
        merged: dict[tuple[str, int], dict[str, str]] = {}
        state: dict[str, dict[str, str]] = {}
        self._machines: dict[str, list[tuple[int, str]]] = {}
        for node, window, text in events:
            labels = json.loads(text)
            if "provider_id" in labels:
                self._machines.setdefault(node, []).append((window, labels["provider_id"]))
            known = state.setdefault(node, {})
            kind_is_info = "provider_id" in labels  # kube_node_info has nothing else, kube_node_labels never
            kept = {k: v for k, v in known.items() if (k == "provider_id") != kind_is_info}
            state[node] = kept | labels
            merged[node, window] = state[node]
        keys = list(merged)
        self._facts = [self._read(node, merged[node, window]) for node, window in keys]
        self._line = Timeline(
            np.array([self._code[n] for n, _ in keys], np.int64), np.array([k for _, k in keys], np.int64)
        )

    def _read(self, node: str, labels: dict[str, str]) -> NodeFacts:
        def first(*names: str) -> str:
            return next((labels[n] for n in names if labels.get(n)), "")

        instance_type = first("label_node_kubernetes_io_instance_type", "label_beta_kubernetes_io_instance_type")
        region = first("label_topology_kubernetes_io_region", "label_failure_domain_beta_kubernetes_io_region")
        option = purchase_option(labels) or self._config.pricing.default_purchase_option
        for o in self._config.nodes:
            if fnmatch.fnmatchcase(node, o.match):
                instance_type = o.instance_type or instance_type
                region = o.region or region
                option = o.purchase_option or option
                break
        replicas = {}
        for name, value in labels.items():
            if (found := re.fullmatch(r"label_nvidia_com_(.+)_replicas", name)) and value.isdecimal():
                replicas[found[1]] = int(value)
        count = labels.get("label_nvidia_com_gpu_count", "")
        return NodeFacts(
            instance_type, region, option, labels.get("provider_id", ""),
            int(count) if count.isdecimal() else 0, replicas,
            labels.get("label_nvidia_com_gpu_sharing_strategy", ""), labels.get("label_nvidia_com_mig_strategy", ""),
        )  # fmt: skip

    def rows(self, node: str, windows: Ints) -> Ints:
        """Place in `facts` for each window of a node."""
        code = self._code.get(node, -1)
        return self._line.at(np.full(windows.size, code), windows, else_first=True)

    def facts(self, node: str, row: int) -> NodeFacts:
        """The facts at a row; those of the configuration alone for a node that Kubernetes never showed."""
        return self._facts[row] if row >= 0 else self._read(node, {})

    def same_machine(self, node: str, before: int, after: int) -> bool:
        """Whether a node's non-empty provider_id is the same on both sides of a gap (C1)."""
        known = self._machines.get(node, [])
        one = [machine for window, machine in known if window <= before]
        two = [machine for window, machine in known if window >= after]
        return bool(one and two and one[-1]) and one[-1] == two[0]


def purchase_option(labels: dict[str, str]) -> str:
    """P2: what the labels of Karpenter, EKS, GKE or AKS say; "" where they say nothing."""
    karpenter = labels.get("label_karpenter_sh_capacity_type", "")
    if karpenter in ("spot", "on-demand", "reserved"):
        return karpenter
    eks = labels.get("label_eks_amazonaws_com_capacity_type", "")
    if eks:
        return {"SPOT": "spot", "ON_DEMAND": "on-demand", "CAPACITY_BLOCK": "reserved"}.get(eks, "")
    spot = ("label_cloud_google_com_gke_spot", "label_cloud_google_com_gke_preemptible")
    if any(labels.get(n) == "true" for n in spot):
        return "spot"
    return "spot" if labels.get("label_kubernetes_azure_com_scalesetpriority") == "spot" else ""


def resource_class(resource: str) -> str:
    """`nvidia_com_mig_1g_5gb_shared` -> `mig-1g.5gb`, `nvidia_com_gpu` -> `gpu`: what kind of device is asked for."""
    kind = resource.removeprefix("nvidia_com_").removesuffix("_shared")
    if kind == "gpu":
        return kind
    return "mig-" + base_profile(kind.removeprefix("mig_").replace("_", ".", 1).replace("_", "+"))


def base_profile(profile: str) -> str:
    """A MIG profile without compute-instance prefix and variant: `1c.3g.40gb` and `3g.40gb+me` are `3g.40gb`."""
    text = profile.lower().removeprefix("mig ").strip()
    text = re.sub(r"^\d+c\.", "", text)
    return re.sub(r"[+.-](me|gfx|all|me\.all)$", "", text)


@dataclass(frozen=True)
class Slices:
    """A MIG instance's part of its card: `part` of `whole`, the same `whole` for all instances of one card (D2)."""

    part: int
    whole: int
    known: bool


_FINE = 10**6


class MigWeights:
    """D2: what part of its GPU a MIG instance is."""

    def __init__(self, table: MigTable, prices: Prices, weight: str) -> None:
        self._table, self._weight = table, weight
        self._memory = {i.gpu_model: i.gpu_memory_gib for i in prices.instances.values() if i.gpu_model}

    @lru_cache(maxsize=4096)  # noqa: B019 - lives as long as a report
    def card(self, model: str, profiles: frozenset[str]) -> MigCard | None:
        """The card of that model; where the name says nothing, the only one that has all these profiles."""
        for card in self._table.cards:
            if any(
                re.search(rf"(?<![A-Za-z0-9]){re.escape(n)}(?![A-Za-z0-9])", model, re.IGNORECASE) for n in card.models
            ):
                return card
        fitting = [c for c in self._table.cards if profiles and all(base_profile(p) in c.profiles for p in profiles)]
        return fitting[0] if len(fitting) == 1 else None

    def slices(self, model: str, profile: str, profiles: frozenset[str], capacity_mib: float) -> Slices:
        """Whole numbers of the card's parts; a profile that is not in the table goes by its memory."""
        card = self.card(model, profiles)
        compute, memory = (card.compute, card.memory) if card else (7, 8)
        whole = compute * memory * _FINE
        known = card.profiles.get(base_profile(profile)) if card else None
        if known:
            by_memory, by_compute = known.memory * compute, known.compute * memory
            part = {"memory": by_memory, "compute": by_compute, "max": max(by_memory, by_compute)}[self._weight]
            return Slices(part * _FINE, whole, True)
        total = self._memory.get(model, 0) * 1024 or (card.memory_gib * 1024 if card else 0)
        if total and not math.isnan(capacity_mib):
            return Slices(min(whole, round(capacity_mib / total * whole)), whole, False)
        size = re.search(r"(\d+)gb", profile.lower())
        return Slices(min(whole, round(int(size[1]) * 1024 / total * whole)) if size and total else 0, whole, False)


def report_lives(found: dict[str, list[Spans]], problems: Problems) -> None:
    """Says where a node's samples stopped and began again as another life."""
    for node, spans in found.items():
        problems.add(
            "node-restarted", node, "the node was away for longer than max_gap; nothing is charged in between",
            count=len(spans) - 1, severity="info",
        )  # fmt: skip
