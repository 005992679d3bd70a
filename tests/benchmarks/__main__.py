"""Runs all benchmarks, prints what they give, and writes the page for the documentation (`make bench`)."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import allocating, collecting, month
from .child import alone
from .figures import Figure, Section, document, plain

COLLECTING = (
    f"A real Prometheus 2.42 on the same machine with {collecting.NODES} nodes of eight GPUs, 600 process series and "
    f"kube-state-metrics, over {collecting.DAYS} days with a scrape every 30 s. Program, requests and script take "
    "turns. For ten days the server's two come again and again."
)
ALLOCATING = (
    "A day of 4,000 GPUs with three consumers each in 288 windows: 3.5 million rows in arrays. The stage divides costs "
    "in whole nano-units into used, idle and unallocated so that they add up; the others give cost × m ÷ sum of m in "
    "floats. The whole day is from evidence to charges by hour."
)
MONTH = (
    f"1,000 GPUs, of which one in {month.ONE_IN} is time-sliced by three pods; new pods each day. From the store's "
    "evidence to the report, in one process."
)


def _allocating() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        day = alone(allocating.whole_day, folder)
    return [
        *alone(allocating.measure).result,
        Figure("the whole day", day.result, "s"),
        Figure("peak memory of the whole day", day.peak / 2**20, "MiB"),
    ]


def _month() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        return month.measure(folder)


PARTS: dict[str, tuple[str, str, Callable[[], list[Figure]]]] = {
    "collecting": ("Collecting", COLLECTING, collecting.measure),
    "allocating": ("Allocating", ALLOCATING, _allocating),
    "month": ("A month", MONTH, _month),
}


def main(arguments: Sequence[str]) -> None:
    """Runs the parts that are named, or all; only all of them are written down."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    sections: list[Section] = []
    for name in options.parts or PARTS:
        title, text, measure = PARTS[name]
        sections.append((title, text, measure()))
        print(f"{title}\n{plain(sections[-1][2])}\n", flush=True)
    if options.write:
        options.write.write_text(document(sections), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
