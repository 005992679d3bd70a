"""H1, H2, H5 on a day's rows: label evidence and requests brought together."""

import numpy as np

from chargeback.allocate import memory
from chargeback.allocate.devices import Reported
from chargeback.allocate.frame import Frame
from chargeback.allocate.holders import Asked, Field, Held, held
from chargeback.allocate.uses import People
from chargeback.inventory import base_profile
from chargeback.tables import find, groups, order_of, sizes, starts_of


def read(frame: Frame, reported: Reported, people: People, uses: memory.Uses) -> tuple[Held, Field]:
    """Who holds what in each window, and the field of devices with their slots."""
    device, column, pod = frame.device("holders"), frame.column("holders"), people.holder
    slots = frame.tables["holders"]["slots"].to_numpy()
    key = device * frame.width + column
    keep = (device >= 0) & (pod >= 0) & ~people.system[np.maximum(pod, 0)] & (find(reported.rows.key, key) >= 0)
    gone = frame.cluster.pods.gone(people.pods, np.maximum(pod, 0), column + frame.base)
    frame.find(
        "finished-but-named", people.shown(), pod[keep & gone & (column >= frame.first)],
        "an exporter still names a pod that has ended; it holds nothing any more (H1)", "info",
    )  # fmt: skip
    keep &= ~gone
    key, pod, slots = key[keep], pod[keep], slots[keep]
    order = order_of(key, pod, -slots)
    first = order[starts_of(key[order], pod[order])]
    field, kinds = _field(frame, reported)
    asked = _asked(frame, people, kinds)
    named = uses.pod >= 0
    return held(field, key[first], pod[first], slots[first], asked, uses.key[named], uses.pod[named]), field


def _field(frame: Frame, reported: Reported) -> tuple[Field, dict[str, int]]:
    """Of each device row its class of resource and its slots: the replicas label of its resource, else 1 (H5)."""
    kinds: dict[str, int] = {"gpu": 0}
    requests = frame.cluster.requests
    asked_for = set(zip(requests.node, requests.kind, strict=True))
    whole_cards = {d[0] for d in frame.devices if not d[2]}
    device = reported.rows.key // frame.width
    fact = frame.fact_rows()[frame.node_of[device], reported.rows.key % frame.width]
    lead, at = groups(device, reported.about, fact)
    found = []
    for d, about, row in zip(*(c[lead].tolist() for c in (device, reported.about, fact)), strict=True):
        node, _, instance = frame.devices[d]
        facts = frame.cluster.nodes.facts(node, row)
        kind = "gpu"
        if instance:
            kind = "mig-" + base_profile(reported.abouts[about][1])
            if facts.mig_strategy == "single" or (node not in whole_cards and (node, kind) not in asked_for):
                kind = "gpu"
        replicas = facts.replicas.get(kind.replace("-", "_").replace(".", "_"), 1)
        found.append((kinds.setdefault(kind, len(kinds)), max(1, replicas)))
    table = np.array(found or [(0, 1)], np.int64)[at]
    return Field(frame.node_of, frame.width, reported.rows.key, table[:, 0], table[:, 1]), kinds


def _asked(frame: Frame, people: People, kinds: dict[str, int]) -> Asked:
    """Requests in force by column; those of pods that are gone, and of system pods, are none."""
    requests, pods = frame.requests, frame.cluster.pods
    windows = np.arange(1, frame.width) + frame.base
    row, window = requests.rows(windows, pods.last_report(windows))
    node = np.array([frame.node_number.get(n, -1) for n in requests.node] or [-1], np.int64)
    kind = np.array([kinds.get(k, -1) for k in requests.kind] or [-1], np.int64)
    pod = people.asking if people.asking.size else np.array([-1])
    keep = (node[row] >= 0) & (kind[row] >= 0) & (pod[row] >= 0)
    row, window = row[keep], window[keep]
    there = ~(pods.gone(people.pods, pod[row], window) | people.system[pod[row]])
    row, window = row[there], window[there]
    return Asked(pod[row], node[row], kind[row], requests.quantity[row], window - frame.base)


def sharing(frame: Frame, holders: Held, field: Field) -> list[str]:
    """By device how it is shared: a slice, its node's label, its slots, or several holders at once tell."""
    several, named = np.zeros(len(frame.devices), bool), np.zeros(len(frame.devices), bool)
    starts = starts_of(holders.key)
    several[holders.key[starts][sizes(starts, holders.key.size) > 1] // frame.width] = True
    device = frame.device("holders")
    named[device[(frame.tables["holders"]["slots"].to_numpy() > 0) & (device >= 0)]] = True
    return [
        _mode(
            bool(frame.is_slice[i]), frame.facts(d[0]).strategy, bool(field.slots[i] > 1 or named[i]), bool(several[i])
        )
        for i, d in enumerate(frame.devices)
    ]


def _mode(is_slice: bool, strategy: str, has_slots: bool, several: bool) -> str:
    if is_slice:
        return "mig"
    if strategy in ("time-slicing", "mps"):
        return strategy
    return "time-slicing" if has_slots else "unknown" if several else "exclusive"


def tell(frame: Frame, people: People, found: memory.Entries, rest: memory.Unexplained, rows: memory.Devices) -> None:
    """H3, H4 and M4 for people: what could not be explained, guests, and more memory than there is."""
    names = [frame.shown(d) for d in range(len(frame.devices))]
    device, charged = rows.key // frame.width, rows.key % frame.width >= frame.first
    frame.find(
        "unattributed-memory", names, device[charged & (rest.nobody > 0)],
        "memory in use that neither a process nor a holder explains; the platform team pays",
    )  # fmt: skip
    frame.find(
        "no-process-data", names, device[charged & (rest.by_slots > 0)],
        "no process data; used memory is split by slots held and marked estimated",
    )  # fmt: skip
    frame.find(
        "memory-over-capacity", names, device[charged & memory.over_capacity(found, rows)],
        "consumers' memory adds up to more than the device has; it is scaled to it (M4)",
    )  # fmt: skip
    if not found.slots.any():
        return
    guest = (found.pod >= 0) & (found.slots == 0) & (found.memory > 0) & (found.key % frame.width >= frame.first)
    pod, device = found.pod[guest], found.key[guest] // frame.width
    lead, at = groups(pod, device)
    pods = people.shown()
    pairs = zip(pod[lead].tolist(), device[lead].tolist(), strict=True)
    frame.find(
        "unrequested-use", [f"{pods[p]} on {names[d]}" for p, d in pairs], at,
        "a pod uses a device that it does not hold; it pays for its memory (H4)",
    )  # fmt: skip
