"""The store: partitions of evidence and charges, and reports; each appears under its name only when it is whole."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chargeback.errors import CannotWrite, DataError
from chargeback.evidence.collect import TABLES, Evidence
from chargeback.period import Period, utc_day
from chargeback.problems import Problem

META = "partition.json"
SCHEMA = 1


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
        """Puts a partition in the place of what was there before."""
        final = self.usage(cluster, day)

        def fill(folder: Path) -> None:
            for name, table in evidence.tables.items():
                pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
            problems = [vars(p) for p in evidence.problems]
            text = json.dumps({"schema": SCHEMA, **meta, "problems": problems}, indent=1, sort_keys=True)
            (folder / META).write_text(text + "\n", encoding="utf-8")

        replace_folder(final, fill)

    def meta(self, cluster: str, day: int) -> dict[str, Any] | None:
        """What is known of a partition; None where there is none."""
        path = self.usage(cluster, day) / META
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError):
            raise DataError(f"{path}: cannot be read", "remove the folder and collect the day again") from None
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            return None
        return found

    def table(self, cluster: str, days: list[int], name: str) -> pa.Table:
        """One of the evidence tables, of several days, in the order of days."""
        parts = [TABLES[name].empty_table()]
        for day in days:
            path = self.usage(cluster, day) / f"{name}.parquet"
            if not path.exists():
                continue
            try:
                parts.append(pq.read_table(path, schema=TABLES[name], partitioning=None))
            except (OSError, pa.ArrowException):
                raise DataError(f"{path}: cannot be read", "remove its folder and collect the day again") from None
        return pa.concat_tables(parts)

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


def replace_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Fills a new folder and puts it under its final name when it is whole; a former one goes then."""
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        new = final.parent / f".{final.name}.new-{os.getpid()}"
        old = final.parent / f".{final.name}.old-{os.getpid()}"
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
            shutil.rmtree(old, ignore_errors=True)
