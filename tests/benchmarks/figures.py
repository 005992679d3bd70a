"""What was measured, beside what it should be, as a table."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from chargeback import __version__


@dataclass(frozen=True)
class Figure:
    """One measurement: `value` with its unit ("": a ratio); `goal` is the most that it should be, None without one."""

    what: str
    value: float
    unit: str = ""
    goal: float | None = None

    def row(self) -> tuple[str, str, str, str]:
        """What, measured, goal, and whether it was met."""
        if self.goal is None:
            return self.what, self._shown(self.value), "", ""
        return (
            self.what,
            self._shown(self.value),
            self._shown(self.goal),
            "met" if self.value <= self.goal else "missed",
        )

    def _shown(self, value: float) -> str:
        digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
        return f"{value:,.{digits}f} {self.unit}".rstrip()


Section = tuple[str, str, Sequence[Figure]]
"""A title, what was done, and what was measured."""
HEADS = ("what", "measured", "goal, at most", "")


def plain(figures: Sequence[Figure]) -> str:
    """The table for a terminal."""
    rows = [HEADS, *(f.row() for f in figures)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEADS))]
    lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip() for a, b, c, d in rows]
    return "\n".join(lines)


def document(sections: Sequence[Section]) -> str:
    """The page for the documentation."""
    parts = [
        "# Benchmarks",
        (
            "Made by `make bench`; not edited by hand. "
            f"{datetime.now(UTC):%Y-%m-%d}, chargeback {__version__}, {os.cpu_count()} cores. "
            "Ratios are of times taken in one run, the best of several; a ratio under 1 is faster than what it is "
            "compared with."
        ),
    ]
    for title, text, figures in sections:
        rows = [HEADS, ("---", "---:", "---:", "---"), *(f.row() for f in figures)]
        parts += [f"## {title}", text, "\n".join(f"| {' | '.join(r)} |" for r in rows)]
    return "\n\n".join(parts) + "\n"
