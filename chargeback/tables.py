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
    code = np.zeros(table.num_rows, np.int64)
    values = []
    for name in columns:
        column = table.column(name)
        encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], pa.string()).dictionary_encode()
        words = encoded.dictionary.to_pylist()
        order = sorted(range(len(words)), key=words.__getitem__)
        place = np.empty(len(words), np.int64)
        place[order] = np.arange(len(words))
        code = code * max(len(words), 1) + place[encoded.indices.to_numpy(zero_copy_only=False)]
        values.append([words[i] for i in order])
    found, inverse = np.unique(code, return_inverse=True)
    parts = []
    rest = found
    for words in reversed(values):
        size = max(len(words), 1)
        parts.append([words[i] for i in (rest % size).tolist()])
        rest = rest // size
    return inverse.astype(np.int64), list(zip(*reversed(parts), strict=True))


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
