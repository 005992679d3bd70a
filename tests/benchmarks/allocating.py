"""A day of allocation beside the same shares in floats by Polars and DuckDB."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from chargeback import pipeline
from chargeback.allocate import day as allocate_day
from chargeback.allocate.holders import SLOT
from chargeback.allocate.memory import UNITS
from chargeback.allocate.shares import Shares, divide_devices
from chargeback.config import Allocation
from chargeback.ledger import Store
from chargeback.period import DAY, Period

from . import evidence
from .figures import Figure
from .fleet import CARD_MIB, REPLICAS, SHARERS, START, WINDOW, Fleet, Ints
from .jobs import CLUSTER, job

ROUNDS = 5


@dataclass(frozen=True)
class Rows:
    """A day of GPUs: columns by (device, window), and by consumer of these."""

    cost: Ints
    capacity: Ints
    slots: Ints
    starts: Ints
    device: Ints
    window: Ints
    memory: Ints
    held: Ints


def rows(gpus: int, windows: int) -> Rows:
    """Each GPU has three consumers in each window, which hold a slot each."""
    groups = gpus * windows
    dice = np.random.default_rng(1)
    return Rows(
        cost=dice.integers(200_000_000, 250_000_000, groups),
        capacity=np.full(groups, CARD_MIB * UNITS),
        slots=np.full(groups, REPLICAS * SLOT),
        starts=np.arange(groups) * SHARERS,
        device=np.repeat(np.arange(gpus), windows * SHARERS),
        window=np.tile(np.repeat(np.arange(windows), SHARERS), gpus),
        memory=dice.integers(1, CARD_MIB * UNITS // SHARERS, groups * SHARERS),
        held=np.full(groups * SHARERS, SLOT),
    )


def stage(given: Rows) -> Shares:
    """The program's: whole nano-units, used and idle apart, which add up to the cost."""
    return divide_devices(given.cost, given.capacity, given.slots, given.starts, given.memory, given.held, Allocation())


def with_polars(given: Rows) -> Callable[[], Any]:
    """cost * m / sum of m, in floats."""
    import polars as pl  # noqa: PLC0415 - only the benchmark has it

    frame = pl.DataFrame({
        "device": given.device, "window": given.window, "m": given.memory.astype(np.float64),
        "cost": np.repeat(given.cost, SHARERS).astype(np.float64),
    })  # fmt: skip
    share = (pl.col("cost") * pl.col("m") / pl.col("m").sum().over("device", "window")).alias("share")
    return lambda: frame.select(share).to_series().to_numpy()


def with_duckdb(given: Rows) -> Callable[[], Any]:
    """The same in SQL."""
    import duckdb  # noqa: PLC0415 - only the benchmark has it

    connection = duckdb.connect()
    columns = {
        "device": given.device, "window": given.window, "m": given.memory.astype(np.float64),
        "cost": np.repeat(given.cost, SHARERS).astype(np.float64),
    }  # fmt: skip
    connection.register("given", columns)
    connection.execute('CREATE TABLE rows AS SELECT device, "window" AS w, m, cost FROM given')
    query = "SELECT cost * m / sum(m) OVER (PARTITION BY device, w) AS share FROM rows"
    return lambda: connection.execute(query).fetchnumpy()["share"]


def best(function: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """The shortest of several times, in seconds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(gpus: int = 4_000, windows: int = 288) -> list[Figure]:
    """The stage and its rivals on the same arrays."""
    given = rows(gpus, windows)
    shares = stage(given)
    whole = shares.used.sum() + shares.idle.sum() + shares.unallocated.sum() + shares.platform_idle.sum()
    assert whole == given.cost.sum()
    ours = best(lambda: stage(given))
    out = [Figure("the stage, exact money included", ours, "s")]
    for name, rival in (("Polars' window expression", with_polars), ("DuckDB's window function", with_duckdb)):
        theirs = best(rival(given))
        out += [Figure(f"{name}, floats", theirs, "s"), Figure(f"the stage ÷ {name}", ours / theirs, goal=1.0)]
    return out


def whole_day(folder: str, nodes: int = 500) -> float:
    """Seconds that a day of so many nodes takes, all of whose GPUs are shared, from evidence to charges by hour."""
    store = Store(Path(folder) / "store")
    fleet = Fleet(nodes, one_in=1)
    evidence.write(store, CLUSTER, fleet, START)
    seconds = []
    run = allocate_day.run

    def timed(*arguments: Any) -> allocate_day.Day:
        began = time.perf_counter()
        result = run(*arguments)
        seconds.append(time.perf_counter() - began)
        return result

    period = Period(START, START + DAY, "a-day", "UTC")
    with patch.object(allocate_day, "run", timed):
        pipeline.report(job(Path(folder), START + 10 * DAY), period)
    assert len(seconds) == 1
    assert WINDOW * 288 == DAY
    return seconds[0]
