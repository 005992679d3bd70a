"""C5, D2 and G1: which GPUs a node's cost is divided among in each window, and from which window their shares come."""

from dataclasses import dataclass

import numpy as np

from chargeback.money import share
from chargeback.tables import Bools, Ints

MEASURED, CARRIED, SILENT = 0, 1, 2


@dataclass(frozen=True)
class Placed:
    """One row a GPU and column: its part of the node's cost, and the column whose report holds for it.

    `state`: `MEASURED` (reported in it), `CARRIED` (G1) or `SILENT` (only the layout of `source` stands; -1: none).
    """

    gpu: Ints
    column: Ints
    source: Ints
    state: Ints
    cost: Ints


@dataclass(frozen=True)
class Anonymous:
    """By column: what the GPUs cost that a node has and of which nothing is known, and how many they are."""

    column: Ints
    cost: Ints
    gpus: Ints


def place(reported: Bools, cost: Ints, wanted: Ints, begun: Ints, reach: int) -> tuple[Placed, Anonymous]:
    """Divides one node's cost among its GPUs, column by column.

    `reported`: (n GPUs in UUID order, width); column 0 is what was reported before the others. By column: `cost` in
    nano-units (-1: the node is not billed there), `wanted` how many GPUs the node has, `begun` the first column of
    its life. `reach`: `max_gap` in columns. Those that report come first, then those most recently heard of, while
    there is room (C5).
    """
    n, width = reported.shape
    columns = np.arange(width)
    last = np.maximum.accumulate(np.where(reported, columns, -1), axis=1)
    at = np.flatnonzero(cost >= 0)
    seen = reported[:, at].sum(axis=0)
    room = np.maximum(wanted[at], seen)
    heard = last[:, at]
    heard = np.where(heard >= begun[at], heard, -1)
    order = np.argsort(-heard, axis=0, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(n)[:, None], order.shape), axis=0)
    placed = (heard >= 0) & (rank < room)
    place_no = np.cumsum(placed, axis=0)
    gpu, where = np.nonzero(placed)
    number, total, whole = place_no[gpu, where], cost[at][where], room[where]
    part = share(total, number, whole) - share(total, number - 1, whole)
    column, source = at[where], heard[gpu, where]
    state = np.where(source == column, MEASURED, CARRIED)
    state = np.where((source == 0) | (column - source > reach), SILENT, state)
    count = place_no[-1] if n else np.zeros(at.size, np.int64)
    rest = cost[at] - share(cost[at], count, np.maximum(room, 1))
    missing = room - count
    keep = missing > 0
    return (
        Placed(gpu, column, source, state, part),
        Anonymous(at[keep], rest[keep], missing[keep]),
    )
