"""C1 to C3, C5, G1 on a day's nodes: what each cost in each window, and the GPUs among which it is divided."""

from dataclasses import dataclass

import numpy as np

from chargeback.allocate import gaps
from chargeback.allocate.charges import UNOBSERVED, Charges
from chargeback.allocate.devices import Reported
from chargeback.allocate.frame import Frame
from chargeback.money import scaled
from chargeback.period import HOUR
from chargeback.tables import Ints

PriceKey = tuple[str, str, str, str]


@dataclass
class Placement:
    """Placed GPUs with their nodes; by (node, column) ms alive, price entry and facts of the node; the sum of node
    costs in nano-units; and keys without a price, with ms and nodes concerned (C2).
    """

    node: Ints
    placed: gaps.Placed
    alive: Ints
    entry: Ints
    fact: Ints
    node_cost: int
    missing: dict[PriceKey, tuple[int, set[str]]]


def place(frame: Frame, reported: Reported, charges: Charges) -> Placement:
    """Divides each node's cost among its GPUs; GPUs of which nothing is known are charged as unobserved at once."""
    shape = (len(frame.nodes), frame.width)
    out = Placement(
        np.empty(0, np.int64), gaps.Placed(*(np.empty(0, np.int64) for _ in range(5))), np.zeros(shape, np.int64),
        np.full(shape, -1, np.int64), np.full(shape, -1, np.int64), 0, {},
    )  # fmt: skip
    seen = np.zeros((len(frame.gpus), frame.width), bool)
    seen[frame.gpu_of[reported.rows.key // frame.width], reported.rows.key % frame.width] = True
    nodes, parts = [], []
    for n, name in enumerate(frame.nodes):
        alive, begun = _alive(frame, name)
        if not alive.any():
            continue
        out.alive[n] = alive
        price, span, wanted = _price(frame, n, alive, out)
        cost = np.where(alive > 0, scaled(price, alive, span), -1)
        out.node_cost += int(cost[cost > 0].sum())
        mine = np.flatnonzero(frame.node_of_gpu == n)
        placed, unknown = gaps.place(seen[mine], cost, wanted, begun, frame.reach)
        _tell(frame, name, unknown, placed)
        nodes.append(np.full(placed.gpu.size, n))
        parts.append((mine[placed.gpu], placed.column, placed.source, placed.state, placed.cost))
        nothing = np.full(unknown.column.size, -1)
        charges.add(
            UNOBSERVED, column=unknown.column, node=np.full(nothing.size, n), thing=nothing,
            about=np.full(nothing.size, reported.nothing), cost=unknown.cost,
            gpus=unknown.gpus * alive[unknown.column] / HOUR,
        )  # fmt: skip
    if nodes:
        out.node = np.concatenate(nodes)
        out.placed = gaps.Placed(*(np.concatenate([p[i] for p in parts]) for i in range(5)))
    return out


def _alive(frame: Frame, name: str) -> tuple[Ints, Ints]:
    """C1: by column, ms for which a node was alive and is billed, and the first column of its life."""
    windows = np.arange(frame.width) + frame.base
    alive, begun = np.zeros(frame.width, np.int64), np.zeros(frame.width, np.int64)
    for start, end in frame.cluster.lives.get(name, []):
        overlap = np.minimum(end, (windows + 1) * frame.w) - np.maximum(start, windows * frame.w)
        inside = overlap > 0
        alive[inside] += overlap[inside]
        begun[inside] = max(start // frame.w - frame.base, 0)
    alive[: frame.first] = 0
    return alive, begun


def _price(frame: Frame, n: int, alive: Ints, out: Placement) -> tuple[Ints, Ints, Ints]:
    """C2, C5: by column the price in nano-units, for how many ms it is, and how many GPUs the node has."""
    name, prices, nodes = frame.nodes[n], frame.cluster.prices, frame.cluster.nodes
    windows = np.arange(frame.width) + frame.base
    rows = nodes.rows(name, windows)
    out.fact[n] = rows
    price, wanted = np.zeros(frame.width, np.int64), np.zeros(frame.width, np.int64)
    span = np.full(frame.width, HOUR, np.int64)
    for row in np.unique(rows[alive > 0]).tolist():
        facts = nodes.facts(name, row)
        at = np.flatnonzero((rows == row) & (alive > 0))
        found, span[at], out.entry[n, at] = prices.at(
            name, facts.instance_type, facts.region, facts.option, windows[at] * frame.w
        )
        price[at] = np.maximum(found, 0)
        seen = frame.cluster.seen_at_once.get(name, 1)
        known = prices.gpus(facts.instance_type) or facts.gpu_count or seen
        if seen > known:
            frame.problems.add(
                "gpu-count", name, f"{seen} GPUs were seen at once, more than the {known} that it should have",
                count=int(at.size),
            )  # fmt: skip
        wanted[at] = max(known, seen)
        unpriced = at[found < 0]
        if unpriced.size:
            key = ("" if facts.instance_type else name, facts.instance_type, facts.region, facts.option)
            ms, names = out.missing.get(key, (0, set()))
            out.missing[key] = (ms + int(alive[unpriced].sum()), names | {name})
    return price, span, wanted


def _tell(frame: Frame, name: str, unknown: gaps.Anonymous, placed: gaps.Placed) -> None:
    add = frame.problems.add
    if unknown.column.size:
        add(
            "gpu-missing", name,
            f"up to {int(unknown.gpus.max())} of its GPUs report nothing; their cost is unobserved",
            count=int(unknown.gpus.sum()),
        )  # fmt: skip
    add(
        "scrape-gap", name,
        "windows without a report of a GPU: carried forward for up to max_gap (estimated), unobserved after",
        count=int((placed.state != gaps.MEASURED).sum()),
    )  # fmt: skip
