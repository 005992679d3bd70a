"""Samples held in memory, by metric: what a file's reader fills, and the local form of the server's aggregation."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from chargeback.sources import Labels, Matchers, Samples, SourceInfo, Windows


class MemorySource:
    """A `Source` over samples that are at hand.

    `held` maps a metric to its samples, sorted by (series, time), each (series, time) once.
    """

    def __init__(self, held: dict[str, Samples], info: SourceInfo) -> None:
        self._held = held
        self._info = info

    def info(self) -> SourceInfo:
        return self._info

    def warnings(self) -> list[str]:
        return []

    def metrics(self, start: int, end: int) -> set[str]:
        return {name for name, held in self._held.items() if ((held.time >= start) & (held.time < end)).any()}

    def oldest(self, metrics: Collection[str]) -> int | None:
        firsts = [int(held.time.min()) for name, held in self._held.items() if name in metrics and held.time.size]
        return min(firsts, default=None)

    def samples(self, metric: str, start: int, end: int, matchers: Matchers | None = None) -> Samples:
        held = self._held.get(metric)
        if held is None:
            return Samples([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        rows = np.flatnonzero((held.time >= start) & (held.time < end))
        if matchers:
            rows = rows[_matching(held.labels, matchers)[held.series[rows]]]
        kept, series = np.unique(held.series[rows], return_inverse=True)
        return Samples([held.labels[i] for i in kept], series, held.time[rows], held.value[rows])

    def windows(
        self,
        metric: str,
        start: int,
        end: int,
        window: int,
        *,
        by: Collection[str] | None = None,
        matchers: Matchers | None = None,
        values: bool = True,
    ) -> Windows:
        return aggregate(self.samples(metric, start, end, matchers), window, by=by, values=values)


def aggregate(samples: Samples, window: int, *, by: Collection[str] | None = None, values: bool = True) -> Windows:
    """Sums and counts of `samples` by series and window of `window` ms (W1), reduced to the labels `by` if given."""
    n = len(samples.labels)
    row_window = samples.time // window
    starts = _run_starts(samples.series, row_window)
    series, at = samples.series[starts], row_window[starts]
    count = np.diff(np.append(starts, samples.series.size))
    low = high = np.full(n, np.nan)
    if values:
        total = _sums(samples.value, starts)
        first = _run_starts(samples.series)
        if first.size:
            low, high = (f.reduceat(samples.value, first) for f in (np.fmin, np.fmax))
    else:
        total = np.zeros(starts.size)
    found = Windows(samples.labels, series, at, total, count, low, high)
    return found if by is None else reduced(found, by)


def reduced(found: Windows, by: Collection[str]) -> Windows:
    """`found` with its series reduced to the labels `by`: the largest sum and count of those that become one."""
    reduced_to = [tuple(sorted((n, labels[n]) for n in by if labels.get(n))) for labels in found.labels]
    place = {key: i for i, key in enumerate(sorted(set(reduced_to)))}
    code = np.array([place[key] for key in reduced_to], np.int64)
    kept: list[Labels] = [dict(key) for key in place]
    series = code[found.series]
    order = np.lexsort((found.window, series))
    starts = _run_starts(series[order], found.window[order])
    low, high = np.full(len(kept), np.nan), np.full(len(kept), np.nan)
    np.fmin.at(low, code, found.low)
    np.fmax.at(high, code, found.high)
    if not starts.size:
        return Windows(kept, series, found.window, found.total, found.count, low, high)
    return Windows(
        kept,
        series[order][starts],
        found.window[order][starts],
        np.fmax.reduceat(found.total[order], starts),
        np.maximum.reduceat(found.count[order], starts),
        low,
        high,
    )


def _matching(labels: list[Labels], matchers: Matchers) -> NDArray[np.bool_]:
    wanted = {name: frozenset(values) for name, values in matchers.items()}
    return np.array([all(ls.get(n, "") in v for n, v in wanted.items()) for ls in labels], bool)


def _run_starts(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where, in columns sorted together, a new combination begins."""
    if not columns[0].size:
        return np.empty(0, np.int64)
    change = np.zeros(columns[0].size, bool)
    change[0] = True
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(change)


def _sums(value: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.add.reduceat(value, starts) if starts.size else np.empty(0)
