"""Reads files of samples: OpenMetrics text as promtool reads and writes it, plain or gzip.

Lines are cut and numbers parsed by the block, in arrays; Python looks only at each distinct series once, and at
lines of an unusual shape (exemplars, mistakes) one by one. The series' text of a line is what stands before its last
two blanks, and counts only if it is a whole series: then no other reading of the line exists.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from chargeback.errors import DataError
from chargeback.period import iso
from chargeback.sources import Samples, SourceInfo
from chargeback.sources.memory import MemorySource

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes in all, as they lie on the disk."""

BLOCK = 2 << 20
MAX_LINE = 1 << 20
_SUFFIXES = (".om", ".om.gz")
_MAX_TIME = 253_402_300_800_000  # the year 10000
_SHOWN = 120
_NEWLINE, _BLANK, _HASH, _EOF = 10, 32, 35, b"# EOF"
_UNWANTED, _UNREAD = -1, -2

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(rb' *([a-zA-Z_][a-zA-Z0-9_.:]*|"(?:[^"\\\n]|\\.)*")(?: *= *"((?:[^"\\\n]|\\.)*)")? *(,|\})')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_GO_ESCAPE = re.compile(r'\\(?:([abfnrtv\\"])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))')
_GO_SHORT = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}
_FLOAT = re.compile(rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_TAIL = re.compile(rb" ([^ ]+)(?: ([^ #][^ ]*))?( # \{.*)?")
_DUMP = b'{__name__="'

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name, and its labels sorted by name."""


def read(path: Path, progress: Progress | None = None, wanted: Collection[str] | None = None) -> MemorySource:
    """Reads a file, or the `.om` and `.om.gz` files of a folder, into memory; only metrics in `wanted` if given.

    Takes OpenMetrics text with `# EOF` at its end (what `promtool tsdb create-blocks-from openmetrics` reads and
    `dump-openmetrics` writes; times in seconds, rounded to ms) and the output of `promtool tsdb dump` (names
    written as `{__name__=...}`, times in ms, no `# EOF`). The order of lines and files does not matter, a sample
    that is there twice counts once, labels with an empty value are none.

    Raises `DataError` for what is missing, cut short, malformed (with file and line), without a time, or two values
    of one series at one time.
    """
    files = _files(path)
    table = _Table(None if wanted is None else frozenset(wanted))
    total, before = sum(f.stat().st_size for f in files), 0
    for file in files:
        reader = _FileReader(file, table)
        with ThreadPoolExecutor(1) as ahead:  # unpacks the next block while this one is parsed
            blocks = _blocks(file)
            coming = ahead.submit(next, blocks, None)
            while (found := coming.result()) is not None:
                coming = ahead.submit(next, blocks, None)
                block, at = found
                reader.add(block)
                if progress:
                    progress(before + at, total)
        reader.finish()
        before += file.stat().st_size
    return MemorySource(table.held(path), SourceInfo("openmetrics", "", str(path)))


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            with path.open("rb"):
                return [path]
        files = sorted(f for f in path.iterdir() if f.name.lower().endswith(_SUFFIXES) and f.is_file())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file or folder", "check source.openmetrics in the configuration") from None
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror}", "check the path and its permissions") from None
    if not files:
        raise DataError(f"{path}: holds no .om or .om.gz file", "check source.openmetrics in the configuration")
    return files


def _blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole lines of the unpacked file, about `BLOCK` bytes at once, and how far the file was read.

    The last one may lack its newline. A line over `MAX_LINE` bytes is an error, so that no file, however it
    unpacks, takes more memory than its samples do.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            rest = b""
            while block := stream.read(BLOCK):
                end = block.rfind(b"\n") + 1
                if not end:
                    rest += block
                else:
                    lines, rest = rest + block[:end], block[end:]
                    yield lines, raw.tell()
                if len(rest) > MAX_LINE:
                    raise _too_long(path)
            if rest:
                yield rest, raw.tell()
    except EOFError:
        raise DataError(f"{path}: the gzip file is cut short", "write or copy it again") from None
    except (gzip.BadGzipFile, zlib.error) as e:
        raise DataError(f"{path}: the gzip file is damaged: {e}", "write or copy it again") from None
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror}", "check the path and its permissions") from None


def _too_long(path: Path) -> DataError:
    return DataError(f"{path}: a line of over {MAX_LINE >> 20} MiB; this is not OpenMetrics text", _HINT)


_HINT = "source.openmetrics takes the text that promtool tsdb create-blocks-from openmetrics reads"


class _Table:
    """Samples of all files as they come: columns by block, and the distinct series."""

    def __init__(self, wanted: frozenset[str] | None) -> None:
        self.wanted = wanted
        self.keys: dict[Key, int] = {}
        self.columns: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []

    def number(self, key: Key) -> int:
        """The series' number, or `_UNWANTED` where its metric is not wanted."""
        if self.wanted is not None and key[0] not in self.wanted:
            return _UNWANTED
        return self.keys.setdefault(key, len(self.keys))

    def held(self, path: Path) -> dict[str, Samples]:
        """The samples by metric, sorted by (labels, time), each once."""
        columns, self.columns = self.columns, []
        if not columns:
            return {}
        ordered = sorted(self.keys)
        rank = np.empty(len(ordered), np.int64)
        rank[np.array([self.keys[key] for key in ordered], np.int64)] = np.arange(len(ordered))
        series = rank[np.concatenate([c[0] for c in columns])]
        time = np.concatenate([c[1] for c in columns])
        value = np.concatenate([c[2] for c in columns])
        del columns
        series, time, value = _sorted(series, time, value)
        again = np.flatnonzero((series[1:] == series[:-1]) & (time[1:] == time[:-1])) + 1
        if again.size:
            other = again[~((value[again] == value[again - 1]) | (np.isnan(value[again]) & np.isnan(value[again - 1])))]
            if other.size:
                i = int(other[0])
                raise DataError(
                    f"{path}: two values of {_text(ordered[int(series[i])])} at {iso(int(time[i]))}: "
                    f"{min(value[i - 1], value[i]):g} and {max(value[i - 1], value[i]):g}",
                    "two sources were mixed in these files; give each its own label, or remove one",
                )
            keep = np.ones(series.size, bool)
            keep[again] = False
            series, time, value = series[keep], time[keep], value[keep]
        held: dict[str, Samples] = {}
        first = 0
        while first < len(ordered):
            name, last = ordered[first][0], first
            while last < len(ordered) and ordered[last][0] == name:
                last += 1
            low, high = np.searchsorted(series, (first, last))
            labels = [dict(key[1]) for key in ordered[first:last]]
            held[name] = Samples(labels, series[low:high] - first, time[low:high], value[low:high])
            first = last
        return held


class _FileReader:
    """Parses one file's blocks into `table`."""

    def __init__(self, path: Path, table: _Table) -> None:
        self._path = path
        self._table = table
        self._numbers: dict[bytes, int] = {}
        self._line = 0
        self._dump: bool | None = None
        self._ended = False
        self._torn = False

    def add(self, block: bytes) -> None:
        """Takes whole lines; only the file's last block may lack its newline."""
        self._torn = not block.endswith(b"\n")
        if self._torn:
            block += b"\n"
        if b"\0" in block:
            raise DataError(f"{self._path}: binary data, not OpenMetrics text", _HINT)
        buffer = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(buffer == _NEWLINE)
        starts = np.append(0, ends[:-1] + 1)
        if (ends - starts).max() > MAX_LINE:
            raise _too_long(self._path)
        first = buffer[starts]
        lines = np.flatnonzero((first != _HASH) & (first != _NEWLINE))
        if lines.size:
            if self._dump is None:
                self._dump = block.startswith(_DUMP, int(starts[lines[0]]))
            self._samples(block, buffer, lines, starts, ends)
        self._find_end(block, starts, ends, first)
        self._line += ends.size

    def finish(self) -> None:
        """Checks that the file came to its end."""
        if not self._ended and (self._torn or not self._dump):  # a dump has no mark of its end
            raise DataError(
                f"{self._path}: cut short: the last line is not # EOF",
                "write or copy the file again; OpenMetrics text must end with # EOF",
            )

    def _find_end(
        self, block: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], first: NDArray[np.uint8]
    ) -> None:
        after = 0
        if not self._ended:
            for i in np.flatnonzero((first == _HASH) & (ends - starts == len(_EOF))):
                if block.startswith(_EOF, int(starts[i])):
                    self._ended, after = True, int(i) + 1
                    break
        if self._ended and (first[after:] != _NEWLINE).any():
            line = self._line + after + int(np.argmax(first[after:] != _NEWLINE)) + 1
            raise DataError(f"{self._path}:{line}: text after # EOF", "keep joined files apart, in one folder")

    def _samples(
        self,
        block: bytes,
        buffer: NDArray[np.uint8],
        lines: NDArray[np.int64],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> None:
        """Parses the `lines` of the block, given where all its lines start and end."""
        blanks = np.flatnonzero(buffer == _BLANK)
        last = np.searchsorted(blanks, ends[lines]) - 1
        plain = last >= 1
        plain[plain] = blanks[last[plain] - 1] > starts[lines[plain]]
        odd: list[int] = lines[~plain].tolist()
        rows = lines[plain]
        if rows.size:
            texts = _cut(block, starts[rows], blanks[last[plain] - 1], blanks[last[plain]], ends[rows])
            coded = texts.take(pa.array(np.arange(0, 6 * rows.size, 6))).dictionary_encode()
            numbers = np.array([self._number(text) for text in coded.dictionary.to_pylist()], np.int64)
            series = numbers[coded.indices.to_numpy()]
            odd += rows[series == _UNREAD].tolist()
            kept = np.flatnonzero(series >= 0)
            value, not_value = _parsed(texts.take(pa.array(6 * kept + 2)))
            time, not_time = _parsed(texts.take(pa.array(6 * kept + 4)))
            if not self._dump:
                time = time * 1000
            bad = not_value | not_time | ~(np.abs(time) < _MAX_TIME)
            if bad.any():
                odd.append(int(rows[kept[np.argmax(bad)]]))
            else:
                self._table.columns.append((series[kept], np.rint(time).astype(np.int64), value))
        if odd:
            odd.sort()  # the first mistake in the file is the one that is told
            self._one_by_one([block[starts[i] : ends[i]] for i in odd], [self._line + i + 1 for i in odd])

    def _number(self, text: bytes) -> int:
        """The number of a series as it is written; `_UNWANTED`, or `_UNREAD` for what is no whole series."""
        found = self._numbers.get(text)
        if found is None:
            key = _series(text, self._dump is True)
            if key is None:
                return _UNREAD
            found = self._numbers[text] = self._table.number(key)
        return found

    def _one_by_one(self, texts: list[bytes], lines: list[int]) -> None:
        """Parses lines with exemplars exactly; raises `DataError` at the first that is wrong."""
        rows: list[tuple[int, int, float]] = []
        for text, line in zip(texts, lines, strict=True):
            end = _series_end(text)
            tail = _TAIL.fullmatch(text, end) if end else None
            number = self._number(text[:end]) if tail else _UNREAD
            if tail is None or number == _UNREAD:
                self._malformed(text, line, "not a sample")
            if not _FLOAT.fullmatch(tail[1]):
                self._malformed(text, line, "its value is not a number")
            if tail[2] is None:
                self._malformed(text, line, "the sample has no timestamp", "export samples together with their times")
            seconds = float(tail[2]) if _FLOAT.fullmatch(tail[2]) else np.nan
            time = seconds if self._dump else seconds * 1000
            if not abs(time) < _MAX_TIME:
                self._malformed(text, line, "its time is not one in " + ("ms" if self._dump else "seconds"))
            if number >= 0:
                rows.append((number, round(time), float(tail[1])))
        if rows:
            series, times, values = zip(*rows, strict=True)
            self._table.columns.append(
                (np.array(series, np.int64), np.array(times, np.int64), np.array(values, np.float64))
            )

    def _malformed(self, text: bytes, line: int, what: str, hint: str = "") -> NoReturn:
        shown = ascii(text[:_SHOWN].decode("utf-8", "replace"))[1:-1] + ("..." if len(text) > _SHOWN else "")
        raise DataError(f"{self._path}:{line}: {what}: {shown}", hint or _HINT)


def _cut(
    block: bytes, start: NDArray[np.int64], value: NDArray[np.int64], time: NDArray[np.int64], end: NDArray[np.int64]
) -> pa.Array:
    """Six texts a line, one behind the other: series, blank, value, blank, time, and what is up to the next line."""
    edges = np.empty(6 * start.size + 1, np.int32)
    for k, at in enumerate((start, value, value + 1, time, time + 1, end)):
        edges[k:-1:6] = at
    edges[-1] = len(block)
    return pa.Array.from_buffers(pa.binary(), 6 * start.size, [None, pa.py_buffer(edges), pa.py_buffer(block)])


def _parsed(texts: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Texts as numbers, and which of them are none."""
    try:
        value = texts.cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
        return value, np.zeros(value.size, bool)
    except pa.ArrowInvalid:
        coded = texts.dictionary_encode()
        distinct = coded.dictionary.to_pylist()
        good = np.array([_FLOAT.fullmatch(text) is not None for text in distinct], bool)
        value = np.array([float(t) if g else np.nan for t, g in zip(distinct, good, strict=True)], np.float64)
        codes = coded.indices.to_numpy()
        return value[codes], ~good[codes]


def _series_end(text: bytes) -> int:
    """Where the series at the beginning of a line ends; 0 if there is none."""
    found = _NAME.match(text)
    at = found.end() if found else 0
    if text[at : at + 1] != b"{":
        return at
    if text[at + 1 : at + 2] == b"}":
        return at + 2 if at else 0
    at += 1
    while label := _LABEL.match(text, at):
        at = label.end()
        if label[3] == b"}":
            return at
        if text[at : at + 1] == b"}":  # a comma behind the last label
            return at + 1
    return 0


def _series(text: bytes, dump: bool) -> Key | None:
    """Name and labels of a series as it is written; None if `text` is not exactly one."""
    if _series_end(text) != len(text):
        return None
    found = _NAME.match(text)
    names = [found[0].decode()] if found else []
    labels: dict[str, str] = {}
    try:
        for label in _LABEL.finditer(text, (found.end() if found else 0) + 1):
            name = label[1].decode()
            if label[2] is None:  # a name in quotes, as Prometheus 3 writes those outside the old alphabet
                if not name.startswith('"'):
                    return None
                names.append(_unescaped(name[1:-1], dump))
                continue
            if name.startswith('"'):
                name = _unescaped(name[1:-1], dump)
            value = _unescaped(label[2].decode(), dump)
            if name == "__name__":
                names.append(value)
            elif name in labels:
                return None
            else:
                labels[name] = value
    except UnicodeDecodeError:
        return None
    if len(names) != 1 or not names[0]:
        return None
    return names[0], tuple(sorted((n, v) for n, v in labels.items() if v))


def _unescaped(text: str, dump: bool) -> str:
    """A label's value: OpenMetrics knows three escapes and leaves others alone; a dump quotes as Go does."""
    if "\\" not in text:
        return text
    if dump:
        return _GO_ESCAPE.sub(lambda m: _GO_SHORT[m[1]] if m[1] else chr(int(m[2] or m[3] or m[4], 16)), text)
    return _ESCAPE.sub(lambda m: {"n": "\n", "\\": "\\", '"': '"'}.get(m[1], m[0]), text)


def _text(key: Key) -> str:
    name, labels = key
    return name + "{" + ", ".join(f"{n}={v!r}" for n, v in labels) + "}"


def _sorted(
    series: NDArray[np.int64], time: NDArray[np.int64], value: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The columns sorted by (series, time)."""
    if not series.size:
        return series, time, value
    base = int(time.min())
    span = int(time.max()) - base + 1
    if span * (int(series.max()) + 1) < 2**63:
        key = series * span + (time - base)
        if (key[1:] >= key[:-1]).all():
            return series, time, value
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort((time, series))
    return series[order], time[order], value[order]
