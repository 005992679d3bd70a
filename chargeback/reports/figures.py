"""Figures for people: exact numbers in, text of one locale out. Nothing is rounded here but shares and hours."""

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal

from babel import Locale
from babel.dates import format_date, format_datetime, format_interval
from babel.numbers import format_currency, format_decimal
from markupsafe import Markup, escape

from chargeback.money import NANO, largest_remainder, round_half_even
from chargeback.period import HOUR, Period, zone_of

LOCALE = "en_US"
HOUR_DIGITS = 2
GIB_DIGITS = 1
SHARE_DIGITS = 1
DASH = "–"
_SHOWN = {
    "\n": "\u21b5",
    "\r": "\u21b5",
    "\t": "\u21e5",
    **dict.fromkeys(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))), "\ufffd"),
}
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
_EXACT = Context(prec=60)


def exact(amount: Decimal, digits: int) -> Decimal:
    """`amount` with that many digits. ValueError where that would change it: who divides must round (R2)."""
    short = amount.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN, _EXACT)
    if short != amount:
        raise ValueError(f"{amount} has more than {digits} digits")
    return short + 0  # no -0.00 (R4)


def nano(value: Decimal | float) -> int:
    """A number in units of 10^-9."""
    return int((value if isinstance(value, Decimal) else Decimal(value)).scaleb(9, _EXACT).to_integral_value())


def spread(values: Sequence[Decimal | float], digits: int, total: Decimal | None = None) -> list[Decimal]:
    """`values` rounded so that they add up to `total` (their own rounded sum by default), ties by position."""
    parts = [nano(v) for v in values]
    if total is None:
        total = round_half_even(sum(parts), digits)
    return largest_remainder(total, parts, list(range(len(parts))), digits)


def shares(parts: Sequence[Decimal]) -> list[Decimal | None]:
    """Each part of their sum in percent, adding up to 100.0; None where the sum is not above zero."""
    whole = sum(parts, Decimal(0))
    if whole <= 0:
        return [None] * len(parts)
    percents = [int(p * 100 * NANO / whole) for p in parts]
    return [
        *largest_remainder(
            Decimal(100).quantize(Decimal(1).scaleb(-SHARE_DIGITS)), percents, range(len(parts)), SHARE_DIGITS
        )
    ]


def visible(text: str) -> str:
    """`text` in one line: line ends and tabs as arrows, and U+FFFD for other controls and for what reorders text.

    Overrides and isolates could leave the <bdi> that stands around a name, so they are not passed on.
    """
    return "".join(_SHOWN.get(c) or ("\ufffd" if unicodedata.category(c) in _CONTROLS else c) for c in text)


def name(text: str) -> Markup:
    """Text from outside as HTML: escaped, controls visible, its direction kept to itself."""
    return Markup("<bdi>{}</bdi>").format(escape(visible(text)))


def span(ms: int) -> str:
    """A length of time in words: `5 minutes`, `1 hour`."""
    for size, word in ((24 * HOUR, "day"), (HOUR, "hour"), (60_000, "minute"), (1000, "second"), (1, "millisecond")):
        if ms % size == 0:
            n = ms // size
            return f"{n} {word}" if n == 1 else f"{n} {word}s"
    raise AssertionError(ms)


@dataclass(frozen=True)
class Figures:
    """Writes figures of one currency in one locale."""

    currency: str
    digits: int
    locale: str = LOCALE

    def money(self, amount: Decimal) -> str:
        """With the currency's sign: `$1,234.50`."""
        text = str(format_currency(exact(amount, self.digits), self.currency, locale=self.locale))
        return re.sub(r"(?<=[A-Za-z])(?=\d)", "\u00a0", text)  # a code instead of a sign stands apart

    def amount(self, amount: Decimal) -> str:
        """Without it, for tables: `1,234.50`."""
        return self._decimal(exact(amount, self.digits), self.digits)

    def nano(self, amount: Decimal) -> str:
        """All nine digits, for the proof."""
        return self._decimal(exact(amount, 9), 9)

    def hours(self, hours: Decimal) -> str:
        return self._decimal(hours, HOUR_DIGITS)

    def gib(self, hours: Decimal) -> str:
        return self._decimal(hours, GIB_DIGITS)

    def count(self, number: int) -> str:
        return self._decimal(Decimal(number), 0)

    def share(self, percent: Decimal | None) -> str:
        """A share of a table that adds up to 100: `12.3 %`; a dash where there is none."""
        return DASH if percent is None else f"{self._decimal(percent, SHARE_DIGITS)}%"

    def part(self, ratio: float | None) -> str:
        """A ratio by itself. What is not quite all or nothing is not written as all or nothing."""
        if ratio is None or not math.isfinite(ratio):
            return DASH
        percent = Decimal(repr(ratio)) * 100
        step = Decimal(1).scaleb(-SHARE_DIGITS)
        if 0 < percent < step:
            return f"under {self._decimal(step, SHARE_DIGITS)}%"
        if 100 - step < percent < 100:
            return f"over {self._decimal(100 - step, SHARE_DIGITS)}%"
        if percent in (0, 100):
            return f"{self._decimal(percent, 0)}%"
        return f"{self._decimal(percent.quantize(step, ROUND_HALF_EVEN, _EXACT), SHARE_DIGITS)}%"

    def _decimal(self, value: Decimal, digits: int) -> str:
        pattern = re.sub(
            r"\.#+", "." + "0" * digits if digits else "", Locale.parse(self.locale).decimal_formats[None].pattern
        )
        return str(format_decimal(value, format=pattern, locale=self.locale, decimal_quantization=False))


@dataclass(frozen=True)
class PeriodText:
    """A period in words: `title` is short, `dates` says first and last day or instant, `edges` the exact bounds."""

    title: str
    dates: str
    edges: str
    timezone: str
    hours: str


def period_text(period: Period, figures: Figures) -> PeriodText:
    """A period in words, in its own time zone."""
    zone = zone_of(period.timezone)
    start, end = (datetime.fromtimestamp(ms / 1000, zone) for ms in (period.start, period.end))
    locale = figures.locale
    edges = " up to, not including, ".join(t.isoformat(timespec="minutes") for t in (start, end))
    hours = Decimal(period.end - period.start) / HOUR
    length = figures.count(int(hours)) if hours == int(hours) else figures.hours(hours.quantize(Decimal("0.01")))
    if start.time() != end.time() or start.hour or start.minute:
        dates = " – ".join(str(format_datetime(t, "d MMM y, HH:mm", tzinfo=zone, locale=locale)) for t in (start, end))
        return PeriodText(dates, dates, edges, period.timezone, length)
    first, last = start.date(), end.date() - timedelta(days=1)
    dates = _dates(first, last, locale)
    month = first.day == 1 and end.date() == (first + timedelta(days=32)).replace(day=1)
    title = str(format_date(first, "MMMM y", locale=locale)) if month else dates
    return PeriodText(title, dates, edges, period.timezone, length)


def _dates(first: date, last: date, locale: str) -> str:
    if first == last:
        return str(format_date(first, "long", locale=locale))
    return str(format_interval(first, last, "yMMMd", locale=locale))
