"""The example month: October 2026 in a made-up cluster, its samples made from a seed.

`cluster.py` tells what happens there (start with its `STORY`), `samples.py` turns that into the series that a
Prometheus would hold, and the two YAML files beside them are the configuration and price book that bill it.
"""

from importlib import resources
from pathlib import Path

import numpy as np

from chargeback.demo import cluster, samples
from chargeback.demo.cluster import at
from chargeback.sources import SourceInfo
from chargeback.sources.memory import MemorySource

PERIOD = "2026-10"
NOW = at("28 00:00") + 7 * 86_400_000
"""When the demo takes place, whatever the clock says: a few days after the month."""

FILES = ("chargeback.yaml", "prices.yaml")


def source(seed: int = 7) -> MemorySource:
    """Samples of the month and an hour on both sides of it; the same seed gives the same arrays."""
    rng = np.random.default_rng(seed)
    held = samples.of(cluster.NODES, cluster.pods(rng), rng)
    return MemorySource(held, SourceInfo("demo", str(seed), "built-in example month"))


def config(folder: Path) -> dict[Path, str]:
    """The text of each file that the demo writes into `folder`, by path; the configuration is the first."""
    here = resources.files(__package__)
    return {folder / name: here.joinpath(name).read_text(encoding="utf-8") for name in FILES}
