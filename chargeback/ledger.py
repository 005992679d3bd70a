"""The store: partitions of evidence and charges, and reports; each appears under its name only when it is whole."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chargeback.errors import CannotWrite, DataError
from chargeback.evidence.collect import TABLES, Evidence
from chargeback.evidence.gpu import NodeShare
from chargeback.period import DAY, Period, utc_day
from chargeback.problems import Problem
from chargeback.schemas import TIME

META = "partition.json"
SCHEMA = 1
ROW_GROUP = 1 << 16
"""Rows that are read together: a run needs but the last hours of the day before."""
WORDS = pa.dictionary(pa.int32(), pa.string())


@contextlib.contextmanager
def writing(what: Path) -> Iterator[None]:
    """Turns what goes wrong on a disk into `CannotWrite`."""
    try:
        yield
    except OSError as e:
        raise CannotWrite(
            f"{what}: cannot be written: {e.strerror or e}", "check the folder, its owner and free space"
        ) from None


def digest(path: Path) -> tuple[str, int]:
    """SHA-256 and size of a file."""
    h = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest(), path.stat().st_size


class Store:
    """Everything under `store`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # Evidence

    def usage(self, cluster: str, day: int) -> Path:
        return self.root / "usage" / f"cluster={cluster}" / f"date={utc_day(day)}"

    def write_evidence(self, cluster: str, day: int, evidence: Evidence, meta: dict[str, Any]) -> None:
        """Puts a partition in the place of what was there before, as the next revision."""
        before = self.meta(cluster, day)
        revision = before["revision"] + 1 if before and before["complete"] else 0
        _write_partition(self.usage(cluster, day), evidence, meta | {"revision": revision})

    # Shares of a partition wait under .shares until all are there

    def _share(self, cluster: str, day: int, share: NodeShare) -> Path:
        return (
            self.root / ".shares" / f"cluster={cluster}" / f"date={utc_day(day)}" / f"{share.index + 1}-of-{share.of}"
        )

    def write_share(self, cluster: str, day: int, share: NodeShare, evidence: Evidence, meta: dict[str, Any]) -> None:
        """Keeps the part of a partition that is of a share of the nodes."""
        _write_partition(self._share(cluster, day, share), evidence, meta | {"revision": 0})

    def share_meta(self, cluster: str, day: int, share: NodeShare) -> dict[str, Any] | None:
        """What is known of a share's part; None where there is none."""
        return _read_meta(self._share(cluster, day, share))

    def shares(self, cluster: str, day: int, of: int) -> list[tuple[Evidence, dict[str, Any]]] | None:
        """All shares' parts of a partition, None until each is there."""
        parts = []
        for i in range(of):
            folder = self._share(cluster, day, NodeShare(i, of))
            meta = _read_meta(folder)
            if meta is None:
                return None
            tables = {name: _read_table(folder / f"{name}.parquet", TABLES[name]) for name in TABLES}
            parts.append((Evidence(tables, [Problem(**p) for p in meta["problems"]]), meta))
        return parts

    def drop_shares(self, cluster: str, day: int) -> None:
        """Removes parts that have become a partition."""
        shutil.rmtree(self._share(cluster, day, NodeShare()).parent, ignore_errors=True)

    def meta(self, cluster: str, day: int) -> dict[str, Any] | None:
        """What is known of a partition; None where there is none."""
        return _read_meta(self.usage(cluster, day))

    def table(self, cluster: str, days: list[int], name: str) -> pa.Table:
        """One of the evidence tables, of several days, in the order of days."""
        parts = [TABLES[name].empty_table()]
        for day in days:
            path = self.usage(cluster, day) / f"{name}.parquet"
            if not path.exists():
                continue
            parts.append(_read_table(path, TABLES[name]))
        return pa.concat_tables(parts)

    def windows(self, cluster: str, low: int, high: int, name: str) -> pa.Table:
        """Rows of an evidence table whose window starts in `[low, high)` ms, by time; words as dictionaries."""
        schema = pa.schema([f.with_type(WORDS) if f.type == pa.string() else f for f in TABLES[name]])
        span = [pa.scalar(ms, pa.int64()).cast(pa.timestamp("ms")).cast(TIME) for ms in (low, high)]
        inside = (pc.field("window") >= span[0]) & (pc.field("window") < span[1])
        parts = [schema.empty_table()]
        for day in range(low // DAY * DAY, high, DAY):
            path = self.usage(cluster, day) / f"{name}.parquet"
            if path.exists():
                parts.append(_read_table(path, schema, inside))
        return pa.concat_tables(parts).unify_dictionaries()

    def problems(self, cluster: str, days: list[int]) -> list[Problem]:
        """What collecting found wrong with the data of these days."""
        return [Problem(**p) for day in days for p in (self.meta(cluster, day) or {}).get("problems", [])]

    # Charges

    def write_charges(self, cluster: str, day: int, charges: pa.Table, period: Period) -> None:
        """A day's charges, in place of those of the same span; what other periods charged for the day stays."""
        folder = self.root / "allocations" / f"cluster={cluster}" / f"date={utc_day(day)}"
        path = folder / "charges.parquet"
        with writing(path):
            if path.exists():
                before = pq.read_table(path, partitioning=None)
                span = [
                    pa.scalar(ms, pa.int64()).cast(pa.timestamp("ms")).cast(before.schema.field("start").type)
                    for ms in (period.start, period.end)
                ]
                others = before.filter(
                    pc.or_(pc.less_equal(before["end"], span[0]), pc.greater_equal(before["start"], span[1]))
                )
                if others.num_rows and others.schema == charges.schema:
                    charges = pa.concat_tables([others, charges]).sort_by([("start", "ascending")])
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".charges-{os.getpid()}"
            pq.write_table(charges, temporary, compression="zstd")
            temporary.replace(path)

    # Reports

    def report_folder(self, period: Period, draft: bool) -> Path:
        return self.root / "reports" / (period.name + ("-draft" if draft else ""))


def _write_partition(final: Path, evidence: Evidence, meta: dict[str, Any]) -> None:
    def fill(folder: Path) -> None:
        for name, table in evidence.tables.items():
            pq.write_table(table, folder / f"{name}.parquet", compression="zstd", row_group_size=ROW_GROUP)
        problems = [vars(p) for p in evidence.problems]
        text = json.dumps({"schema": SCHEMA, **meta, "problems": problems}, indent=1, sort_keys=True)
        (folder / META).write_text(text + "\n", encoding="utf-8")

    replace_folder(final, fill)


def _read_meta(folder: Path) -> dict[str, Any] | None:
    path = folder / META
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        raise DataError(f"{path}: cannot be read", "remove the folder and collect the day again") from None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def _read_table(path: Path, schema: pa.Schema, rows: pc.Expression | None = None) -> pa.Table:
    words = [f.name for f in schema if f.type == WORDS]
    try:
        return pq.read_table(path, schema=schema, partitioning=None, read_dictionary=words, filters=rows)
    except (OSError, pa.ArrowException):
        raise DataError(f"{path}: cannot be read", "remove its folder and collect the day again") from None


def replace_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Fills a new folder and puts it under its final name when it is whole; a former one goes then.

    Whoever is killed between the two renames leaves the former folder under its other name: it is put back first.
    """
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        new, old = final.parent / f".{final.name}.new", final.parent / f".{final.name}.old"
        if old.exists() and not final.exists():
            old.rename(final)
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
        new.mkdir()
        try:
            fill(new)
            if final.exists():
                final.rename(old)
            new.rename(final)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if final.exists():
                shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def locked(store: Path, what: str, now: int) -> Iterator[None]:
    """One run at a time over a store. Raises `CannotWrite` that says who holds it and since when.

    The kernel holds the lock for as long as its owner lives, so that of a dead run is free at once.
    """
    path = store / ".lock"
    with writing(path):
        store.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise CannotWrite(
                f"{store}: another run holds the store: {_owner(file.read(), now)}", "wait until it is done"
            ) from None
        file.truncate(0)
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "what": what, "since_ms": now}, file)
        file.flush()
        yield
        file.truncate(0)


def _owner(text: str, now: int) -> str:
    try:
        held = json.loads(text)
        age = max(0, now - held["since_ms"]) // 1000
        return f"{held['what']} on {held['host']}, process {held['pid']}, for {age} s"
    except (ValueError, KeyError, TypeError):
        return "one that has just begun"
