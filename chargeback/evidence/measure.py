"""M1, M2, H5 on an exporter's rows: devices read once, memory by pod, and who is named on which device."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chargeback.evidence.gpu import MEMORY_ROLES, Reading, Role
from chargeback.evidence.readings import (
    Bools,
    Floats,
    Ints,
    Once,
    Slice,
    last_good,
    matchers_for,
    read_once,
    same_series,
)


@dataclass(frozen=True)
class Measured:
    """An exporter's partition as arrays: device rows, consumer rows and holder rows (see `schemas`).

    `devices`: device, window, about (model and profile), samples and by role the mean (NaN: none). `consumers`:
    device, window, pod (-1 none), sum in MiB, samples of the fullest series. `holders`: device, window, pod, slots.
    """

    devices: dict[str, Ints | Floats]
    consumers: dict[str, Ints | Floats]
    holders: dict[str, Ints]
    copies: dict[int, int]


def measure(cut: Slice, reading: Reading, interval: Floats) -> Measured:
    """Reduces an exporter's rows to what they mean (M1, M2, H5). `interval`: ms between scrapes, by node."""
    roles = {n: r for n, r in reading.roles.items() if n != "process"}
    first = cut.start // cut.window
    width = (cut.end - cut.start) // cut.window
    full = full_windows(cut, reading, interval)
    copies: dict[int, int] = {}
    parts: dict[str, tuple[Ints, Floats, Ints]] = {}
    pods: list[tuple[Ints, Ints, Floats, Ints]] = []
    for name, role in roles.items():
        f = role.found
        group = role.device[f.series] * width + f.window - first
        rows = np.ones(f.series.size, bool)
        if name == "used" and (role.pod >= 0).any():
            by_pod = _own_sums(cut, role, group, full, first)
            rows = ~by_pod
            if by_pod.any():
                pods.append(_pod_sums(cut, role, group, by_pod, full))
            copies = _copies(role, group, rows & (role.pod[f.series] >= 0), full, first, width)
        found = once(cut, role, group, rows, full)
        parts[name] = (found.group, found.total, found.count)
    devices = _device_rows(parts, first, width)
    devices["about"] = _about(roles, devices, first, width)
    consumers = _consumer_rows(cut, reading.roles.get("process"), pods, full, first, width)
    holders = _holder_rows(cut, roles, full, first, width)
    return Measured(devices, consumers, holders, copies)


def _copies(role: Role, group: Ints, rows: Bools, full: Ints, first: int, width: int) -> dict[int, int]:
    """By device, how many rows by pod repeated its value at once: more samples than the window had scrapes (M2)."""
    f = role.found
    groups, at = np.unique(group[rows], return_inverse=True)
    samples = np.bincount(at, f.count[rows], groups.size)
    scrapes = np.zeros(groups.size, np.int64)
    np.maximum.at(scrapes, at, full[role.node[f.series[rows]], f.window[rows] - first])
    extra = np.where(samples > scrapes, np.bincount(at, minlength=groups.size) - 1, 0)
    counted = np.bincount(groups // width, extra)
    return {int(d): int(counted[d]) for d in np.flatnonzero(counted)}


def once(cut: Slice, role: Role, group: Ints, rows: Bools, full: Ints) -> Once:
    """Some rows of a role by group, each scrape once (M2)."""
    f, at, first = role.found, np.flatnonzero(rows), cut.start // cut.window
    series, window = f.series[at], f.window[at]
    return read_once(
        group[at], f.total[at], f.count[at], role.rank[series], full[role.node[series], window - first],
        lambda picked: _raw(cut, role, at[picked], group),
    )  # fmt: skip


def full_windows(cut: Slice, reading: Reading, interval: Floats) -> Ints:
    """(node, window): how many scrapes there were at least: a row with as many covers the window."""
    first, width = cut.start // cut.window, (cut.end - cut.start) // cut.window
    nodes = int(max(r.node.max() for r in reading.roles.values())) + 1
    full = np.zeros((nodes, width), np.int64)
    full += np.where(interval[:nodes] > 0, cut.window // np.maximum(interval[:nodes], 1), 1).astype(np.int64)[:, None]
    for role in reading.roles.values():
        np.maximum.at(full, (role.node[role.found.series], role.found.window - first), role.found.count)
    return full


def _raw(cut: Slice, role: Role, rows: Ints, group: Ints) -> tuple[Ints, Ints, Ints, Floats]:
    """Raw samples of some rows of a role: (group, time, rank, value in MiB)."""
    f = role.found
    span = int(f.window.max()) + 1
    key = f.series[rows] * span + f.window[rows]
    order = np.argsort(key)
    key, of = key[order], group[rows][order]
    out: list[tuple[Ints, Ints, Ints, Floats]] = []
    for low, high in _runs(np.unique(f.window[rows])):
        here = (f.window[rows] >= low) & (f.window[rows] <= high)
        wanted = np.unique(f.series[rows[here]])
        for metric in sorted({role.metric[i] for i in wanted}):
            mine = [int(i) for i in wanted if role.metric[i] == metric]
            labels = [f.labels[i] for i in mine]
            start, end = low * cut.window, (high + 1) * cut.window
            before = cut.max_gap if role.has_blanks(mine) else 0
            raw = cut.source.samples(metric, start - before, end, matchers_for(labels, role.names))
            place = same_series(raw.labels, labels)[raw.series]
            kept = np.flatnonzero(place >= 0)
            series, time = np.array(mine, np.int64)[place[kept]], raw.time[kept]
            value = raw.value[kept] * role.scale
            _, last, good = last_good(series, time, value, role.limit[series], cut.max_gap)
            k = series * span + time // cut.window
            at = np.minimum(np.searchsorted(key, k), key.size - 1)
            good &= (key[at] == k) & (time >= start)
            out.append((of[at[good]], time[good], role.rank[series[good]], value[last[good]]))
    return (
        np.concatenate([o[0] for o in out]),
        np.concatenate([o[1] for o in out]),
        np.concatenate([o[2] for o in out]),
        np.concatenate([o[3] for o in out]),
    )


def _runs(windows: Ints) -> Iterator[tuple[int, int]]:
    """Neighbouring windows as (first, last)."""
    cuts = np.flatnonzero(np.diff(windows) > 1)
    yield from zip(
        windows[np.append(0, cuts + 1)].tolist(), windows[np.append(cuts, windows.size - 1)].tolist(), strict=True
    )


def _own_sums(cut: Slice, role: Role, group: Ints, full: Ints, first: int) -> Bools:
    """Which rows are a pod's own sum: those beside a device row without a pod at the same timestamp (M2)."""
    f = role.found
    named = role.pod[f.series] >= 0
    groups, at = np.unique(group, return_inverse=True)
    bare, by_pod = np.zeros(groups.size, np.int64), np.zeros(groups.size, np.int64)
    np.maximum.at(bare, at[~named], f.count[~named])
    np.maximum.at(by_pod, at[named], f.count[named])
    scrapes = np.zeros(groups.size, np.int64)
    np.maximum.at(scrapes, at, full[role.node[f.series], f.window - first])
    both = (bare > 0) & (by_pod > 0)
    beside = both & (bare >= scrapes)
    unsure = both & ~beside
    if unsure.any():
        rows = np.flatnonzero(unsure[at])
        rg, rt, rr, _ = _raw(cut, role, rows, group)
        is_named = np.zeros(len(f.labels), bool)
        is_named[role.rank] = role.pod >= 0
        kind = is_named[rr]
        scrape = np.stack([rg, rt])
        shared = _in_columns(scrape[:, kind], scrape[:, ~kind])
        beside[np.searchsorted(groups, np.unique(rg[kind][shared]))] = True
    return named & beside[at]


def _in_columns(a: Ints, b: Ints) -> Bools:
    """Which columns of `a` (2, n) are columns of `b` too."""
    if not a.shape[1] or not b.shape[1]:
        return np.zeros(a.shape[1], bool)
    low = min(int(a[1].min()), int(b[1].min()))
    span = max(int(a[1].max()), int(b[1].max())) - low + 1
    return np.isin(a[0] * span + a[1] - low, b[0] * span + b[1] - low)


def _pod_sums(cut: Slice, role: Role, group: Ints, rows: Bools, full: Ints) -> tuple[Ints, Ints, Floats, Ints]:
    """Rows by pod, each repeated for its containers and slots, read once: (group, pod, sum, samples)."""
    f = role.found
    pods = int(role.pod.max()) + 1
    key = group * pods + role.pod[f.series]
    found = once(cut, role, key, rows, full)
    return found.group // pods, found.group % pods, found.total, found.count


def _device_rows(parts: dict[str, tuple[Ints, Floats, Ints]], first: int, width: int) -> dict[str, Ints | Floats]:
    empty = np.empty(0, np.int64)
    groups = np.unique(np.concatenate([empty, *(g for g, _, _ in parts.values())]))
    samples = np.zeros(groups.size, np.int64)
    out: dict[str, Ints | Floats] = {"device": groups // width, "window": groups % width + first}
    for name in (*MEMORY_ROLES, "activity"):
        mean = np.full(groups.size, np.nan)
        if name in parts:
            g, total, count = parts[name]
            at = np.searchsorted(groups, g)
            mean[at] = total / count
            samples[at] = np.maximum(samples[at], count)
        out[name] = mean
    out["samples"] = samples
    return out


def _about(roles: dict[str, Role], devices: dict[str, Ints | Floats], first: int, width: int) -> Ints:
    """The (model, profile) of each device row: that of the fullest series there, of the first role that has one."""
    groups = np.asarray(devices["device"], np.int64) * width + np.asarray(devices["window"], np.int64) - first
    about = np.full(groups.size, -1, np.int64)
    for role in roles.values():
        f = role.found
        group = role.device[f.series] * width + f.window - first
        order = np.lexsort((role.rank[f.series], -f.count, group))
        lead = order[np.append(True, group[order][1:] != group[order][:-1])] if order.size else order
        at = np.searchsorted(groups, group[lead])
        about[at] = np.where(about[at] < 0, role.about[f.series[lead]], about[at])
    return about


def _consumer_rows(
    cut: Slice, role: Role | None, pods: list[tuple[Ints, Ints, Floats, Ints]], full: Ints, first: int, width: int
) -> dict[str, Ints | Floats]:
    columns = [*pods]
    if role is not None and role.found.series.size:
        f = role.found
        group = role.device[f.series] * width + f.window - first
        processes = int(role.process.max()) + 1
        key = group * processes + role.process[f.series]
        found = once(cut, role, key, np.ones(key.size, bool), full)
        pod_of = np.full(processes, -1)
        pod_of[role.process] = role.pod
        columns.append((found.group // processes, pod_of[found.group % processes], found.total, found.count))
    if not columns:
        return dict.fromkeys(("device", "window", "pod", "samples"), np.empty(0, np.int64)) | {"sum": np.empty(0)}
    group, pod, total, count = (np.concatenate([c[i] for c in columns]) for i in range(4))
    order = np.lexsort((pod, group))
    group, pod, total, count = group[order], pod[order], total[order], count[order]
    starts = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (pod[1:] != pod[:-1])))
    return {
        "device": group[starts] // width,
        "window": group[starts] % width + first,
        "pod": pod[starts],
        "sum": np.add.reduceat(total, starts),
        "samples": np.maximum.reduceat(count, starts),
    }


def _holder_rows(cut: Slice, roles: dict[str, Role], full: Ints, first: int, width: int) -> dict[str, Ints]:
    """H1, H5: pods that rows of a device name, and the most distinct slots that each had at one sample."""
    found: list[tuple[Ints, Ints, Ints]] = []
    for role in roles.values():
        f = role.found
        rows = np.flatnonzero(role.pod[f.series] >= 0)
        if not rows.size:
            continue
        series = f.series[rows]
        pods = int(role.pod.max()) + 1
        key = (role.device[series] * width + f.window[rows] - first) * pods + role.pod[series]
        keys, at = np.unique(key, return_inverse=True)
        scrapes = full[role.node[series], f.window[rows] - first]
        slots = _slots(cut, role, rows, keys, at, scrapes) if not found else np.zeros(keys.size, np.int64)
        found.append((keys // pods, keys % pods, slots))
    if not found:
        return dict.fromkeys(("device", "window", "pod", "slots"), np.empty(0, np.int64))
    group, pod, slots = (np.concatenate([c[i] for c in found]) for i in range(3))
    order = np.lexsort((pod, group))
    group, pod, slots = group[order], pod[order], slots[order]
    starts = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (pod[1:] != pod[:-1])))
    return {
        "device": group[starts] // width,
        "window": group[starts] % width + first,
        "pod": pod[starts],
        "slots": np.maximum.reduceat(slots, starts),
    }


def _slots(cut: Slice, role: Role, rows: Ints, keys: Ints, at: Ints, full: Ints) -> Ints:
    """By key (device, window, pod): the most distinct slots at one sample; 0 where rows name none."""
    f = role.found
    slot = role.slot[f.series[rows]]
    kinds = int(role.slot.max()) + 2
    pairs, inverse = np.unique(at * kinds + slot + 1, return_inverse=True)
    fullest, needed = np.zeros(pairs.size, np.int64), np.zeros(pairs.size, np.int64)
    np.maximum.at(fullest, inverse, f.count[rows])
    np.maximum.at(needed, inverse, full)
    named = pairs % kinds > 0
    whose = pairs // kinds
    slots = np.bincount(whose[named], minlength=keys.size)
    partial = np.zeros(keys.size, bool)
    partial[whose[named & (fullest < needed)]] = True
    unsure = partial & (slots > 1)
    if unsure.any():
        picked = rows[unsure[at] & (slot >= 0)]
        group = np.zeros(f.series.size, np.int64)
        group[rows] = at
        rg, rt, rr, _ = _raw(cut, role, picked, group)
        by_rank = np.empty(len(f.labels), np.int64)
        by_rank[role.rank] = role.slot
        distinct = np.unique(np.stack([rg, rt, by_rank[rr]]), axis=1)
        scrape, number = np.unique(distinct[:2], axis=1, return_counts=True)
        most = np.zeros(keys.size, np.int64)
        np.maximum.at(most, scrape[0], number)
        slots = np.where(unsure, most, slots)
    return slots
