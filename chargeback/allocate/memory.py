"""D4, M1, M4 to M6, G2 and H3: what of a device's memory was whose, in each window.

Memory is held in whole units of 1/1024 byte, so that shares divide exactly.
"""

from dataclasses import dataclass

import numpy as np

from chargeback.money import divide
from chargeback.tables import Bools, Floats, Ints, expand, find, order_of, sizes, starts_of, sums

UNITS = 2**30
"""Units in a MiB."""


def units(mib: Floats) -> Ints:
    """MiB as whole units; NaN is 0."""
    return np.rint(np.nan_to_num(mib) * UNITS).astype(np.int64)


@dataclass(frozen=True)
class Devices:
    """Device rows that speak (M5), sorted by key: one a device and column that was reported.

    `samples`: scrapes; `interval`: ms between them; `used` in units (0 where it is not exported); `capacity` U.
    """

    key: Ints
    samples: Ints
    interval: Ints
    used: Ints
    capacity: Ints


def speaks(key: Ints, rank: Ints) -> Ints:
    """M5: rows of the lowest rank for each key, sorted by key."""
    order = order_of(key, rank)
    return order[starts_of(key[order])]


def capacity(
    used: Floats, free: Floats, reserved: Floats, total: Floats, device: Ints, book_mib: Floats
) -> tuple[Ints, Bools]:
    """D4: total less reserved, or used and free together; else the device's own at another time; else the book's.

    Rows sorted by (device, time), MiB; `book_mib` by row. In units, and whether the book had to say it.
    """
    found = total - reserved
    found = np.where(np.isnan(found), used + free, found)
    found = np.where(np.isnan(found), total, found)
    row = np.arange(found.size)
    good = ~np.isnan(found)
    before = np.maximum.accumulate(np.where(good, row, -1))
    after = np.minimum.accumulate(np.where(good, row, found.size)[::-1])[::-1]
    for place in (before, after):
        at = np.clip(place, 0, max(found.size - 1, 0))
        ok = np.isnan(found) & (place >= 0) & (place < found.size) & (device[at] == device)
        found = np.where(ok, found[at], found)
    book = np.isnan(found)
    return units(np.where(book, book_mib, found)), book


@dataclass(frozen=True)
class Uses:
    """Memory by key and pod (-1: a process without one), sorted so; `memory` in units, `guess` where by H3's slots.

    `standing`: from an earlier window, since the process exporter is silent (G2).
    """

    key: Ints
    pod: Ints
    memory: Ints
    guess: Bools
    standing: Bools

    def take(self, rows: Ints) -> "Uses":
        """Some of the rows."""
        return Uses(self.key[rows], self.pod[rows], self.memory[rows], self.guess[rows], self.standing[rows])


def time_weighted(total_mib: Floats, interval: Ints, samples: Ints, device_interval: Ints) -> Ints:
    """M1: a consumer's mean memory over the seconds in which its device was observed, in units."""
    step = np.where(interval > 0, interval, device_interval).astype(np.float64)
    device_step = np.where(device_interval > 0, device_interval, interval).astype(np.float64)
    step, device_step = (np.where(s > 0, s, 1.0) for s in (step, device_step))
    return units(total_mib * step / (np.maximum(samples, 1) * device_step))


def merged(uses: Uses) -> Uses:
    """Sorted by (key, pod), each pair once."""
    order = order_of(uses.key, uses.pod)
    key, pod = uses.key[order], uses.pod[order]
    starts = starts_of(key, pod)
    if not starts.size:
        return uses
    any_of = np.logical_or.reduceat
    return Uses(
        key[starts], pod[starts], sums(uses.memory[order], starts),
        any_of(uses.guess[order], starts), any_of(uses.standing[order], starts),
    )  # fmt: skip


def silent_processes(
    uses: Uses, seen: Bools, devices: Devices, node: Ints, width: int, reach: int
) -> tuple[Uses, Bools]:
    """G2: where all process series of a node stopped though its devices' memory stays, the last window's m stand in.

    `seen`: (nodes, width), whether the node had any process sample; `node`: by device; `reach`: `max_gap` in
    windows. Returns the uses with those added, and a (nodes, width) mask of the windows in which that was so.
    """
    nodes = seen.shape[0]
    columns = np.arange(width)
    last = np.maximum.accumulate(np.where(seen, columns, -1), axis=1)
    explained, used, reported = (np.zeros((nodes, width), np.int64) for _ in range(3))
    np.add.at(explained, (node[uses.key // width], uses.key % width), uses.memory // 1024)
    np.add.at(used, (node[devices.key // width], devices.key % width), devices.used // 1024)
    np.add.at(reported, (node[devices.key // width], devices.key % width), 1)
    before = np.take_along_axis(explained, np.maximum(last, 0), axis=1)
    silent = ~seen & (last >= 0) & (columns - last <= reach) & (reported > 0) & (before > 0) & (2 * used >= before)
    if not silent.any():
        return uses, silent
    keys = devices.key[silent[node[devices.key // width], devices.key % width]]
    source = keys // width * width + last[node[keys // width], keys % width]
    starts = np.searchsorted(uses.key, source)
    count = np.searchsorted(uses.key, source, side="right") - starts
    which, rows = expand(starts, count)
    joined = Uses(
        np.concatenate([uses.key, keys[which]]),
        np.concatenate([uses.pod, uses.pod[rows]]),
        np.concatenate([uses.memory, uses.memory[rows]]),
        np.concatenate([uses.guess, uses.guess[rows]]),
        np.concatenate([uses.standing, np.ones(which.size, bool)]),
    )
    return merged(joined), silent


@dataclass(frozen=True)
class Entries:
    """Who used or held a device in a window, sorted by (key, pod): memory in units, slots held (0: none)."""

    key: Ints
    pod: Ints
    memory: Ints
    slots: Ints
    has_data: Bools
    guess: Bools


@dataclass(frozen=True)
class Unexplained:
    """H3's three outcomes, by row of `Devices`: memory that went to the one pod, by slots, or to nobody's account."""

    one_pod: Ints
    by_slots: Ints
    nobody: Ints


def entries(uses: Uses, key: Ints, pod: Ints, slots: Ints) -> Entries:
    """Uses and holders (sorted by (key, pod)) in one table."""
    keys, pods = np.concatenate([uses.key, key]), np.concatenate([uses.pod, pod])
    order = order_of(keys, pods)
    k, p = keys[order], pods[order]
    starts = starts_of(k, p)
    n, m = uses.key.size, key.size

    def column(of_uses: Ints | Bools, of_holders: Ints | Bools) -> Ints:
        return np.asarray(sums(np.concatenate([of_uses, of_holders])[order].astype(np.int64), starts))

    zero, one = np.zeros(m, np.int64), np.ones(n, np.int64)
    return Entries(
        k[starts], p[starts], column(uses.memory, zero), column(np.zeros(n, np.int64), slots),
        column(one, zero) > 0, column(uses.guess, zero) > 0,
    )  # fmt: skip


def _tolerance(devices: Devices) -> Ints:
    return np.maximum(devices.capacity // 50, 512 * UNITS)


def explain(found: Entries, devices: Devices) -> tuple[Entries, Unexplained]:
    """H3: used memory that no process explains goes to the only pod there, else by slots to the holders without
    process data, else to nobody (pod -1).
    """
    g = devices.key.size
    row = find(devices.key, found.key)
    total, pods, blind_slots = (np.zeros(g, np.int64) for _ in range(3))
    np.add.at(total, row, found.memory)
    named = found.pod >= 0
    np.add.at(pods, row, named.astype(np.int64))
    rest = devices.used - total
    rest = np.where(rest > _tolerance(devices), rest, 0)
    blind = named & (found.slots > 0) & ~found.has_data
    np.add.at(blind_slots, row, np.where(blind, found.slots, 0))
    to_one, to_blind = (rest > 0) & (pods == 1), (rest > 0) & (pods != 1) & (blind_slots > 0)
    to_nobody = (rest > 0) & (pods != 1) & (blind_slots == 0)
    memory = found.memory + np.where(named & to_one[row], rest[row], 0)
    guess = found.guess.copy()
    picked = np.flatnonzero(blind & to_blind[row])
    if picked.size:
        starts = starts_of(row[picked])
        groups = row[picked][starts]
        parts, _ = divide(rest[groups], found.slots[picked], starts, blind_slots[groups])
        memory[picked] += parts
        guess[picked] = True
    result = Entries(found.key, found.pod, memory, found.slots, found.has_data, guess)
    lost = np.flatnonzero(to_nobody)
    if lost.size:
        extra = Uses(
            devices.key[lost], np.full(lost.size, -1), rest[lost], np.zeros(lost.size, bool), np.zeros(lost.size, bool)
        )
        result = _with(result, extra)
    zero = np.zeros(g, np.int64)
    return result, Unexplained(
        np.where(to_one, rest, zero), np.where(to_blind, rest, zero), np.where(to_nobody, rest, zero)
    )


def _with(found: Entries, extra: Uses) -> Entries:
    keys, pods = np.concatenate([found.key, extra.key]), np.concatenate([found.pod, extra.pod])
    order = order_of(keys, pods)
    starts = starts_of(keys[order], pods[order])
    n = extra.key.size

    def column(a: Ints | Bools, b: Ints | Bools) -> Ints:
        return np.asarray(sums(np.concatenate([a, b])[order].astype(np.int64), starts))

    zero = np.zeros(n, np.int64)
    return Entries(
        keys[order][starts], pods[order][starts], column(found.memory, extra.memory), column(found.slots, zero),
        column(found.has_data, zero) > 0, column(found.guess, zero) > 0,
    )  # fmt: skip


def scaled(found: Entries, devices: Devices) -> Entries:
    """M4: memory of consumers that adds up to more than a device's capacity, scaled to it."""
    starts = starts_of(found.key)
    row = find(devices.key, found.key[starts])
    total = sums(found.memory, starts)
    over = np.flatnonzero((total > devices.capacity[row]) & (devices.capacity[row] > 0))
    if not over.size:
        return found
    _, rows = expand(starts[over], sizes(starts, found.key.size)[over])
    firsts = np.cumsum(np.append(0, sizes(starts, found.key.size)[over]))[:-1]
    memory = found.memory.copy()
    memory[rows], _ = divide(devices.capacity[row[over]], found.memory[rows], firsts, total[over])
    return Entries(found.key, found.pod, memory, found.slots, found.has_data, found.guess)


def over_capacity(found: Entries, devices: Devices) -> Bools:
    """M4: by device row, whether its consumers' memory adds up to more than its capacity."""
    total = np.zeros(devices.key.size, np.int64)
    np.add.at(total, find(devices.key, found.key), found.memory)
    return total > devices.capacity
