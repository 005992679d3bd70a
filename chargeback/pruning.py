"""Which evidence may go: days that lie before all that is to be kept."""

import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from chargeback.errors import UsageError
from chargeback.ledger import Store, writing
from chargeback.period import DAY, to_ms, utc_day


@dataclass(frozen=True)
class KeptDay:
    """A partition of evidence: cluster, UTC day, its folder and size in bytes."""

    cluster: str
    day: str
    folder: Path
    size: int


def days(store: Store) -> list[KeptDay]:
    """Every partition of evidence, by cluster and day."""
    found = []
    for folder in sorted((store.root / "usage").glob("cluster=*/date=*")):
        size = sum(f.stat().st_size for f in folder.iterdir() if f.is_file())
        found.append(
            KeptDay(folder.parent.name.removeprefix("cluster="), folder.name.removeprefix("date="), folder, size)
        )
    return found


def before(keep: str, now: int) -> str:
    """The first UTC day to keep, for `13M` (months, the current one not counted) or `400d`. Raises `UsageError`."""
    found = re.fullmatch(r"(\d{1,4})([Md])", keep)
    if not found or int(found[1]) < 1:
        raise UsageError(f"--keep {keep}: not a number of months or days", "write 13M or 400d")
    if found[2] == "d":
        return utc_day(now - int(found[1]) * DAY)
    local = datetime.fromtimestamp(now // 1000, UTC)
    months = local.year * 12 + local.month - 1 - int(found[1])
    # a day more, since the `max_gap` before a period's start may count
    return utc_day(to_ms(datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC), UTC) - DAY)


def remove(found: list[KeptDay]) -> None:
    """Removes partitions; each goes under another name first, so that none is ever half there."""
    for day in found:
        with writing(day.folder):
            gone = day.folder.with_name(f".{day.folder.name}.old")
            shutil.rmtree(gone, ignore_errors=True)
            day.folder.rename(gone)
            shutil.rmtree(gone)
