"""One day of one cluster: evidence in, charges by hour out; the rules in the order in which they build on another."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from chargeback.allocate import devices, gaps, holding, memory, placing, uses
from chargeback.allocate.charges import IDLE, UNALLOCATED, UNOBSERVED, UNPARTITIONED, USED, Charges, by_hour
from chargeback.allocate.devices import Reported
from chargeback.allocate.frame import Cluster, Frame
from chargeback.allocate.holders import SLOT, Field
from chargeback.allocate.placing import Placement, PriceKey
from chargeback.allocate.shares import divide_devices
from chargeback.allocate.uses import People, Used
from chargeback.money import divide
from chargeback.period import HOUR
from chargeback.problems import Problem
from chargeback.tables import Bools, Floats, Ints, expand, find, order_of, sizes, starts_of, sums


@dataclass(frozen=True)
class Day:
    """A day's result: charges by hour (see `charges.by_hour`), the sum of node costs and what carried windows cost
    (nano-units), keys without a price, and findings.
    """

    charges: pa.Table
    node_cost: int
    carried: int
    missing_prices: dict[PriceKey, tuple[int, set[str]]]
    problems: list[Problem]


def run(cluster: Cluster, tables: dict[str, pa.Table], first: int, last: int, lead: int) -> Day:
    """Charges windows `[first, last)`; `tables` hold devices, consumers and holders of `[first - lead, last)`."""
    frame = Frame(cluster, tables, first, last, lead)
    reported = devices.read(frame)
    people = uses.identify(frame)
    used = uses.read(frame, reported, people)
    held, field = holding.read(frame, reported, people, used.uses)
    entries = memory.entries(used.uses, held.key, held.pod, held.slots)
    entries, rest = memory.explain(entries, reported.rows)
    holding.tell(frame, people, entries, rest, reported.rows)
    entries = memory.scaled(entries, reported.rows)
    charges = Charges()
    placement = placing.place(frame, reported, charges)
    divider = _Divider(frame, reported, people, used, field, entries, placement, charges)
    carried = divider.divide()
    sharing = holding.sharing(frame, held, field)
    table = by_hour(frame, charges, people.pods, divider.abouts, sharing, placement.entry, placement.fact)
    return Day(table, placement.node_cost, carried, placement.missing, frame.problems.sorted())


@dataclass
class _Divider:
    """What placed GPUs cost -> charges: D2, then S1 to S4, over gaps too (G1)."""

    frame: Frame
    reported: Reported
    people: People
    used: Used
    field: Field
    entries: memory.Entries
    placement: Placement
    charges: Charges

    def __post_init__(self) -> None:
        self.abouts = list(self.reported.abouts)

    def divide(self) -> int:
        """Charges everything; returns what windows that were carried over a gap cost."""
        frame, rows, p = self.frame, self.reported.rows, self.placement.placed
        node = self.placement.node
        device = rows.key // frame.width
        scene = frame.gpu_of[device] * frame.width + rows.key % frame.width
        order = order_of(scene, device)
        starts = starts_of(scene[order])
        at = find(scene[order][starts], p.gpu * frame.width + p.source)
        part, whole = self._parts(order, starts)
        which, row = expand(starts[at], sizes(starts, scene.size)[at])
        cost, left = divide(p.cost, part[row], starts_of(which), whole[at])
        fraction = part[row] / whole[at][which]
        hours = self.placement.alive[node, p.column] / HOUR
        self.charges.add(
            UNPARTITIONED, column=p.column, node=node, thing=p.gpu, about=self._card(order, row, which, p.gpu.size),
            cost=left, gpus=np.maximum(1 - np.bincount(which, fraction, p.gpu.size), 0) * hours,
        )  # fmt: skip
        found = order[row]
        column, of_node, gpus = p.column[which], node[which], fraction * hours[which]
        quiet = np.flatnonzero(p.state[which] == gaps.SILENT)
        self._add(UNOBSERVED, found[quiet], column[quiet], of_node[quiet], cost[quiet], gpus[quiet])
        live = np.flatnonzero(p.state[which] != gaps.SILENT)
        carried = p.state[which][live] == gaps.CARRIED
        self._share(found[live], column[live], of_node[live], cost[live], gpus[live], carried)
        return int(p.cost[p.state == gaps.CARRIED].sum())

    def _parts(self, order: Ints, starts: Ints) -> tuple[Ints, Ints]:
        """D2: by device row (in `order`) its part, and by GPU and column the whole that the parts are of."""
        frame, rows = self.frame, self.reported.rows
        is_slice = frame.is_slice[rows.key[order] // frame.width]
        about = self.reported.about[order]
        part, whole = np.ones(order.size, np.int64), np.ones(order.size, np.int64)
        kinds = np.unique(about[is_slice]).tolist()
        for a in kinds:
            at = np.flatnonzero(is_slice & (about == a))
            model, profile = self.abouts[a]
            together = frozenset(self.abouts[b][1] for b in kinds if self.abouts[b][0] == model)
            capacity = float(np.median(rows.capacity[order][at])) / memory.UNITS
            found = frame.cluster.mig.slices(model, profile, together, capacity or float("nan"))
            part[at], whole[at] = found.part, found.whole
            if not found.known:
                frame.problems.add(
                    "unknown-mig-profile", f"{model} {profile or '(none)'}",
                    "not in the MIG table; its part of the card goes by its memory", count=at.size,
                )  # fmt: skip
        most = np.maximum.reduceat(whole, starts) if starts.size else whole
        return part, np.maximum(sums(part, starts), most)

    def _card(self, order: Ints, row: Ints, which: Ints, n: int) -> Ints:
        """By placed GPU a code in `abouts` for its model without a profile."""
        plain = {a: i for i, a in enumerate(self.abouts) if not a[1]}
        card = np.empty(len(self.abouts), np.int64)
        for i, (model, _) in enumerate(list(self.abouts)):
            if (model, "") not in plain:
                plain[model, ""] = len(self.abouts)
                self.abouts.append((model, ""))
            card[i] = plain[model, ""]
        out = np.zeros(n, np.int64)
        out[which] = card[self.reported.about[order[row]]]
        return out

    def _share(self, rows: Ints, column: Ints, node: Ints, cost: Ints, gpus: Floats, carried: Bools) -> None:
        """S1 to S4 for device rows, each standing for its device in `column`; who is gone by then has no part (G1)."""
        frame, e = self.frame, self.entries
        key = self.reported.rows.key[rows]
        first = np.searchsorted(e.key, key)
        which, entry = expand(first, np.searchsorted(e.key, key, side="right") - first)
        pod = e.pod[entry]
        gone = carried[which] & (pod >= 0)
        gone &= frame.cluster.pods.gone(self.people.pods, np.maximum(pod, 0), column[which] + frame.base)
        keep = ~gone & ((e.memory[entry] > 0) | (e.slots[entry] > 0))
        which, entry, pod = which[keep], entry[keep], pod[keep]
        starts = starts_of(which)
        group = which[starts]
        used = np.zeros(rows.size, np.int64)
        used[group] = sums(e.memory[entry], starts)
        held = np.zeros(rows.size, np.int64)
        held[group] = sums(e.slots[entry], starts)
        capacity = np.maximum(np.maximum(self.reported.rows.capacity[rows], used), 1)
        slots = np.maximum(self.field.slots[rows] * SLOT, held)
        estimated = carried | self.used.silent[node, key % frame.width]
        gib = capacity / (memory.UNITS * 1024) * (self.placement.alive[node, column] / HOUR)
        shares = divide_devices(
            cost[group], capacity[group], slots[group], starts, e.memory[entry], e.slots[entry], frame.config.allocation
        )
        whole = np.maximum(cost, 1)

        def add(kind: int, at: Ints, amount: Ints, part: Floats, who: Ints | None, guess: Bools) -> None:
            self._add(kind, rows[at], column[at], node[at], amount, part * gpus[at], part * gib[at], who, guess)

        used_part = np.where(cost[which] > 0, shares.used / whole[which], e.memory[entry] / capacity[which])
        add(
            USED,
            which,
            shares.used,
            used_part,
            pod,
            estimated[which] | self._guessed(entry, capacity[which], slots[which]),
        )
        add(IDLE, which, shares.idle, shares.idle / whole[which], pod, estimated[which])
        for kind, amount in ((UNALLOCATED, shares.unallocated), (IDLE, shares.platform_idle)):
            add(kind, group, amount, amount / whole[group], None, estimated[group])
        alone = np.setdiff1d(np.arange(rows.size), group)
        add(UNALLOCATED, alone, cost[alone], np.ones(alone.size), None, estimated[alone])

    def _guessed(self, entry: Ints, capacity: Ints, slots: Ints) -> Bools:
        """G3: whether a `used` charge rests on memory that was split by slots (H3)."""
        e, basis = self.entries, self.frame.config.allocation.basis
        if basis == "request":
            return np.zeros(entry.size, bool)
        by_memory = basis == "memory" or (e.memory[entry] / capacity > e.slots[entry] / np.maximum(slots, 1))
        return np.asarray(e.guess[entry] & by_memory, bool)

    def _add(
        self, kind: int, rows: Ints, column: Ints, node: Ints, cost: Ints, gpus: Floats, gib: Floats | None = None,
        pod: Ints | None = None, estimated: Bools | None = None,
    ) -> None:  # fmt: skip
        thing = self.reported.rows.key[rows] // self.frame.width + len(self.frame.gpus)
        self.charges.add(
            kind, column=column, node=node, thing=thing, about=self.reported.about[rows], cost=cost, gpus=gpus,
            gib=gib, pod=pod, estimated=estimated,
        )  # fmt: skip
