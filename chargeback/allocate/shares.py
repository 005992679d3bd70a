"""S: dividing what a device cost in a window among those who used and held it."""

from dataclasses import dataclass

import numpy as np

from chargeback.config import Allocation
from chargeback.money import Ints, divide, share
from chargeback.tables import sizes, sums

_FINE = 1 << 44


@dataclass(frozen=True)
class Shares:
    """Whole nano-units: by entry its `used` and `idle` charge, by device what is `unallocated` and `platform_idle`."""

    used: Ints
    idle: Ints
    unallocated: Ints
    platform_idle: Ints


def divide_devices(
    cost: Ints, capacity: Ints, slots: Ints, starts: Ints, memory: Ints, held: Ints, policy: Allocation
) -> Shares:
    """S1 to S4 for n entries in g devices; each device's charges add up to its cost exactly (R1).

    By device (g): `cost` in nano-units, `capacity` U, `slots` that it has, `starts` of its entries (none empty).
    By entry (n), grouped by device in a canonical order: `memory` m in the unit of U, `held` slots (0: not a
    holder). Devices without entries are the caller's (S4).
    """
    size = sizes(starts, memory.size)
    all_memory, all_held = sums(memory, starts), sums(held, starts)
    whole = np.maximum(capacity, all_memory)
    slots = np.maximum(np.maximum(slots, all_held), 1)
    none = np.zeros(cost.size, np.int64)
    if policy.basis == "request":
        used, rest = divide(cost, held, starts, slots)
        return Shares(used, np.zeros(memory.size, np.int64), rest, none)
    if policy.basis == "max":
        fine = np.full(memory.size, _FINE)
        larger = np.maximum(
            share(fine, memory, np.repeat(np.maximum(whole, 1), size)), share(fine, held, np.repeat(slots, size))
        )
        # floors of parts that make up the whole may miss it by a unit each; then they are the whole
        total = sums(larger, starts)
        used, rest = divide(cost, larger, starts, np.where(total >= _FINE - size, np.maximum(total, 1), _FINE))
    else:
        used, rest = divide(cost, memory, starts, np.maximum(whole, 1))
    by_memory, by_held = all_memory > 0, all_held > 0
    if policy.idle == "platform":
        owed = by_memory | by_held
        return Shares(used, np.zeros(memory.size, np.int64), np.where(owed, none, rest), np.where(owed, rest, none))
    if policy.idle == "holders":
        use_held = by_held
        base = np.where(by_held, slots, np.maximum(all_memory, 1))
    else:
        use_held = ~by_memory
        base = np.where(by_memory, all_memory, np.maximum(all_held, 1))
    weight = np.where(np.repeat(use_held, size), held, memory)
    idle, left = divide(rest, weight, starts, base)
    return Shares(used, idle, left, none)
