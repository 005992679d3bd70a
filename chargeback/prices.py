"""Price books -> what a node costs per hour at an instant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, tzinfo
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from chargeback.config import Instant, Model, PurchaseOption
from chargeback.documents import Origin, parse, read_yaml
from chargeback.errors import ConfigError
from chargeback.money import parse_price, to_decimal
from chargeback.period import HOUR, month_lengths, to_ms
from chargeback.resources import pricing as pricing_dir

Ints = NDArray[np.int64]
Price = Annotated[int, BeforeValidator(parse_price)]
"""Nano-units; written as a decimal in quotes."""
_EVER = 2**62


class Instance(Model):
    """What an instance type has; a fractional GPU counts as one (C5). Without `gpus` a model alone says it has some."""

    gpus: float | None = Field(None, ge=0)
    gpu_model: str = ""
    gpu_memory_gib: float = Field(0, ge=0)
    vcpus: float = Field(0, ge=0)
    memory_gib: float = Field(0, ge=0)


class PriceEntry(Model):
    """One price: for a node, or for an instance type with or without a region; with or without a purchase option."""

    node: str | None = None
    instance_type: str | None = None
    region: str | None = None
    purchase_option: PurchaseOption | None = None
    per_hour: Price | None = None
    per_month: Price | None = None
    since: Instant | None = Field(None, alias="from")
    until: Instant | None = Field(None, alias="to")

    @model_validator(mode="after")
    def _key(self) -> "PriceEntry":
        if (self.node is None) == (self.instance_type is None):
            raise ValueError("needs exactly one of node and instance_type")
        if self.node is not None and self.region is not None:
            raise ValueError("a node's price takes no region")
        if (self.per_hour is None) == (self.per_month is None):
            raise ValueError("needs exactly one of per_hour and per_month")
        return self


class UnitRates(Model):
    vcpu_hour: Price
    gib_hour: Price


class Book(Model):
    """A price book as written (interfaces.md)."""

    currency: str = Field(pattern="^[A-Z]{3}$")
    source: str
    as_of: date
    unit_rates: UnitRates | None = None
    instances: dict[str, Instance] = Field(default_factory=dict)
    prices: tuple[PriceEntry, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A price in force in `[start, end)` ms, in nano-units per hour or per calendar month (P6); `name` says which
    entry of which book it is.
    """

    node: str
    instance_type: str
    region: str
    option: str
    amount: int
    monthly: bool
    start: int
    end: int
    name: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.node, self.instance_type, self.region, self.option


@dataclass(frozen=True)
class Prices:
    """All books together: instance types and entries, later books' keys in place of earlier ones' (P1)."""

    instances: dict[str, Instance]
    entries: list[Entry]
    books: list[tuple[str, Book]]
    files: list[Origin]
    zone: tzinfo

    def gpu_types(self) -> set[str]:
        """Instance types that have GPUs (C1)."""
        return {n for n, i in self.instances.items() if (i.gpus or 0) > 0 or (i.gpus is None and i.gpu_model)}

    def gpus(self, instance_type: str) -> int:
        """Physical GPUs of an instance type, 0 where the books do not say; a fractional one counts as one (C5)."""
        found = self.instances.get(instance_type)
        return max(1, int(found.gpus)) if found and found.gpus else 0

    def at(self, node: str, instance_type: str, region: str, option: str, at: Ints) -> tuple[Ints, Ints, Ints]:
        """C2: by instant (ms) the price in nano-units, for how many ms it is, and the entry's place in `entries`; -1
        without one.

        A price per month is for the calendar month that the instant lies in (P6).
        """
        price, which = np.full(at.size, -1, np.int64), np.full(at.size, -1, np.int64)
        span = np.full(at.size, HOUR, np.int64)
        ranked = []
        for i, e in enumerate(self.entries):
            if e.option not in ("", option):
                continue
            if e.node:
                rank = 2 if e.node == node else -1
            elif e.instance_type != instance_type or not instance_type:
                rank = -1
            else:
                rank = (1 if e.region == region else -1) if e.region else 0
            if rank >= 0:
                ranked.append(((rank, e.option != ""), i))
        for _, i in sorted(ranked):
            e = self.entries[i]
            inside = (at >= e.start) & (at < e.end)
            price[inside], which[inside] = e.amount, i
            span[inside] = month_lengths(at[inside], self.zone) if e.monthly else HOUR
        return price, span, which


def load(names: Sequence[str], folder: Path, currency: str, zone: tzinfo) -> Prices:
    """Reads the books `names` (`builtin:NAME`, or paths from `folder`) in order. Raises `ConfigError`."""
    instances: dict[str, Instance] = {}
    entries: list[Entry] = []
    books, files = [], []
    for name in names:
        path = _path(name, folder)
        data, digest, size = read_yaml(path, "price book")
        book = parse(Book, data, path)
        if book.currency != currency:
            raise ConfigError(
                f"{path}: prices are in {book.currency}, the report is in {currency} (P4)",
                f"write a book in {currency}",
            )
        shown = name if name.startswith("builtin:") else path.name
        own = [_entry(e, i, shown, zone, path) for i, e in enumerate(book.prices)]
        _check_overlaps(own, path)
        replaced = {e.key for e in own}
        entries = [e for e in entries if e.key not in replaced] + own
        instances |= book.instances
        books.append((shown, book))
        files.append(Origin(path=path, sha256=digest, bytes=size))
    return Prices(instances, entries, books, files, zone)


def _path(name: str, folder: Path) -> Path:
    if not name.startswith("builtin:"):
        return folder / name
    known = sorted(p.stem for p in pricing_dir().glob("*.yaml") if p.stem != "mig")
    if name.removeprefix("builtin:") not in known:
        raise ConfigError(f"pricing.books: there is no book {name}", f"shipped are {', '.join(known) or 'none'}")
    return pricing_dir() / f"{name.removeprefix('builtin:')}.yaml"


def _entry(e: PriceEntry, place: int, book: str, zone: tzinfo, path: Path) -> Entry:
    start = to_ms(e.since, zone) if e.since else -_EVER
    end = to_ms(e.until, zone) if e.until else _EVER
    what = " ".join(v for v in (e.node, e.instance_type, e.region, e.purchase_option) if v)
    if end <= start:
        raise ConfigError(f"{path}: prices.{place} ({what}): to is not after from", "swap the dates")
    monthly = e.per_hour is None
    amount = e.per_month if e.per_hour is None else e.per_hour
    return Entry(
        e.node or "", e.instance_type or "", e.region or "", e.purchase_option or "", amount or 0, monthly, start, end,
        f"{book}#{place + 1} {what}: {to_decimal(amount or 0).normalize():f} a {'month' if monthly else 'hour'}",
    )  # fmt: skip


def _check_overlaps(entries: list[Entry], path: Path) -> None:
    by_key: dict[tuple[str, str, str, str], list[Entry]] = {}
    for e in entries:
        for other in by_key.setdefault(e.key, []):
            if e.start < other.end and other.start < e.end:
                raise ConfigError(
                    f"{path}: two prices for one key at once: {other.name} and {e.name} (P1)",
                    "give the earlier one a `to`, the later one a `from`",
                )
        by_key[e.key].append(e)


class MigProfile(Model):
    compute: int = Field(gt=0)
    memory: int = Field(gt=0)


class MigCard(Model):
    """A card that can be partitioned: how its models are called, its slices in all, and its profiles."""

    name: str
    models: tuple[str, ...]
    memory_gib: float
    compute: int
    memory: int
    profiles: dict[str, MigProfile]


class MigTable(Model):
    source: str
    as_of: date
    cards: tuple[MigCard, ...]


def mig_table() -> MigTable:
    """The shipped table of cards and MIG profiles (D2)."""
    path = pricing_dir() / "mig.yaml"
    return parse(MigTable, read_yaml(path, "MIG table")[0], path)


Weight = Literal["memory", "compute", "max"]
