"""What kube-state-metrics says: pods, their requests, ends and labels, and nodes, as stretches of windows.

All replicas are read together (M7). Series of a scrape that renames labels (`exported_pod`) are read as well.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from chargeback.evidence.readings import Ints, Slice, concat, stretches
from chargeback.period import DAY
from chargeback.sources import Labels, Matchers, Windows

GPU_RESOURCE = re.compile(r"nvidia_com_(gpu|mig_\d+g_\d+gb(_me|_gfx)?)(_shared)?")
NODE_LABELS = (
    "label_node_kubernetes_io_instance_type",
    "label_beta_kubernetes_io_instance_type",
    "label_topology_kubernetes_io_region",
    "label_failure_domain_beta_kubernetes_io_region",
    "label_topology_kubernetes_io_zone",
    "label_karpenter_sh_capacity_type",
    "label_eks_amazonaws_com_capacity_type",
    "label_cloud_google_com_gke_spot",
    "label_cloud_google_com_gke_preemptible",
    "label_kubernetes_azure_com_scalesetpriority",
)
POD_METRICS = ("kube_pod_info", "kube_pod_status_phase", "kube_pod_labels", "kube_pod_container_resource_requests")
METRICS = (
    *POD_METRICS,
    "kube_pod_init_container_resource_requests",
    "kube_namespace_labels",
    "kube_node_info",
    "kube_node_labels",
    "kube_replicaset_owner",
    "kube_job_owner",
)
Pod = tuple[str, str, str]


def own(labels: Labels, name: str) -> str:
    """A label of the object itself, where a scrape without honorLabels renamed it (`exported_pod`) or not."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def sanitized(name: str) -> str:
    """A Kubernetes label's name as kube-state-metrics 2 writes it: `costCenter` is `label_cost_center`."""
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return "label_" + re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", plain).lower()


@dataclass(frozen=True)
class Kube:
    """One partition's view; every list holds (what..., first window, last window), sorted."""

    pods: list[tuple[Pod, str, tuple[str, str], int, int]]
    ended: dict[Pod, int]
    requests: list[tuple[Pod, str, str, int, int, int]]
    labels: list[tuple[Pod, str, int, int]]  # the last one in ms
    reporting: list[tuple[int, int]]


@dataclass(frozen=True)
class Nodes:
    """Nodes that may have GPUs: series of kube_node_info and kube_node_labels by window."""

    found: dict[str, Windows]
    labels: list[tuple[str, str, int, int]]

    def names(self) -> set[str]:
        return {own(ls, "node") for f in self.found.values() for ls in f.labels}


def node_names(cut: Slice) -> set[str]:
    """Every node that kube-state-metrics knows in the partition."""
    names = set()
    for metric in ("kube_node_info", "kube_node_labels"):
        found = _daily(cut, metric, ["node", "exported_node"])
        names |= {own(ls, "node") for ls in found.labels}
    return names - {""}


def gpu_typed_nodes(cut: Slice, types: Collection[str]) -> set[str]:
    """Nodes whose instance type is one of `types` (C1)."""
    keep = ["node", "exported_node", *NODE_LABELS[:2]]
    found = _daily(cut, "kube_node_labels", keep)
    return {own(ls, "node") for ls in found.labels if {ls.get(n) for n in NODE_LABELS[:2]} & set(types)}


def read_nodes(cut: Slice, candidates: set[str]) -> Nodes:
    """kube_node_info and kube_node_labels of the nodes `candidates`."""
    found = {}
    spans = []
    for metric in ("kube_node_info", "kube_node_labels"):
        keys = _node_keys(cut, metric)
        f = concat([
            cut.source.windows(metric, cut.start, cut.end, cut.window, matchers={key: candidates}, values=False)
            for key in keys
        ])  # fmt: skip
        found[metric] = f
        about = [(own(ls, "node"), _node_text(ls, metric)) for ls in f.labels]
        texts = sorted(set(about))
        code = {key: i for i, key in enumerate(texts)}
        series = np.array([code[key] for key in about], np.int64)
        for k, first, last in _spans(series[f.series], f.window):
            spans.append((*texts[k], first, last))
    return Nodes(found, spans)


def _node_text(labels: Labels, metric: str) -> str:
    kept = {n: v for n, v in labels.items() if v and (n in NODE_LABELS or "nvidia_com" in n)}
    if metric == "kube_node_info":
        kept = {"provider_id": labels.get("provider_id", "")}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def pod_nodes(cut: Slice) -> dict[str, str]:
    """Pod name -> node, to find the node of an exporter that calls itself by its pod's name."""
    found = _daily(cut, "kube_pod_info", ["pod", "exported_pod", "node", "exported_node"])
    return {own(ls, "pod"): own(ls, "node") for ls in found.labels if own(ls, "node")}


def read(cut: Slice, nodes: Collection[str], named: set[tuple[str, str]], wanted_labels: Collection[str]) -> Kube:
    """What is known of the pods on `nodes` and of those that exporters name, (namespace, name) in `named`."""
    info = _on_nodes(
        cut, "kube_pod_info", ["namespace", "pod", "uid", "node", "created_by_kind", "created_by_name"], {"node": nodes}
    )
    owners = _owners(cut)
    rows: list[tuple[Pod, str, tuple[str, str]]] = [
        (_pod(ls), own(ls, "node"), _workload(ls, owners)) for ls in info.labels
    ]
    requests, on_node = _requests(cut, nodes)
    names = {(r[0][0], r[0][1]) for r in rows} | named | {(p[0], p[1]) for p, *_ in requests}
    listed = list(on_node)
    phases = _by_pod_names(cut, "kube_pod_status_phase", ["namespace", "pod", "uid", "phase"], names, True)
    labels = _by_pod_names(cut, "kube_pod_labels", _pod_label_names(wanted_labels), names, False)
    for found in (phases, labels):
        bounds = np.searchsorted(found.series, np.arange(len(found.labels) + 1))
        listed += [(_pod(ls), found.window[bounds[i] : bounds[i + 1]]) for i, ls in enumerate(found.labels)]
    pods = _presence(rows, info, listed, names)
    return Kube(pods, _ended(phases), requests, _label_spans(cut, labels, wanted_labels, names), _reporting(cut))


def _presence(
    rows: list[tuple[Pod, str, tuple[str, str]]],
    info: Windows,
    listed: list[tuple[Pod, Ints]],
    names: set[tuple[str, str]],
) -> list[tuple[Pod, str, tuple[str, str], int, int]]:
    """Stretches in which a pod is listed by any metric; node and workload from kube_pod_info."""
    about: dict[Pod, tuple[str, tuple[str, str]]] = {}
    for pod, node, workload in rows:
        about[pod] = (node, workload)
    code = {pod: i for i, pod in enumerate(sorted(set(about) | {p for p, _ in listed if p[:2] in names}))}
    info_code = np.array([code[r[0]] for r in rows], np.int64)
    keys, windows = [info_code[info.series]], [info.window]
    for pod, window in listed:
        if pod in code:
            keys.append(np.full(window.size, code[pod]))
            windows.append(window)
    pods = list(code)
    return [
        (pods[k], *about.get(pods[k], ("", ("", ""))), first, last)
        for k, first, last in _spans(np.concatenate(keys), np.concatenate(windows))
    ]


def _pod(labels: Labels) -> Pod:
    return own(labels, "namespace"), own(labels, "pod"), own(labels, "uid")


def _workload(labels: Labels, owners: dict[tuple[str, str, str], tuple[str, str]]) -> tuple[str, str]:
    """Pod -> ReplicaSet -> Deployment, Pod -> Job -> CronJob; a pod of its own is its workload."""
    kind, name = labels.get("created_by_kind", ""), labels.get("created_by_name", "")
    if kind in ("", "<none>"):
        return "Pod", own(labels, "pod")
    return owners.get((own(labels, "namespace"), kind, name), (kind, name))


def _owners(cut: Slice) -> dict[tuple[str, str, str], tuple[str, str]]:
    owners = {}
    for metric, kind, name in (
        ("kube_replicaset_owner", "ReplicaSet", "replicaset"),
        ("kube_job_owner", "Job", "job_name"),
    ):
        keep = ["namespace", "exported_namespace", name, "owner_kind", "owner_name"]
        for ls in _daily(cut, metric, keep).labels:
            if ls.get("owner_kind", "<none>") not in ("", "<none>"):
                owners[own(ls, "namespace"), kind, ls.get(name, "")] = (ls["owner_kind"], ls.get("owner_name", ""))
    return owners


def _requests(
    cut: Slice, nodes: Collection[str]
) -> tuple[list[tuple[Pod, str, str, int, int, int]], list[tuple[Pod, Ints]]]:
    """H2: by pod, node and resource the larger of the containers' sum and the largest init container.

    The second result lists, by pod, the windows that name it.
    """
    amounts: dict[tuple[Pod, str, str], dict[int, list[int]]] = {}
    listed: list[tuple[Pod, Ints]] = []
    for place, metric in enumerate(
        ("kube_pod_container_resource_requests", "kube_pod_init_container_resource_requests")
    ):
        resources = [ls.get("resource", "") for ls in _daily(cut, metric, ["resource"]).labels]
        resources = sorted(r for r in resources if GPU_RESOURCE.fullmatch(r))
        if not resources:
            continue
        found = _on_nodes(
            cut, metric, ["namespace", "pod", "uid", "node", "container", "resource"],
            {"node": nodes, "resource": resources}, values=True,
        )  # fmt: skip
        bounds = np.searchsorted(found.series, np.arange(len(found.labels) + 1))
        for i, ls in enumerate(found.labels):
            rows = slice(bounds[i], bounds[i + 1])
            pod = _pod(ls)
            listed.append((pod, found.window[rows]))
            of = amounts.setdefault((pod, own(ls, "node"), ls["resource"]), {})
            quantity = np.rint(found.total[rows] / found.count[rows]).astype(np.int64)
            for w, q in zip(found.window[rows].tolist(), quantity.tolist(), strict=True):
                both = of.setdefault(w, [0, 0])
                both[place] = both[0] + q if place == 0 else max(both[1], q)
    out = []
    for (pod, node, resource), by_window in sorted(amounts.items()):
        windows = np.array(sorted(by_window), np.int64)
        quantities = np.array([max(by_window[int(w)]) for w in windows], np.int64)
        cuts = np.flatnonzero((np.diff(windows) > 1) | (np.diff(quantities) != 0)) + 1
        for part in np.split(np.arange(windows.size), cuts):
            if quantities[part[0]] > 0:
                first, last = int(windows[part[0]]), int(windows[part[-1]])
                out.append((pod, node, resource, int(quantities[part[0]]), first, last))
    return out, listed


def _ended(phases: Windows) -> dict[Pod, int]:
    """H1: the first window in all of whose samples a pod had succeeded or failed."""
    over, active = {}, {}
    names = [ls.get("phase", "") for ls in phases.labels]
    is_over = np.array([n in ("Succeeded", "Failed") for n in names], bool)
    pods = [_pod(ls) for ls in phases.labels]
    true = phases.total > 0
    for row in np.flatnonzero(true & is_over[phases.series] & (phases.total >= phases.count)).tolist():
        over[pods[phases.series[row]], int(phases.window[row])] = True
    for row in np.flatnonzero(true & ~is_over[phases.series]).tolist():
        active[pods[phases.series[row]], int(phases.window[row])] = True
    ended: dict[Pod, int] = {}
    for pod, window in over:
        if (pod, window) not in active:
            ended[pod] = min(ended.get(pod, window), window)
    return ended


def _pod_label_names(wanted: Collection[str]) -> list[str]:
    return ["namespace", "pod", "uid", *_with_conflicts(wanted)]


def _with_conflicts(wanted: Collection[str]) -> list[str]:
    """The label names, and those that kube-state-metrics writes where two labels sanitise to one name."""
    return [n for name in sorted(wanted) for n in (name, *(f"{name}_conflict{i}" for i in (1, 2, 3)))]


def _label_spans(
    cut: Slice, pods: Windows, wanted: Collection[str], names: set[tuple[str, str]]
) -> list[tuple[Pod, str, int, int]]:
    spaces = {namespace for namespace, _ in names}
    of_namespace = _windows(cut, "kube_namespace_labels", ["namespace", *_with_conflicts(wanted)])
    texts: dict[tuple[Pod, str], int] = {}
    keys, windows = [], []
    for found, is_pod in ((pods, True), (of_namespace, False)):
        code = np.empty(len(found.labels), np.int64)
        for i, ls in enumerate(found.labels):
            pod = _pod(ls) if is_pod else (own(ls, "namespace"), "", "")
            if not is_pod and pod[0] not in spaces:
                code[i] = -1
                continue
            code[i] = texts.setdefault((pod, _label_text(ls, wanted)), len(texts))
        rows = code[found.series]
        keys.append(rows[rows >= 0])
        windows.append(found.window[rows >= 0])
    listed = list(texts)
    spans = [(*listed[k], first, last) for k, first, last in _spans(np.concatenate(keys), np.concatenate(windows))]
    return _in_order(cut, sorted(spans), wanted)


def _label_text(labels: Labels, wanted: Collection[str]) -> str:
    names = set(_with_conflicts(wanted))
    kept = {n: v for n, v in labels.items() if n in names}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def _in_order(
    cut: Slice, spans: list[tuple[Pod, str, int, int]], wanted: Collection[str]
) -> list[tuple[Pod, str, int, int]]:
    """Stretches with the time in ms up to which they were seen: the last window's start, or the very sample where a
    pod had several sets of labels within one window and no other, so that the order in it decides (T1).
    """
    often: dict[tuple[Pod, int, int], int] = {}
    for pod, _, first, last in spans:
        often[pod, first, last] = often.get((pod, first, last), 0) + 1
    seen: dict[tuple[Pod, str, int], int] = {}
    for pod, first, last in sorted(key for key, n in often.items() if n > 1 and key[0][1] and key[1] == key[2]):
        for name in ("pod", "exported_pod"):
            start = first * cut.window
            raw = cut.source.samples("kube_pod_labels", start, start + cut.window, {name: [pod[1]]})
            for series, time in zip(raw.series.tolist(), raw.time.tolist(), strict=True):
                key = (_pod(raw.labels[series]), _label_text(raw.labels[series], wanted), last)
                seen[key] = max(seen.get(key, 0), time)
    return [(pod, text, first, seen.get((pod, text, last), last * cut.window)) for pod, text, first, last in spans]


def _reporting(cut: Slice) -> list[tuple[int, int]]:
    """Windows in which kube-state-metrics reported."""
    metrics = (*POD_METRICS[:2], "kube_node_info", "kube_node_labels")
    windows = [cut.source.windows(m, cut.start, cut.end, cut.window, by=[], values=False).window for m in metrics]
    every = np.unique(np.concatenate(windows))
    return [(first, last) for _, first, last in _spans(np.zeros(every.size, np.int64), every)]


def _spans(key: Ints, window: Ints) -> list[tuple[int, int, int]]:
    return list(zip(*(a.tolist() for a in stretches(key, window)), strict=True))


def _daily(cut: Slice, metric: str, by: list[str]) -> Windows:
    """Which label values there were at all, one row each."""
    start = cut.start - cut.start % DAY
    end = -(-cut.end // DAY) * DAY
    return cut.source.windows(metric, start, end, DAY, by=by, values=False)


def _windows(
    cut: Slice, metric: str, names: list[str], matchers: Matchers | None = None, values: bool = False
) -> Windows:
    by = [*names, *(f"exported_{n}" for n in names if n in ("namespace", "pod", "container", "uid", "node"))]
    return cut.source.windows(metric, cut.start, cut.end, cut.window, by=by, matchers=matchers, values=values)


def _node_keys(cut: Slice, metric: str) -> list[str]:
    """The labels that hold an object's node: both where a scrape renames them."""
    return ["exported_node", "node"] if any(_daily(cut, metric, ["exported_node"]).labels) else ["node"]


def _on_nodes(cut: Slice, metric: str, names: list[str], matchers: Matchers, values: bool = False) -> Windows:
    """A metric of objects on some nodes, whatever label the node is in."""
    rest = {n: v for n, v in matchers.items() if n != "node"}
    keys = _node_keys(cut, metric)
    return concat([_windows(cut, metric, names, {key: matchers["node"], **rest}, values) for key in keys])


def _by_pod_names(cut: Slice, metric: str, names: list[str], pods: set[tuple[str, str]], values: bool) -> Windows:
    """A pod metric for the pods named, whatever label the name is in."""
    wanted = sorted({name for _, name in pods})
    renamed = any(_daily(cut, metric, ["exported_pod"]).labels)
    keys = ("exported_pod", "pod") if renamed else ("pod",)
    return concat([_windows(cut, metric, names, {key: wanted}, values) for key in keys])
