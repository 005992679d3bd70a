"""`finance.csv` and each team's `lines.csv`: invoice lines as RFC 4180 has it, safe to open in a spreadsheet."""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chargeback.period import iso
from chargeback.reports import Report
from chargeback.reports.figures import exact
from chargeback.schemas import LINES

_RUNS = re.compile("[\\s\0\ufeff\u200b\u2060]*[=+\\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")
"""What a spreadsheet may run as a formula at the beginning of a cell, with the full-width forms; blanks do not help."""


def finance_csv(report: Report) -> bytes:
    """Every invoice line, in the order of `report.lines`; the columns of interfaces.md, then the dimensions."""
    return _csv(report.lines, report.digits)


def lines_csv(report: Report, team: str) -> bytes:
    """The same columns for the lines of one team."""
    return _csv(report.lines.filter(pc.equal(report.lines["team"], team)), report.digits)


def defused(text: str) -> str:
    """The text of a cell, with an apostrophe before it where a spreadsheet would run it."""
    return f"'{text}" if _RUNS.match(text) else text


def _csv(lines: pa.Table, digits: int) -> bytes:
    names = [*LINES.names, *(n for n in lines.column_names if n.startswith("x_"))]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(names)
    writer.writerows(zip(*(_cells(lines[n], n, digits) for n in names), strict=True))
    return out.getvalue().encode("utf-8")


def _cells(column: pa.ChunkedArray, name: str, digits: int) -> Sequence[str]:
    if name in ("period_start", "period_end"):
        return _each(column.cast(pa.int64()), iso)
    if name == "amount":
        return _each(column, lambda amount: amount_text(amount, digits))
    if name in ("gpu_hours", "memory_gib_hours", "estimated_share"):
        return _each(column, _measure)
    return _each(column, defused)


def _each(column: pa.ChunkedArray, write: Callable[[Any], str]) -> list[str]:
    return ["" if value is None else write(value) for value in column.to_pylist()]


def amount_text(amount: Decimal, digits: int) -> str:
    """An amount in minor units as plain text, never -0.00 (R4). ValueError where it was not rounded before."""
    return f"{exact(amount, digits):f}"


def _measure(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a measure")
    return f"{round(value, 6) + 0.0:.6f}"
