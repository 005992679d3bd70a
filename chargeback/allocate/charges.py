"""Charges by window as they arise, and their sums by hour."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from chargeback.allocate.frame import Frame
from chargeback.period import HOUR
from chargeback.pods import NO_POD, Pod
from chargeback.tables import Bools, Floats, Ints, groups

KINDS = ("used", "idle", "unallocated", "unpartitioned", "unobserved")
USED, IDLE, UNALLOCATED, UNPARTITIONED, UNOBSERVED = range(5)


@dataclass
class Charges:
    """Rows by window. `thing`: -1 no device known, then GPUs, then devices; `about`: a (model, profile) code;
    `pod`: -1 none; `cost` in nano-units; `gpus` GPU-hours; `gib` GiB-hours.
    """

    column: list[Ints] = field(default_factory=list)
    node: list[Ints] = field(default_factory=list)
    thing: list[Ints] = field(default_factory=list)
    about: list[Ints] = field(default_factory=list)
    kind: list[Ints] = field(default_factory=list)
    pod: list[Ints] = field(default_factory=list)
    estimated: list[Bools] = field(default_factory=list)
    cost: list[Ints] = field(default_factory=list)
    gpus: list[Floats] = field(default_factory=list)
    gib: list[Floats] = field(default_factory=list)

    def add(
        self, kind: int, *, column: Ints, node: Ints, thing: Ints, about: Ints, cost: Ints, gpus: Floats,
        gib: Floats | None = None, pod: Ints | None = None, estimated: Bools | None = None,
    ) -> None:  # fmt: skip
        """Takes in rows of one kind; those without cost and quantity are left out."""
        kept = np.flatnonzero((cost != 0) | (gpus > 1e-12))
        self.column.append(column[kept])
        self.node.append(node[kept])
        self.thing.append(thing[kept])
        self.about.append(about[kept])
        self.kind.append(np.full(kept.size, kind))
        self.pod.append(np.full(kept.size, -1) if pod is None else pod[kept])
        self.estimated.append(np.zeros(kept.size, bool) if estimated is None else estimated[kept])
        self.cost.append(cost[kept])
        self.gpus.append(gpus[kept])
        self.gib.append(np.zeros(kept.size) if gib is None else gib[kept])


def by_hour(
    frame: Frame, charges: Charges, pods: list[Pod], abouts: list[tuple[str, str]], sharing: list[str], entry: Ints,
    fact: Ints,
) -> pa.Table:  # fmt: skip
    """Sums by hour and by all that tells charges apart; `owner` is a place in the cluster's `owners`, `nano` the
    cost. `entry` and `fact`: (nodes, width), the price entry and the facts of the node that hold in a window.
    """
    column, node, thing, about, kind, pod, estimated, cost, gpus, gib = (
        np.concatenate(getattr(charges, f))
        for f in ("column", "node", "thing", "about", "kind", "pod", "estimated", "cost", "gpus", "gib")
    )
    window = column + frame.base
    pods = [*pods, NO_POD]
    pod = np.where(pod < 0, len(pods) - 1, pod)
    owner = frame.cluster.owners.rows(pods, pod, window, frame.problems)
    hour = window * frame.w // HOUR
    price, facts = entry[node, column], fact[node, column]
    lead, group = groups(hour, node, thing, about, kind, pod, estimated.astype(np.int64), owner, price, facts)
    nano = np.zeros(lead.size, np.int64)
    np.add.at(nano, group, cost)
    hour, node, thing, about, kind, pod = (a[lead] for a in (hour, node, thing, about, kind, pod))
    devices = frame.devices
    uuids = ["", *(g[1] for g in frame.gpus), *(d[1] for d in devices)]
    instances = ["", *("" for _ in frame.gpus), *(d[2] for d in devices)]
    modes = ["unknown", *("mig" for _ in frame.gpus), *sharing]
    facts = facts[lead]
    pair, at = groups(node, facts)
    known = [
        frame.cluster.nodes.facts(frame.nodes[n], f)
        for n, f in zip(node[pair].tolist(), facts[pair].tolist(), strict=True)
    ]
    work = [_workload(frame, p) for p in pods]
    low = np.maximum(hour * HOUR, (frame.first + frame.base) * frame.w)
    high = np.minimum((hour + 1) * HOUR, (frame.last + frame.base) * frame.w)
    return pa.table({
        "start": _time(low), "end": _time(high),
        "node": _take(frame.nodes, node),
        "instance_type": _take([f.instance_type for f in known], at),
        "region": _take([f.region for f in known], at),
        "purchase_option": _take([f.option for f in known], at),
        "gpu_uuid": _take(uuids, thing + 1),
        "gpu_model": _take([a[0] for a in abouts], about),
        "gpu_instance_id": _take(instances, thing + 1),
        "mig_profile": _take([a[1] for a in abouts], about),
        "sharing": _take(modes, thing + 1),
        "kind": _take(list(KINDS), kind),
        "owner": pa.array(owner[lead]),
        "namespace": _take([p[0] for p in pods], pod),
        "pod": _take([p[1] for p in pods], pod),
        "pod_uid": _take([p[2] for p in pods], pod),
        "workload_kind": _take([w[0] for w in work], pod),
        "workload": _take([w[1] for w in work], pod),
        "memory_gib_hours": pa.array(np.bincount(group, gib, lead.size)),
        "gpu_hours": pa.array(np.bincount(group, gpus, lead.size)),
        "nano": pa.array(nano),
        "estimated": pa.array(estimated[lead]),
        "price": _take(["", *(e.name for e in frame.cluster.prices.entries)], price[lead] + 1),
    })  # fmt: skip


def _workload(frame: Frame, pod: Pod) -> tuple[str, str]:
    kind, name = frame.cluster.pods.workloads.get(pod, ("", ""))
    return (kind, name) if kind or pod == NO_POD else ("Pod", pod[1])


def _take(values: list[str], codes: Ints) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(codes))


def _time(ms: Ints) -> pa.Array:
    return pa.array(ms).cast(pa.timestamp("ms")).cast(pa.timestamp("ms", tz="UTC"))
