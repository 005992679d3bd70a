"""What a run works on."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chargeback import exporters
from chargeback import prices as price_books
from chargeback.config import Config
from chargeback.documents import Origin
from chargeback.ledger import Store
from chargeback.period import zone_of
from chargeback.prices import Prices


class Progress(Protocol):
    """Tells a person how far the work is: `steps` of `what`, one at a time."""

    def __call__(self, what: str, steps: Iterable[Any], total: int) -> Iterable[Any]: ...


def quiet(what: str, steps: Iterable[Any], total: int) -> Iterable[Any]:  # noqa: ARG001 - a `Progress` that says nothing
    """No talk."""
    return steps


@dataclass(frozen=True)
class Job:
    """Configuration, where it came from, prices, store, the clock (ms) and whom to tell."""

    config: Config
    origin: Origin
    prices: Prices
    store: Store
    now: int
    progress: Progress = quiet


def prepare(config: Config, origin: Origin, folder: Path, now: int, progress: Progress = quiet) -> Job:
    """Everything that a run needs, from a configuration whose paths are from `folder`."""
    exporters.configured(config)  # a profile that is not there is said before anything is written
    prices = price_books.load(config.pricing.books, folder, config.currency, zone_of(config.timezone))
    return Job(config, origin, prices, Store(config.store), now, progress)
