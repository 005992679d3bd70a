"""A text of samples with everything that can go wrong at a window's edge, in a file and in real servers."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/servers.py, also where only this folder is run

from servers import prometheus, victoria_metrics

from chargeback.sources import openmetrics
from chargeback.sources.memory import MemorySource

BASE = 1_700_000_100 // 3600 * 3600
"""Seconds since the epoch, a full hour; in the past, as VictoriaMetrics wants it."""
HOURS = 26


def exact_text() -> str:
    """Whole numbers and quarters: sums that are the same in any order. Scrapes of 15, 30 and 45 s, all of which
    meet window edges, one series that dies and one off the edges by a millisecond on either side."""
    rnd = random.Random(7)
    lines = ["# TYPE memory gauge"]
    for pod, interval in (("fifteen", 15), ("thirty", 30), ("forty-five", 45)):
        for second in range(0, HOURS * 3600, interval):
            labels = f'pod="{pod}",node="n{interval % 2}",gpu="A \\"quoted\\" \\\\ {{a|b}}.*"'
            lines.append(f"memory{{{labels}}} {rnd.randrange(10**9)} {BASE + second}")
    lines += [
        f'memory{{pod="dies",node="n0"}} {rnd.randrange(4000) / 4} {BASE + second}' for second in range(0, 18_017, 30)
    ]
    for k in range(0, 12 * HOURS, 2):
        edge = BASE * 1000 + k * 300_000
        near = (edge - 1, edge, edge + 1)
        lines += [f'edges{{at="{k % 4}"}} {ms % 7} {ms // 1000}.{ms % 1000:03d}' for ms in near]
    for second in range(0, HOURS * 3600, 30):
        lines.append(f'twice{{replica="a",gpu="0"}} {second % 999} {BASE + second}')
        if second % 900:
            lines.append(f'twice{{replica="b",gpu="0"}} {second % 998} {BASE + second}')
    return "\n".join([*lines, "# EOF\n"])


def special_text() -> str:
    """What VictoriaMetrics does not keep: NaN, and infinities."""
    lines = []
    for second in range(0, 3600, 30):
        value = {600: "NaN", 1200: "+Inf", 1800: "-Inf"}.get(second, str(second))
        lines.append(f'special{{kind="mixed"}} {value} {BASE + second}')
        lines.append(f'special{{kind="never"}} NaN {BASE + second}')
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exact and the special samples as one file."""
    path = tmp_path_factory.mktemp("text") / "samples.om"
    path.write_text(exact_text().removesuffix("# EOF\n") + special_text())
    return path


@pytest.fixture(scope="session")
def file(text: Path) -> MemorySource:
    """The file as a source."""
    return openmetrics.read(text)


@pytest.fixture(scope="session")
def prometheus_url(text: Path) -> Iterator[str]:
    """A real Prometheus that holds the file."""
    with prometheus(text) as url:
        yield url


@pytest.fixture(scope="session")
def victoria_url() -> Iterator[str]:
    """A real VictoriaMetrics that holds the exact samples."""
    with victoria_metrics(exact_text()) as url:
        yield url
