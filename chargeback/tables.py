"""Small tools for columns: codes for keys, runs of equal rows, look-up by (key, window)."""

from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Key = tuple[str, ...]
Number = TypeVar("Number", np.int64, np.float64)


def times(column: pa.ChunkedArray) -> Ints:
    """A timestamp[ms] column as whole ms."""
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)


def floats(column: pa.ChunkedArray) -> Floats:
    """A float column; null is NaN."""
    return np.asarray(column.to_numpy(), np.float64)


def keys(table: pa.Table, columns: tuple[str, ...]) -> tuple[Ints, list[Key]]:
    """Codes of the rows' keys, and the distinct keys in code order, sorted."""
    codes, values = [], []
    for name in columns:
        code, words = _words(table.column(name))
        codes.append(code)
        values.append(words)
    lead, inverse = groups(*codes)
    parts = [[words[i] for i in code[lead].tolist()] for code, words in zip(codes, values, strict=True)]
    return inverse, list(zip(*parts, strict=True))


def _words(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """Codes of a column of words, and its words in code order, sorted."""
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
    words = encoded.dictionary.to_pylist()
    order = sorted(range(len(words)), key=words.__getitem__)
    place = np.empty(len(words), np.int64)
    place[order] = np.arange(len(words))
    return place[encoded.indices.to_numpy(zero_copy_only=False)], [words[i] for i in order]


def groups(*columns: Ints) -> tuple[Ints, Ints]:
    """Rows with the same values in all columns: (first row of each group, in the order of the values; by row its
    group).
    """
    code, span = _dense(columns[0])
    for column in columns[1:]:
        more, wide = _dense(column)
        if span * wide >= _ROOM:
            code, span = _renumbered(code)
        code, span = code * wide + more, span * wide
    inverse, n = _renumbered(code)
    lead = np.empty(n, np.int64)
    lead[inverse[::-1]] = np.arange(code.size)[::-1]  # the last one assigned stays: the first row
    return lead, inverse


_ROOM = 2**62


def _dense(column: Ints) -> tuple[Ints, int]:
    """A column less its least value, and how many values it may have."""
    if not column.size:
        return column.astype(np.int64), 1
    low = int(column.min())
    return column.astype(np.int64) - low, int(column.max()) - low + 1


def _renumbered(code: Ints) -> tuple[Ints, int]:
    """Numbers 0, 1, ... in the order of the values, and how many there are. By hashing, which beats sorting."""
    encoded = pa.array(code).dictionary_encode()
    found = encoded.dictionary.to_numpy()
    place = np.empty(found.size, np.int64)
    place[np.argsort(found)] = np.arange(found.size)
    return place[encoded.indices.to_numpy()], found.size


def order_of(*columns: Ints) -> Ints:
    """A stable order of rows by columns, of which the first counts most."""
    code, span = _dense(columns[0])
    for column in columns[1:]:
        more, wide = _dense(column)
        if span * wide >= _ROOM:
            return np.asarray(np.lexsort(columns[::-1]), np.int64)
        code, span = code * wide + more, span * wide
    return np.argsort(code, kind="stable")  # takes stretches that are in order already as they are


def starts_of(*columns: Ints) -> Ints:
    """Where, in columns sorted together, a new combination begins."""
    if not columns[0].size:
        return np.empty(0, np.int64)
    change = np.zeros(columns[0].size, bool)
    change[0] = True
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(change)


def sizes(starts: Ints, total: int) -> Ints:
    """Length of each run."""
    return np.diff(np.append(starts, total))


def sums(values: NDArray[Number], starts: Ints) -> NDArray[Number]:
    """Sum of each run."""
    return np.asarray(np.add.reduceat(values, starts), values.dtype) if starts.size else values[:0]


def find(sorted_keys: Ints, wanted: Ints) -> Ints:
    """Place of each wanted key in unique sorted keys, -1 where it is missing."""
    if not sorted_keys.size:
        return np.full(wanted.size, -1, np.int64)
    at = np.minimum(np.searchsorted(sorted_keys, wanted), sorted_keys.size - 1)
    return np.where(sorted_keys[at] == wanted, at, -1)


def expand(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Of ranges of rows [first, first + count): (which range, row), range by range."""
    which = np.repeat(np.arange(first.size), count)
    ends = np.cumsum(count)
    return which, np.arange(which.size) - np.repeat(ends - count, count) + np.repeat(first, count)


class Timeline:
    """What holds for a key from a window on, until the next: look-up of the last entry at or before a window.

    Rows: `key`, `window` (from when on) in any order; of rows for one (key, window) the last given counts.
    """

    def __init__(self, key: Ints, window: Ints) -> None:
        self._base = int(window.min()) if window.size else 0
        self._span = (int(window.max()) - self._base if window.size else 0) + 1
        packed = key * self._span + window - self._base
        order = np.argsort(packed, kind="stable")
        packed = packed[order]
        last = np.append(packed[1:] != packed[:-1], True) if packed.size else np.empty(0, bool)
        self._packed, self._row, self._key = packed[last], order[last], key[order[last]]

    def at(self, key: Ints, window: Ints, *, else_first: bool = False) -> Ints:
        """Row in force for each (key, window), -1 before the first (or the first, with `else_first`)."""
        if not self._packed.size:
            return np.full(key.size, -1, np.int64)
        offset = np.clip(window - self._base, -1, self._span - 1)
        place = np.searchsorted(self._packed, key * self._span + offset, side="right") - 1
        ok = (place >= 0) & (self._key[place] == key)
        row = np.where(ok, self._row[place], -1)
        if else_first:
            after = np.minimum(np.searchsorted(self._packed, key * self._span), self._packed.size - 1)
            row = np.where(~ok & (self._key[after] == key), self._row[after], row)
        return row
