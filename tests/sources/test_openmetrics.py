import gzip
import math
import random
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import backfill, binary

from chargeback.errors import DataError
from chargeback.sources import openmetrics
from chargeback.sources.openmetrics import read

Write = Callable[..., Path]
Row = tuple[str, tuple[tuple[str, str], ...], int, float]


def rows(path: Path, wanted: Collection[str] | None = None) -> list[Row]:
    source = read(path, wanted=wanted)
    found = []
    for name in sorted(source.metrics(-(2**60), 2**60)):
        held = source.samples(name, -(2**60), 2**60)
        for series, time, value in zip(held.series, held.time, held.value, strict=True):
            found.append((name, tuple(sorted(held.labels[series].items())), int(time), float(value)))
    return found


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "samples.om") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    return caught.value.message


def test_a_sample_is_a_name_labels_a_value_and_a_time_in_seconds(write: Write) -> None:
    path = write(
        '# TYPE a gauge\n# HELP a b\n# UNIT a c\n\na{x="1",y="2"} 1.5 1600000000.123\nb 1e3 1600000001\n# EOF\n'
    )
    assert rows(path) == [
        ("a", (("x", "1"), ("y", "2")), 1_600_000_000_123, 1.5),
        ("b", (), 1_600_000_001_000, 1000.0),
    ]


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (r"q\"uote", 'q"uote'),
        (r"back\\slash", "back\\slash"),
        (r"new\nline", "new\nline"),
        (r"\\n", r"\n"),
        (r"unknown\t", r"unknown\t"),
        ("NVIDIA A100 80GB", "NVIDIA A100 80GB"),
        ("} 5 1600000000", "} 5 1600000000"),
        ('# {trace=\\"1\\"} 1 2', '# {trace="1"} 1 2'),
        ("a,b=", "a,b="),
        ("Grüße \u2028", "Grüße \u2028"),
    ],
)
def test_a_label_may_hold_anything_that_is_escaped(write: Write, written: str, means: str) -> None:
    assert rows(write(f'a{{x="{written}",y="z"}} 7 1\n# EOF\n')) == [("a", (("x", means), ("y", "z")), 1000, 7.0)]


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("-5", -5), ("+5", 5), ("1e3", 1e3), (".5", 0.5), ("5.", 5), ("+Inf", math.inf), ("-Inf", -math.inf)],
)
def test_numbers_are_read_as_they_are_written(write: Write, text: str, value: float) -> None:
    assert rows(write(f"a {text} 1\n# EOF\n")) == [("a", (), 1000, value)]


def test_nan_is_a_value(write: Write) -> None:
    assert math.isnan(rows(write("a NaN 1\n# EOF\n"))[0][3])


def test_times_are_rounded_to_milliseconds(write: Write) -> None:
    path = write("a 1 1600000000.0006\nb 2 1600000000.0014\nc 3 1600000000.123\nd 4 1.6e9\n# EOF\n")
    assert [r[2] - 1_600_000_000_000 for r in rows(path)] == [1, 1, 123, 0]


def test_an_exemplar_is_not_a_sample(write: Write) -> None:
    path = write('a_bucket{le="1"} 2 3 # {trace="x y"} 0.5 2.5\nb 4 5 # {} 1\nc{x="y # {"} 6 7\n# EOF\n')
    assert [(r[0], r[2], r[3]) for r in rows(path)] == [("a_bucket", 3000, 2.0), ("b", 5000, 4.0), ("c", 7000, 6.0)]


def test_an_empty_label_is_none_and_the_order_of_labels_says_nothing(write: Write) -> None:
    path = write('a{x="1",y="2",z=""} 1 1\na{y="2",x="1"} 2 2\na{y="2", x="1",} 3 3\n# EOF\n')
    assert [r[1] for r in rows(path)] == [(("x", "1"), ("y", "2"))] * 3


def test_only_wanted_metrics_are_kept(write: Write) -> None:
    path = write('a 1 1\nb{x="1"} 2 2\nab 3 3\n# EOF\n')
    assert [r[0] for r in rows(path, wanted={"b", "c"})] == ["b"]


def test_a_sample_that_is_there_twice_counts_once(write: Write) -> None:
    assert len(rows(write("a 1 1\na 1 1\nb NaN 1\nb NaN 1\n# EOF\n"))) == 2


def test_two_values_at_one_time_are_refused_with_series_and_time(write: Write) -> None:
    message = refused(write('a{x="y"} 1 1600000000\na{x="y"} 2 1600000000\n# EOF\n'))
    assert "a{x='y'}" in message
    assert "2020-09-13T12:26:40Z" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a 5\n# EOF\n", "samples.om:1: the sample has no timestamp: a 5"),
        ('b 1 1\na{x="y z"} 5\n# EOF\n', "samples.om:2: the sample has no timestamp"),
        ('# TYPE a gauge\n\na{x="y} 5 1\n# EOF\n', "samples.om:3: not a sample"),
        ("a 5x 1\n# EOF\n", "samples.om:1: its value is not a number"),
        ("a 1_0 1\n# EOF\n", "samples.om:1: its value is not a number"),
        ("a 5 soon\n# EOF\n", "samples.om:1: its time is not one in seconds"),
        ("a 5 NaN\n# EOF\n", "samples.om:1: its time is not one in seconds"),
        ("a 5 1600000000000\n# EOF\n", "samples.om:1: its time is not one in seconds"),
        ("a  5 1\n# EOF\n", "samples.om:1: not a sample"),
        (" a 5 1\n# EOF\n", "samples.om:1: not a sample"),
        ("5 1 1\n# EOF\n", "samples.om:1: not a sample"),
        ('a{x="1",x="2"} 5 1\n# EOF\n', "samples.om:1: not a sample"),
        ("a{x=1} 5 1\n# EOF\n", "samples.om:1: not a sample"),
        (b'a{x="\xff"} 5 1\n# EOF\n', "samples.om:1: not a sample"),
        ("a 1 1\r\n# EOF\r\n", "samples.om:1: its time"),
        ("<html>\n<body>\n", "samples.om:1: not a sample: <html>"),
        ("a 1 1\n# EOF\nb 1 1\n# EOF\n", "samples.om:3: text after # EOF"),
        ("a 1 1\n", "cut short: the last line is not # EOF"),
        ("a 1 1\n# EO", "cut short"),
        ("", "cut short"),
        (b"\x7fELF\0\0\1 \n", "binary data"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "samples.om:1: not a sample"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(write: Write, text: str | bytes, says: str) -> None:
    assert says in refused(write(text))


def test_the_first_of_several_mistakes_is_named(write: Write) -> None:
    assert "samples.om:2:" in refused(write("a 1 1\na x 2\na 3\na 1 y\n# EOF\n"))


def test_a_long_wrong_line_is_shown_short(write: Write) -> None:
    assert len(refused(write("a" * 5000 + "! 1 1\n# EOF\n"))) < 400


def test_a_missing_file_or_folder_is_an_error(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "nothing.om")
    assert "holds no .om" in refused(tmp_path)


def test_gzip_is_known_by_its_bytes_not_its_name(write: Write) -> None:
    assert len(rows(write(gzip.compress(b"a 1 1\n# EOF\n"), "samples.txt"))) == 1
    assert len(rows(write(gzip.compress(b"a 1 1\n") + gzip.compress(b"# EOF\n"), "two-members"))) == 1


@pytest.mark.parametrize("cut", [1, 9, 200])
def test_gzip_that_is_cut_short_is_an_error(write: Write, cut: int) -> None:
    noise = random.Random(1).sample(range(10**9), 500)
    packed = gzip.compress("".join(f"a {v} {i}\n" for i, v in enumerate(noise)).encode() + b"# EOF\n")
    assert "cut short" in refused(write(packed[:-cut], "samples.om.gz"))


def test_gzip_that_is_damaged_is_an_error(write: Write) -> None:
    packed = bytearray(gzip.compress(b"a 1 1\n# EOF\n"))
    packed[-6] ^= 255
    assert "damaged" in refused(write(bytes(packed), "samples.om.gz"))


def test_a_small_file_that_unpacks_without_end_is_stopped(write: Write) -> None:
    bomb = write(gzip.compress(b"a" * (64 << 20), 1), "bomb.om.gz")
    assert "a line of over 1 MiB" in refused(bomb)


def test_a_dump_has_names_as_labels_times_in_ms_and_no_end(write: Write) -> None:
    path = write('{__name__="a", x="tab\\t \\u00e4"} 1e+06 1600000000001\n{__name__="b"} NaN 1600000000001\n')
    assert rows(path)[0] == ("a", (("x", "tab\t ä"),), 1_600_000_000_001, 1e6)
    assert "cut short" in refused(write('{__name__="a"} 1 16000000'))


def test_names_in_quotes_are_read(write: Write) -> None:
    assert rows(write('{"my.metric","my.label"="x"} 1 1\n# EOF\n')) == [("my.metric", (("my.label", "x"),), 1000, 1.0)]


def test_progress_counts_bytes_up_to_all_of_them(write: Write) -> None:
    path = write("a 1 1\n" * 1000 + "# EOF\n")
    calls: list[tuple[int, int]] = []
    read(path, lambda done, total: calls.append((done, total)))
    assert calls[-1] == (path.stat().st_size,) * 2


def test_a_folder_is_read_as_one_whatever_the_order_of_lines_and_files(tmp_path: Path) -> None:
    lines = [f'm{i % 3}{{pod="p{i % 7}"}} {i} {1000 + i // 7}' for i in range(2000)]
    whole = tmp_path / "whole.om"
    whole.write_text("\n".join([*lines, "# EOF\n"]))
    random.Random(2).shuffle(lines)
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "z.om").write_text("\n".join([*lines[:900], "# EOF\n"]))
    (parts / "a.om.gz").write_bytes(gzip.compress("\n".join([*lines[800:], "# EOF\n"]).encode()))
    (parts / "README").write_text("not samples")
    assert rows(parts) == rows(whole)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_blocks_change_nothing(write: Write, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    lines = [f'm{{pod="p {i % 7}"}} {i} {1000 + i // 7}\n' for i in range(500)]
    end = 'x{le="1"} 2 3 # {} 1\n\n# EOF\n'
    good = write("# TYPE m gauge\n" + "".join(lines) + end)
    bad = write("".join([*lines[:199], "wrong\n", *lines[199:], end]), "bad.om")
    whole = rows(good)
    monkeypatch.setattr(openmetrics, "BLOCK", size)
    assert rows(good) == whole
    assert "bad.om:200: not a sample: wrong" in refused(bad)


_LABEL_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b:c", "_d"]), _LABEL_TEXT, st.integers(0, 10**12)),
        st.floats(width=64, allow_nan=False),
        max_size=30,
    )
)
def test_what_is_written_is_read_for_any_labels_times_and_values(
    write: Write, samples: dict[tuple[str, str, int], float]
) -> None:
    lines = []
    for (name, label, time), value in samples.items():
        escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'{name}{{x="{escaped}"}} {value!r} {time // 1000}.{time % 1000:03d}\n')
    expected = sorted((n, (("x", label),), t, v) for (n, label, t), v in samples.items())
    assert rows(write("".join(lines) + "# EOF\n")) == expected


def test_promtool_reads_the_same_samples(text: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    promtool = binary("promtool")
    backfill(text, data, tmp_path, promtool)
    (data / "wal").mkdir()
    dump = subprocess.run([promtool, "tsdb", "dump", str(data)], check=True, capture_output=True, timeout=60).stdout
    dumped = tmp_path / "dumped.om"
    dumped.write_bytes(dump)
    ours, theirs = read(text), read(dumped)
    names = ours.metrics(0, 2**60)
    assert names == theirs.metrics(0, 2**60) != set()
    for name in names:
        a, b = ours.samples(name, 0, 2**60), theirs.samples(name, 0, 2**60)
        assert a.labels == b.labels
        assert np.array_equal(a.series, b.series)
        assert np.array_equal(a.time, b.time)
        assert np.array_equal(a.value, b.value, equal_nan=True)
