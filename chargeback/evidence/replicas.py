"""M7: of several replicas that scraped the same, one is read, node by node and window by window."""

import numpy as np

from chargeback.evidence.gpu import Directory, Reading, Role
from chargeback.evidence.measure import full_windows, once
from chargeback.evidence.readings import Floats, Ints, Slice
from chargeback.tables import find, starts_of


def read_one(
    cut: Slice, readings: list[Reading], book: Directory, intervals: dict[str, Floats]
) -> tuple[list[Reading], int]:
    """Rows of the replica with the most device samples, ties by name; where a node's devices are not reported, of the
    one with the most process samples. Tells on how many nodes there was a choice.
    """
    if book.replica_label is None:
        return readings, 0
    label = book.replica_label
    roles = [role for r in readings for role in r.roles.values()]
    names = sorted({ls.get(label, "") for role in roles for ls in role.found.labels})
    if len(names) < 2:
        return readings, 0
    place = {n: i for i, n in enumerate(names)}
    codes = {id(r): np.array([place[ls.get(label, "")] for ls in r.found.labels], np.int64) for r in roles}
    votes = [v for r in readings for v in _votes(cut, r, codes, len(names), intervals[r.profile.name])]
    node, window, by_process, replica, count = np.concatenate(votes, axis=1)
    keys, inverse = np.unique(np.stack([node, window, by_process, replica]), axis=1, return_inverse=True)
    total = np.bincount(inverse.ravel(), count).astype(np.int64)
    keys = keys[:, np.lexsort((keys[3], -total, keys[2], keys[1], keys[0]))]
    best = keys[:, starts_of(keys[0], keys[1])]
    choices, number = np.unique(np.unique(np.stack([node, window, replica]), axis=1)[:2], axis=1, return_counts=True)
    several = np.unique(choices[0][number > 1]).size
    span = int(window.max(initial=0)) + 1
    return [_only(r, codes, best[0] * span + best[1], best[3], span) for r in readings], several


def _votes(cut: Slice, reading: Reading, codes: dict[int, Ints], replicas: int, interval: Floats) -> list[Ints]:
    """(node, window, 1 for processes, replica, samples): each device's scrapes once, whatever repeats its rows."""
    out = []
    full = full_windows(cut, reading, interval)
    first, width = cut.start // cut.window, (cut.end - cut.start) // cut.window
    device_level = [r for n, r in reading.roles.items() if n != "process"]
    for role in device_level[:1]:
        f = role.found
        group = (role.device[f.series] * replicas + codes[id(role)][f.series]) * width + f.window - first
        found = once(cut, role, group, np.ones(group.size, bool), full)
        device = found.group // width // replicas
        node = np.zeros(int(role.device.max(initial=0)) + 1, np.int64)
        node[role.device] = role.node
        zero = np.zeros(device.size, np.int64)
        out.append(
            np.stack([node[device], found.group % width + first, zero, found.group // width % replicas, found.count])
        )
    if "process" in reading.roles:
        role = reading.roles["process"]
        f = role.found
        one = np.ones(f.series.size, np.int64)
        out.append(np.stack([role.node[f.series], f.window, one, codes[id(role)][f.series], f.count]))
    return out


def _only(reading: Reading, codes: dict[int, Ints], table: Ints, best: Ints, span: int) -> Reading:
    roles: dict[str, Role] = {}
    for name, role in reading.roles.items():
        f = role.found
        at = find(table, role.node[f.series] * span + f.window)
        roles[name] = role.keep((at >= 0) & (best[at] == codes[id(role)][f.series]))
    return Reading(reading.profile, roles)
