import math
import re
import subprocess
from pathlib import Path

import numpy as np
from om import to_openmetrics
from servers import backfill, binary

from chargeback import demo
from chargeback.demo.cluster import HOUR, at
from chargeback.sources import Labels, Samples, SourceInfo
from chargeback.sources.memory import MemorySource


def _source(labels: list[Labels], series: list[int], time: list[int], value: list[float]) -> MemorySource:
    held = Samples(labels, np.array(series, np.int64), np.array(time, np.int64), np.array(value, np.float64))
    return MemorySource({"m": held}, SourceInfo("test", "", ""))


def test_text_is_grouped_by_metric_and_series_and_ends_with_eof() -> None:
    source = _source([{"a": "1"}, {}], [0, 0, 1], [1_000, 61_017, 1_000], [0.25, 3.0, math.nan])
    assert to_openmetrics(source, 0, 100_000) == (
        '# TYPE m gauge\nm{a="1"} 0.25 1.000\nm{a="1"} 3 61.017\nm NaN 1.000\n# EOF\n'
    )


def test_the_range_is_half_open() -> None:
    source = _source([{}], [0, 0, 0], [1_000, 2_000, 3_000], [1.0, 2.0, 3.0])
    assert to_openmetrics(source, 1_000, 3_000).count("\nm ") == 2
    assert to_openmetrics(source, 5_000, 6_000) == "# EOF\n"


def test_promtool_reads_labels_and_values_as_they_were(tmp_path: Path) -> None:
    awkward = 'a "quoted" \\ back\\nslash,\nline } é'
    values = [0.1, 1e300, -0.0, 9.223372036854776e18, math.inf, -2.0]
    times = [1_790_812_800_017 + i * 60_000 for i in range(len(values))]
    text = to_openmetrics(_source([{"x": awkward}], [0] * len(values), times, values), 0, 2**62)
    rows = _stored(text, tmp_path)
    assert [t for _, _, t in rows] == times
    assert [v for _, v, _ in rows] == values
    assert rows[0][0] == '{__name__="m", x="a \\"quoted\\" \\\\ back\\\\nslash,\\nline } é"}'


def test_a_slice_of_the_demo_month_goes_into_a_prometheus_whole(tmp_path: Path) -> None:
    source, start, end = demo.source(), at("13 13:30"), at("13 14:30")
    rows = _stored(to_openmetrics(source, start, end), tmp_path)
    found = {m: source.samples(m, start, end) for m in source.metrics(start, end)}
    assert end - start == HOUR
    assert len(rows) == sum(s.time.size for s in found.values()) > 9_000
    assert math.isclose(sum(v for _, v, _ in rows), sum(float(s.value.sum()) for s in found.values()))


def _stored(text: str, folder: Path) -> list[tuple[str, float, int]]:
    """What a Prometheus store holds once promtool has read `text`: series, value and time in ms."""
    promtool = binary("promtool")
    backfill(text, folder / "data", folder, promtool)
    (folder / "data" / "wal").mkdir()  # dump asks for it
    dump = subprocess.run([promtool, "tsdb", "dump", folder / "data"], check=True, capture_output=True, text=True)
    lines = re.findall(r"^(\{.*\}) (\S+) (\d+)$", dump.stdout, re.MULTILINE)
    return [(series, float(value), int(time)) for series, value, time in lines]
