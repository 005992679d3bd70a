"""What of GPUs, nodes and pods has a price, a region and a team, and what kube-state-metrics would have to show."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np

from chargeback.doctor.findings import GpuCount, MissingPrice, Notes, Share, counted, some
from chargeback.doctor.look import Look
from chargeback.evidence.collect import KSM
from chargeback.evidence.kube import sanitized
from chargeback.inventory import NodeFacts, NodeHistory
from chargeback.ownership import WHOLE, Owners
from chargeback.period import HOUR, Period, iso
from chargeback.problems import Problems

_ALWAYS = ("node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_BY_CLOUD = {
    "aws": ("karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType"),
    "gce": ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible"),
    "azure": ("karpenter.sh/capacity-type", "kubernetes.azure.com/scalesetpriority"),
}
_GPU_FACTS = (
    "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas",
    "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.strategy",
)  # fmt: skip
_PRICE_CHECKS = 800
_MOST = 5


@dataclass(frozen=True)
class Fleet:
    """The GPU nodes of the look: their facts, the GPUs that each reports, and which have a price."""

    facts: dict[str, NodeFacts]
    gpus: dict[str, set[str]]
    priced: set[str]


def fleet(look: Look, period: Period, notes: Notes) -> tuple[Fleet, list[MissingPrice]]:
    """GPU nodes with their prices; every key without one."""
    config = look.job.config
    history = NodeHistory(look.evidence.tables["node_labels"], config, config.window)
    gpus: dict[str, set[str]] = defaultdict(set)
    for node, gpu in look.text("inventory", "node", "gpu_uuid"):
        gpus[node].add(gpu)
    names = {n for (n,) in look.text("nodes", "node")} | set(gpus)
    window = np.array([look.window], np.int64)
    facts = {n: history.facts(n, int(history.rows(n, window)[0])) for n in sorted(names - {""})}
    missing, priced = _missing_prices(look, facts, period, notes)
    return Fleet(facts, dict(gpus), priced), missing


def _missing_prices(
    look: Look, facts: dict[str, NodeFacts], period: Period, notes: Notes
) -> tuple[list[MissingPrice], set[str]]:
    """C2: keys that have no price at the look, or at another time of the period at which their nodes were there."""
    prices, now = look.job.prices, look.job.now
    own = {e.node for e in prices.entries if e.node}
    by_key: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for node, f in facts.items():
        by_key[node if node in own else "", f.instance_type, f.region, f.option].append(node)
    end = max(period.start + HOUR, min(period.end, now))
    step = max(HOUR, -(-(end - period.start) // _PRICE_CHECKS // HOUR) * HOUR)
    times = np.append(np.arange(period.start, end, step), look.window * look.job.config.window)
    out, priced = [], set(facts)
    for (node, kind, region, option), nodes in sorted(by_key.items()):
        price, _, _ = prices.at(node, kind, region, option, times)
        without = times[price < 0]
        if not without.size:
            continue
        at_look = bool(price[-1] < 0)
        at = int(times[-1] if at_look else without[0])
        known = MissingPrice(node, kind, region, option, tuple(nodes), iso(at))
        if at_look:
            priced -= set(nodes)
            out.append(known)
            _tell_price(look, known, notes, sure=True)
        elif there := _there(look, nodes, without):
            out.append(known)
            _tell_price(look, known, notes, sure=there == "source")
    return out, priced


def _there(look: Look, nodes: list[str], times: np.ndarray) -> str:
    """Whether kube-state-metrics shows one of the nodes at the first or last of these times; "source" if it does."""
    w = look.job.config.window
    for t in {int(times[0]), int(times[-1])}:
        start = t - t % w
        found = look.source.windows(
            "kube_node_info", start, start + w, w, by=["node"], matchers={"node": nodes}, values=False
        )
        if found.labels:
            return "source"
    return ""


def _tell_price(look: Look, m: MissingPrice, notes: Notes, *, sure: bool) -> None:
    entry = "{"
    if m.instance_type:
        what = f"{m.instance_type} in {m.region or 'no region'}, {m.purchase_option}"
        region = f"region: {m.region}, " if m.region else ""
        entry += f"instance_type: {m.instance_type}, {region}purchase_option: {m.purchase_option}, "
    else:
        what = f"node {m.node}" if m.node else "nodes whose instance type is not known"
        entry += f"node: {m.node or m.nodes[0]}, "
    message = f"no price for {what} at {m.at} ({counted(len(m.nodes), 'node')}: {some(m.nodes)})"
    if look.job.config.pricing.missing == "zero":
        notes.warn("missing-price", f"{message}; charged as 0, as pricing.missing says")
        return
    tell = notes.block if sure else notes.warn
    change = f'a price book, under prices: - {entry}per_hour: "..."}}'
    if not m.instance_type:
        change += "; or give its type under `nodes`, or have its labels shown (see no-node-labels)"
    tell("missing-price", message, change)


def allowlist(look: Look) -> str:
    """The flag of kube-state-metrics with the labels that this configuration and these nodes need."""
    config = look.job.config
    ours = [config.ownership.team_label, *config.dimensions.values()]
    pods = sorted({*ours, *(n for r in config.ownership.rules for n in r.match.labels)})
    clouds = {
        str(json.loads(str(r["labels"])).get("provider_id", "")).partition(":")[0] for r in look.rows("node_labels")
    }
    known = [c for c in _BY_CLOUD if c in clouds] or list(_BY_CLOUD)
    nodes = dict.fromkeys([*_ALWAYS, *(n for c in known for n in _BY_CLOUD[c]), *_GPU_FACTS])
    spaces = ",".join(dict.fromkeys(ours))
    return (
        f"kube-state-metrics --metric-labels-allowlist=pods=[{','.join(pods)}],namespaces=[{spaces}],"
        f"nodes=[{','.join(nodes)}]"
    )


def node_shares(look: Look, f: Fleet, notes: Notes) -> list[Share]:
    """Nodes and GPUs with a type, a region and a price."""
    gpus = {g: n for n, found in f.gpus.items() for g in found}
    typed = {n for n, facts in f.facts.items() if facts.instance_type}
    placed = {n for n, facts in f.facts.items() if facts.region}
    shares = [
        _share("nodes with an instance type", f.facts, typed),
        _share("nodes with a region", f.facts, placed),
        _share("nodes with a price", f.facts, f.priced),
        replace(_share("GPUs with a price", gpus, {g for g, n in gpus.items() if n in f.priced}), without=()),
    ]
    listed = look.text("node_labels", "node", "labels")
    known = {n for n, _ in listed}
    if not known:
        notes.warn(
            "no-node-labels", f"{KSM} tells nothing of nodes: types and regions come from `nodes` alone",
            f"scrape it, with {allowlist(look)}",
        )  # fmt: skip
        return shares
    if strangers := set(f.facts) - known:
        notes.warn(
            "unknown-node",
            f"exporters name {counted(len(strangers), 'node')} that {KSM} does not know: {some(strangers)}",
            "relabel the exporter's scrape so that a label `node` holds the Kubernetes node's name",
        )
    labelled = {n for n, text in listed if any(k.startswith("label_") for k in json.loads(text))}
    if bare := known - labelled:
        notes.warn(
            "no-node-labels", f"{KSM} shows no label of {counted(len(bare), 'node')} ({some(bare)})", allowlist(look)
        )
    elif untyped := (known & set(f.facts)) - typed:
        notes.warn(
            "no-node-labels", f"no instance type is shown of {counted(len(untyped), 'node')} ({some(untyped)})",
            allowlist(look),
        )  # fmt: skip
    return shares


def gpu_counts(look: Look, f: Fleet, notes: Notes) -> list[GpuCount]:
    """C5: nodes that report fewer GPUs than their type has, or more."""
    out = []
    for node, facts in f.facts.items():
        has = look.job.prices.gpus(facts.instance_type) or facts.gpu_count
        reports = len(f.gpus.get(node, ()))
        if has and reports != has:
            out.append(GpuCount(node, facts.instance_type, reports, has))
    fewer = [c for c in out if c.reports < c.has]
    if fewer:
        gone = sum(c.has - c.reports for c in fewer)
        shown = some({f"{c.node} {c.reports} of {c.has}" for c in fewer})
        notes.warn(
            "gpu-missing", f"{counted(gone, 'GPU')} of {counted(len(fewer), 'node')} did not report ({shown}): "
            "their part is charged as unobserved",
            "see that the exporter runs there and that no GPU has failed, or correct `gpus` in the price book",
        )  # fmt: skip
    more = {f"{c.node} {c.reports} for {c.has}" for c in out if c.reports > c.has}
    if more:
        notes.warn("gpu-count", f"more GPUs report than the type has: {some(more)}", "correct `gpus` in the price book")
    return out


def team_shares(look: Look, notes: Notes) -> list[Share]:
    """T1: pods on GPUs that have a team."""
    config = look.job.config
    pods = {
        (str(ns), str(pod), str(uid))
        for table in ("consumers", "holders", "requests")
        for ns, pod, uid in look.text(table, "namespace", "pod", "pod_uid")
        if pod
    }
    with_uid = {p[:2] for p in pods if p[2]}
    listed = sorted(p for p in pods if p[2] or p[:2] not in with_uid)
    problems = Problems()
    owners = Owners(look.evidence.tables["labels"], config, config.window)
    code = np.arange(len(listed), dtype=np.int64)
    rows = owners.rows(listed, code, np.full(code.size, look.window, np.int64), problems)
    default = ((config.ownership.default, WHOLE),)
    has = {"/".join(p[:2]) for p, r in zip(listed, rows.tolist(), strict=True) if owners.owners[r].parts != default}
    share = _share("pods with a team", {"/".join(p[:2]) for p in listed}, has)
    if share.of - share.have > _MOST:
        spaces = Counter(p[0] for p in listed if "/".join(p[:2]) not in has)
        ranked = sorted(spaces, key=lambda s: (-spaces[s], s))
        share = replace(share, without=_few([f"{s} ({counted(spaces[s], 'pod')})" for s in ranked]))
    for p in problems.sorted():
        notes.warn(p.code, f"{p.subject}: {p.message}")
    if listed and not look.in_store:
        _tell_labels(look, share, notes)
    elif share.have < share.of:
        notes.warn("unowned", _unowned(look, share))
    return [share]


def _unowned(look: Look, share: Share) -> str:
    default = look.job.config.ownership.default
    return f"{share.of - share.have} of {counted(share.of, 'pod')} on GPUs have no team ({default} pays): " + ", ".join(
        share.without
    )


def _tell_labels(look: Look, share: Share, notes: Notes) -> None:
    """Whether the labels that ownership reads are shown at all."""
    config = look.job.config
    reads = {config.ownership.team_label, *config.dimensions.values()}
    reads |= {n for rule in config.ownership.rules for n in rule.match.labels}
    by_label = {n: sanitized(n) for n in reads}
    shown: dict[str, set[str]] = {}
    for metric in ("kube_pod_labels", "kube_namespace_labels"):
        found = look.hourly(metric, sorted(by_label.values()))
        shown[metric] = {n for ls in found for n in ls} if found else set()
        if not found and metric == "kube_pod_labels":
            notes.warn("no-labels", f"{KSM} shows no {metric}: teams come from namespaces and rules", allowlist(look))
    if "kube_pod_labels" in look.present:
        for name in sorted(reads):
            if by_label[name] not in shown["kube_pod_labels"] | shown["kube_namespace_labels"]:
                notes.warn(
                    "no-labels", f"kube_pod_labels is there, but never with {by_label[name]}: the label `{name}` is "
                    "not shown, or nobody wears it",
                    allowlist(look),
                )  # fmt: skip
    if share.have < share.of:
        change = f"label them or their namespaces with `{config.ownership.team_label}`, or write ownership.rules"
        notes.warn("unowned", _unowned(look, share), change)


def _share(what: str, every: object, have: set[str]) -> Share:
    names = {str(n) for n in every}  # type: ignore[attr-defined]
    without = sorted(names - have)
    return Share(what, len(names & have), len(names), _few(without))


def _few(names: list[str]) -> tuple[str, ...]:
    return (*names[:_MOST], *((f"and {len(names) - _MOST} more",) if len(names) > _MOST else ()))
