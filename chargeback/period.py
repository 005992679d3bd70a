"""Billing periods, windows and time zones. Times are whole milliseconds since the epoch."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from chargeback.errors import ConfigError, UsageError

HOUR = 3_600_000
DAY = 24 * HOUR
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": HOUR, "d": DAY}


def duration_ms(text: object) -> int:
    """`5m`, `300s`, `1h` in ms; a ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError("must be a length of time such as 5m, 300s or 1h")
    found = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a length of time such as 5m, 300s or 1h")
    return int(found[1]) * _UNITS[found[2]]


def zone_of(name: str) -> tzinfo:
    """The time zone of that name. Raises `ConfigError` if the database has none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"timezone: {name!r} is not in the time zone database", "use a name such as UTC or Europe/Berlin"
        ) from None


def to_ms(moment: date | datetime, zone: tzinfo) -> int:
    """A configured date (its midnight in `zone`, W3) or time (in `zone` if it names none) in ms."""
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=zone)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return int(moment.timestamp() * 1000)


def month_lengths(at: NDArray[np.int64], zone: tzinfo) -> NDArray[np.int64]:
    """For each instant (ms) the length in ms of the calendar month of `zone` that it lies in."""
    out = np.zeros(at.size, np.int64)
    while (out == 0).any():
        local = datetime.fromtimestamp(int(at[out == 0].min()) // 1000, zone)
        first = date(local.year, local.month, 1)
        start, end = to_ms(first, zone), to_ms((first + timedelta(days=32)).replace(day=1), zone)
        out[(at >= start) & (at < end)] = end - start
    return out


def iso(ms: int) -> str:
    """`2026-11-03T00:00:00Z`, with a fraction only where there is one."""
    text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms % 1000:03d}Z" if ms % 1000 else f"{text}Z"


def utc_day(ms: int) -> str:
    """The UTC date of `ms`, as in `date=` partitions."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True)
class Period:
    """A half-open billing period `[start, end)` in ms, and its name in paths (W2)."""

    start: int
    end: int
    name: str
    timezone: str

    def days(self, before: int = 0, after: int = 0) -> list[int]:
        """Starts of the UTC days that touch the period, widened by `before` and `after` ms."""
        first = (self.start - before) // DAY
        return [d * DAY for d in range(first, -(-(self.end + after) // DAY))]


def parse_period(text: str | None, timezone: str, window: int, now: int) -> Period:
    """`2026-11`, `2026-11-03`, `START/END`, or for None the last complete month in `timezone` (W2).

    Raises `UsageError` for what is none of these, lies in the future or does not fall on window edges, and
    `ConfigError` where the zone's offset is no multiple of the window.
    """
    zone = zone_of(timezone)
    if text is None:
        local = datetime.fromtimestamp(now / 1000, zone)
        text = (date(local.year, local.month, 1) - timedelta(days=1)).strftime("%Y-%m")
    start, end, name = _bounds(text.strip(), zone)
    if end <= start:
        raise UsageError(f"period {text}: ends before it begins", "write START/END with START first")
    if start >= now:
        raise UsageError(f"period {text}: has not begun", "choose a period that has begun")
    for edge in (start, end):
        if edge % window:
            local = datetime.fromtimestamp(edge / 1000, zone)
            if "/" not in text:
                raise ConfigError(
                    f"timezone: the offset of {timezone} at {local.isoformat()} is no multiple of the window (W2)",
                    "choose a smaller window or another time zone",
                )
            near = iso(edge - edge % window)
            raise UsageError(f"period {text}: {iso(edge)} is not on a window edge", f"use {near}, for example")
    return Period(start, end, name, timezone)


def _bounds(text: str, zone: tzinfo) -> tuple[int, int, str]:
    try:
        if found := re.fullmatch(r"(\d{4})-(\d\d)", text):
            first = date(int(found[1]), int(found[2]), 1)
            after = (first + timedelta(days=32)).replace(day=1)
            return to_ms(first, zone), to_ms(after, zone), text
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            day = date.fromisoformat(text)
            return to_ms(day, zone), to_ms(day + timedelta(days=1), zone), text
        if text.count("/") == 1:
            start, end = (_instant(part, zone) for part in text.split("/"))
            return start, end, f"{_name(start)}_{_name(end)}"
    except (ValueError, OverflowError):
        pass
    raise UsageError(
        f"period {text!r}: not a month, a day or START/END",
        "write 2026-11, 2026-11-03 or 2026-11-03T00:00Z/2026-11-03T06:00Z",
    )


def _instant(text: str, zone: tzinfo) -> int:
    moment = datetime.fromisoformat(text)
    if not 1970 < moment.year < 2262:
        raise ValueError(text)
    return to_ms(moment, zone)


def _name(ms: int) -> str:
    return iso(ms).replace(":", "")
