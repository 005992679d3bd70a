"""The program's configuration for the made-up cluster, and its commands."""

from pathlib import Path
from typing import Any

from clusters import write

from chargeback import config, pipeline

from .fleet import PRICES

CLUSTER = "bench"


def job(folder: Path, now: int, **settings: Any) -> Any:
    """A job whose store is `folder`/store, at the time `now` (ms)."""
    path = write(folder, "", PRICES, cluster=CLUSTER, **settings)
    loaded, origin = config.load(path)
    return pipeline.prepare(loaded, origin, folder, now)
