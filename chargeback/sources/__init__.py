"""Where samples come from: one interface, `Source`, and what it answers with.

Times are whole milliseconds since the epoch (int64), windows are numbered from the epoch: window `k` of
length `w` holds the samples of `[k * w, (k + 1) * w)` (W1).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Labels = dict[str, str]
Matchers = Mapping[str, Collection[str]]


@dataclass(frozen=True)
class Windows:
    """One metric's samples by series and window; rows sorted by (series, window), each pair once.

    `labels[i]` are the labels of series `i`, without `__name__`. `total` is the sum of the row's samples (0 where
    only counts were asked for), `count` their number. `low` and `high` are a series' extremes over all that was
    asked for (NaN samples left out; NaN where counts only), so that a blank hidden in a sum is seen (M3).
    """

    labels: list[Labels]
    series: NDArray[np.int64]
    window: NDArray[np.int64]
    total: NDArray[np.float64]
    count: NDArray[np.int64]
    low: NDArray[np.float64] = field(repr=False)
    high: NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True)
class Samples:
    """One metric's raw samples, sorted by (series, time): times in ms, values as exposed."""

    labels: list[Labels]
    series: NDArray[np.int64]
    time: NDArray[np.int64]
    value: NDArray[np.float64]


@dataclass(frozen=True)
class SourceInfo:
    """What was asked: `kind` (openmetrics, prometheus, victoriametrics, ...), its version, and where it is."""

    kind: str
    version: str
    address: str


class Source(Protocol):
    """Reads samples. Raises `errors.SourceUnreachable` (4) or `errors.DataError` (5), never anything of a library's.

    `matchers` name, for a label, the values that a series may have; a label without values matches nothing.
    """

    def info(self) -> SourceInfo:
        """What stands behind this source."""
        ...

    def metrics(self, start: int, end: int) -> set[str]:
        """Names of the metrics with a sample in `[start, end)` ms."""
        ...

    def oldest(self, metrics: Collection[str]) -> int | None:
        """Time in ms of the oldest sample of any of these metrics that is still held; None without one (Q2)."""
        ...

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
        """Sum and count of each series' samples by window over `[start, end)`, both multiples of `window` ms (W1, M3).

        With `by`, series are reduced to these labels and, window by window, to the largest count and sum among
        those that become one (for series that say the same twice). Without `values`, only counts.
        """
        ...

    def samples(self, metric: str, start: int, end: int, matchers: Matchers | None = None) -> Samples:
        """Raw samples of `[start, end)` ms."""
        ...

    def warnings(self) -> list[str]:
        """What the source warned of so far (partial data); empty when all was whole (Q1)."""
        ...


@dataclass(frozen=True)
class OneOf:
    """One cluster of a source that holds several, told apart by a label (`source.cluster_label`)."""

    source: Source
    label: str
    cluster: str

    def _narrowed(self, matchers: Matchers | None) -> Matchers:
        return {**(matchers or {}), self.label: [self.cluster]}

    def info(self) -> SourceInfo:
        return self.source.info()

    def metrics(self, start: int, end: int) -> set[str]:
        return self.source.metrics(start, end)

    def oldest(self, metrics: Collection[str]) -> int | None:
        return self.source.oldest(metrics)

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
        return self.source.windows(metric, start, end, window, by=by, matchers=self._narrowed(matchers), values=values)

    def samples(self, metric: str, start: int, end: int, matchers: Matchers | None = None) -> Samples:
        return self.source.samples(metric, start, end, self._narrowed(matchers))

    def warnings(self) -> list[str]:
        return self.source.warnings()
