"""Series and their windows: blanks (M3), values that are repeated (M2), scrape intervals (W3), exact edges (C1)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chargeback.config import LabelNames
from chargeback.sources import Labels, Samples, Source, Windows
from chargeback.sources.memory import aggregate

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Slice:
    """A partition being collected: its source, `[start, end)` in ms, window length and `max_gap` in ms."""

    source: Source
    start: int
    end: int
    window: int
    max_gap: int


def label(labels: Labels, names: LabelNames) -> str:
    """The first of these labels that has a value, or ""."""
    for name in names:
        if value := labels.get(name):
            return value
    return ""


def same_series(labels: list[Labels], wanted: list[Labels]) -> Ints:
    """For each of `labels` its place in `wanted`, or -1."""
    place = {tuple(sorted(ls.items())): i for i, ls in enumerate(wanted)}
    return np.array([place.get(tuple(sorted(ls.items())), -1) for ls in labels], np.int64)


def matchers_for(labels: list[Labels], names: Collection[str]) -> dict[str, set[str]]:
    """Matchers that let at least these series through, by those of the labels `names` that all of them have."""
    return {n: {ls[n] for ls in labels} for n in names if labels and all(ls.get(n) for ls in labels)}


def concat(parts: list[Windows]) -> Windows:
    """Several metrics that say the same (a field's old and new name) as one."""
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0] + [len(p.labels) for p in parts])
    empty = np.empty(0, np.int64)
    return Windows(
        [ls for p in parts for ls in p.labels],
        np.concatenate([empty, *(p.series + o for p, o in zip(parts, offsets, strict=False))]),
        np.concatenate([empty, *(p.window for p in parts)]),
        np.concatenate([np.empty(0), *(p.total for p in parts)]),
        np.concatenate([empty, *(p.count for p in parts)]),
        np.concatenate([np.empty(0), *(p.low for p in parts)]),
        np.concatenate([np.empty(0), *(p.high for p in parts)]),
    )


def cleaned(
    cut: Slice, metric: str, found: Windows, limit: Floats, names: Collection[str]
) -> tuple[Windows, dict[int, int]]:
    """M3: samples that are no measurement are replaced by the series' last good value of at most `max_gap` before.

    `limit` is, by series, the largest value that can be true, in the metric's unit. Series that a blank may hide in
    are read raw; the second result says how many samples of which series were dropped.
    """
    broken = np.zeros(len(found.labels), bool)
    broken[found.series[~np.isfinite(found.total)]] = True
    with np.errstate(invalid="ignore"):
        suspect = np.flatnonzero(broken | (found.low < 0) | (found.high > limit))
    if not suspect.size:
        return found, {}
    wanted = [found.labels[i] for i in suspect]
    raw = cut.source.samples(metric, cut.start - cut.max_gap, cut.end, matchers_for(wanted, names))
    place = same_series(raw.labels, wanted)[raw.series]
    rows = np.flatnonzero(place >= 0)
    series, time, value = suspect[place[rows]], raw.time[rows], raw.value[rows]
    bad, last, stands = last_good(series, time, value, limit[series], cut.max_gap)
    inside = time >= cut.start
    dropped = dict(zip(*(a.tolist() for a in np.unique(series[bad & inside], return_counts=True)), strict=True))
    keep = inside & stands
    mended = aggregate(Samples(found.labels, series[keep], time[keep], value[last[keep]]), cut.window)
    others = ~np.isin(found.series, suspect)
    series = np.concatenate([found.series[others], mended.series])
    order = np.lexsort((np.concatenate([found.window[others], mended.window]), series))
    merged = [
        np.concatenate([getattr(found, c)[others], getattr(mended, c)])[order] for c in ("window", "total", "count")
    ]
    return replace(found, series=series[order], window=merged[0], total=merged[1], count=merged[2]), dropped


def last_good(series: Ints, time: Ints, value: Floats, limit: Floats, max_gap: int) -> tuple[Bools, Ints, Bools]:
    """M3 for samples sorted by (series, time): which are no measurement, the row of the last good one up to each, and
    whether that stands for it (within `max_gap` ms).
    """
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(value) | (value < 0) | (value > limit)
    last = np.maximum.accumulate(np.where(bad, -1, np.arange(bad.size)))
    return bad, last, (last >= 0) & (series[last] == series) & (time - time[last] <= max_gap)


@dataclass(frozen=True)
class Once:
    """By group (a device in a window, say): the sum and number of its samples, each scrape read once."""

    group: Ints
    total: Floats
    count: Ints


def read_once(
    group: Ints,
    total: Floats,
    count: Ints,
    rank: Ints,
    full: Ints,
    raw: Callable[[Bools], tuple[Ints, Ints, Ints, Floats]],
) -> Once:
    """M2: of rows that repeat one value, each scrape once; never their sum.

    Rows: `group`, `total`, `count`, a `rank` (by label, for ties) and `full`, the scrapes that the window had at
    least. Where one row covers them it is the answer. Where rows of a group follow or overlap one another without
    one that covers, `raw(rows)` gives those rows' samples as (group, time, rank, value), and each time counts once.
    """
    order = np.lexsort((rank, -count, group))
    g, t, c = group[order], total[order], count[order]
    first = np.flatnonzero(np.append(True, g[1:] != g[:-1])) if g.size else np.empty(0, np.int64)
    size = np.diff(np.append(first, g.size))
    open_ = (size > 1) & (c[first] < full[order][first])
    groups, totals, counts = g[first].copy(), t[first].copy(), c[first].copy()
    if open_.any():
        rows = np.zeros(group.size, bool)
        rows[order] = np.repeat(open_, size)
        rg, rt, rr, rv = raw(rows)
        o = np.lexsort((rr, rt, rg))
        rg, rt, rv = rg[o], rt[o], rv[o]
        new = np.append(True, (rg[1:] != rg[:-1]) | (rt[1:] != rt[:-1])) if rg.size else np.empty(0, bool)
        found, inverse = np.unique(rg[new], return_inverse=True)
        at = np.searchsorted(groups, found)
        totals[at] = np.bincount(inverse, rv[new])
        counts[at] = np.bincount(inverse)
    return Once(groups, totals, counts)


@dataclass(frozen=True)
class Stretches:
    """By node: stretches of windows with samples, with the exact time of the first and the last sample (C1)."""

    node: Ints
    first: Ints
    last: Ints


def rhythm(
    cut: Slice, metric: str, found: Windows, node: Ints, names: Collection[str], *, one_scrape: bool
) -> tuple[Stretches, tuple[Ints, Ints, Ints]]:
    """Where each node's samples begin and end, and the distances between neighbours (W3, C1).

    `node`: by series of `found` (-1: not wanted). The fullest series of a node is read raw; an edge that it does not
    show is read raw too. `one_scrape`: all series of a node come from one scrape, so that the fullest one shows its
    times; else each may have its own. The second result is (node, distance in ms, how often).
    """
    empty = np.empty(0, np.int64)
    rows = np.flatnonzero(node[found.series] >= 0)
    if not rows.size:
        return Stretches(empty, empty, empty), (empty, empty, empty)
    at, window, count = node[found.series[rows]], found.window[rows], found.count[rows]
    per_series = np.bincount(found.series[rows], found.count[rows], len(found.labels)).astype(np.int64)
    series = np.flatnonzero(per_series)
    best = series[np.lexsort((series, -per_series[series], node[series]))]
    best = best[np.append(True, node[best][1:] != node[best][:-1])]
    wanted = [found.labels[i] for i in best]
    raw = cut.source.samples(metric, cut.start, cut.end, matchers_for(wanted, names))
    place = same_series(raw.labels, wanted)[raw.series]
    kept = np.flatnonzero(place >= 0)
    time, owner = raw.time[kept], node[best][place[kept]]
    order = np.lexsort((time, owner))
    time, owner = time[order], owner[order]
    step, same = np.diff(time), owner[1:] == owner[:-1]
    pairs, often = np.unique(np.stack([owner[1:][same], step[same]]), axis=1, return_counts=True)
    intervals = (pairs[0], pairs[1], often.astype(np.int64))

    key_order = np.lexsort((-count, window, at))
    a, w, c = at[key_order], window[key_order], count[key_order]
    first = np.append(True, (a[1:] != a[:-1]) | (w[1:] != w[:-1]))
    c = c[first] if one_scrape else np.add.reduceat(c, np.flatnonzero(first))
    a, w = a[first], w[first]
    begins = np.append(True, (a[1:] != a[:-1]) | (w[1:] != w[:-1] + 1))
    ends = np.append(begins[1:], True)
    edge = np.flatnonzero(begins | ends)
    steps = np.full(int(node.max()) + 1, cut.window)
    for n, distance, _ in sorted(zip(*(i.tolist() for i in intervals), strict=True), key=lambda i: (i[2], -i[1])):
        steps[n] = distance
    needed = np.maximum(c[edge], cut.window // np.maximum(steps[a[edge]], 1))
    low, high = _edges(cut, metric, found, node, a[edge], w[edge], needed, owner, time, names)
    by_row = {int(e): i for i, e in enumerate(edge)}
    starts = [by_row[int(i)] for i in np.flatnonzero(begins)]
    stops = [by_row[int(i)] for i in np.flatnonzero(ends)]
    return Stretches(a[begins], low[starts], high[stops]), intervals


def _edges(
    cut: Slice,
    metric: str,
    found: Windows,
    node: Ints,
    at: Ints,
    window: Ints,
    count: Ints,
    owner: Ints,
    time: Ints,
    names: Collection[str],
) -> tuple[Ints, Ints]:
    """First and last sample time in each (node, window) of `at`, `window`; from (`owner`, `time`) where that shows
    as many samples as a full window has, `count`, else read raw.
    """
    span = int(max(window.max(), (time // cut.window).max() if time.size else 0)) + 1
    known, start, seen = np.unique(owner * span + time // cut.window, return_index=True, return_counts=True)
    place = np.searchsorted(known, at * span + window)
    place[place == known.size] = 0
    hit = (known[place] == at * span + window) & (seen[place] >= count) if known.size else np.zeros(at.size, bool)
    low, high = np.zeros(at.size, np.int64), np.zeros(at.size, np.int64)
    low[hit] = time[start[place[hit]]]
    high[hit] = time[start[place[hit]] + seen[place[hit]] - 1]
    for w in np.unique(window[~hit]).tolist():
        raw = cut.source.samples(
            metric,
            w * cut.window,
            (w + 1) * cut.window,
            matchers_for([found.labels[i] for i in np.flatnonzero(np.isin(node, at[~hit & (window == w)]))], names),
        )
        place_of = same_series(raw.labels, found.labels)
        whose = np.where(place_of >= 0, node[place_of], -1)[raw.series]
        for i in np.flatnonzero(~hit & (window == w)).tolist():
            times = raw.time[whose == at[i]]
            low[i], high[i] = times.min(), times.max()
    return low, high


def stretches(key: Ints, window: Ints) -> tuple[Ints, Ints, Ints]:
    """Runs of neighbouring windows by key: (key, first window, last window), sorted; rows may repeat."""
    order = np.lexsort((window, key))
    k, w = key[order], window[order]
    if not k.size:
        return k, w, w
    begins = np.append(True, (k[1:] != k[:-1]) | (w[1:] > w[:-1] + 1))
    return k[begins], w[begins], w[np.append(begins[1:], True)]
