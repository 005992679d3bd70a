"""A month from evidence to reports."""

import time
from pathlib import Path

from chargeback import pipeline
from chargeback.ledger import Store
from chargeback.period import DAY, Period

from . import evidence
from .child import alone
from .figures import Figure
from .fleet import START, Fleet
from .jobs import CLUSTER, job

NODES = 125
ONE_IN = 4


def prepare(folder: str, nodes: int, days: int) -> None:
    """Evidence of some days; each day has pods of its own."""
    store = Store(Path(folder) / "store")
    for n in range(days):
        evidence.write(store, CLUSTER, Fleet(nodes, ONE_IN, era=n), START + n * DAY)


def report(folder: str, days: int) -> float:
    """Bills the first days; gives seconds."""
    period = Period(START, START + days * DAY, f"{days}-days", "UTC")
    work = job(Path(folder), START + 100 * DAY)
    began = time.perf_counter()
    built, _ = pipeline.report(work, period)
    assert built.billed > 0
    return time.perf_counter() - began


def measure(folder: str, nodes: int = NODES, days: int = 31, few: int = 8) -> list[Figure]:
    """Time and memory of a month, and whether both grow as days do."""
    alone(prepare, folder, nodes, days)
    short, long = alone(report, folder, few), alone(report, folder, days)
    return [
        Figure(f"{days} days", long.result, "s", 60.0),
        Figure("peak memory", long.peak / 2**20, "MiB", 1024.0),
        Figure(f"time of {days} days ÷ time of {few}", long.result / short.result, goal=days / few * 1.1),
        Figure(f"peak memory of {days} days ÷ of {few}", long.peak / short.peak),
    ]
