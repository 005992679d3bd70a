"""Where to look, and what is there: an hour of evidence, and the labels of its series. Nothing is written."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from chargeback import exporters
from chargeback.config import ClusterConfig, Profile
from chargeback.doctor.findings import Looked, Notes
from chargeback.errors import DataError
from chargeback.evidence.collect import TABLES, Evidence, collect
from chargeback.evidence.kube import METRICS as KUBE_METRICS
from chargeback.job import Job
from chargeback.period import DAY, HOUR, Period, iso, utc_day
from chargeback.sources import Source, Windows

_NEARLY = 0.9


@dataclass(frozen=True)
class Look:
    """A cluster's hour `[start, end)`: evidence, series of the exporters' metrics by window, and the source itself.

    With `in_store` the evidence is that of a collected day, since the source has no more of the period.
    """

    job: Job
    cluster: ClusterConfig
    source: Source
    profiles: list[Profile]
    start: int
    end: int
    evidence: Evidence
    present: set[str]
    series: dict[str, Windows]
    in_store: bool
    in_period: bool

    @property
    def window(self) -> int:
        """Number of the last window."""
        return self.end // self.job.config.window - 1

    def rows(self, table: str) -> list[dict[str, object]]:
        """A table of the evidence, row by row."""
        rows: list[dict[str, object]] = self.evidence.tables[table].to_pylist()
        return rows

    def text(self, table: str, *columns: str) -> list[tuple[str, ...]]:
        """Some text columns of a table, each distinct row once, sorted."""
        found = self.evidence.tables[table]
        return sorted(set(zip(*(found[c].to_pylist() for c in columns), strict=True)))

    def hourly(self, metric: str, by: Collection[str]) -> list[dict[str, str]]:
        """Which values these labels of a metric have."""
        if metric not in self.present:
            return []
        start, end = self.start - self.start % HOUR, -(-self.end // HOUR) * HOUR
        return self.source.windows(metric, start, end, HOUR, by=by, values=False).labels

    def about(self) -> Looked:
        """The span, for the reader."""
        return Looked(iso(self.start), iso(self.end), "store" if self.in_store else "source", self.in_period)


def look(job: Job, cluster: ClusterConfig, source: Source, period: Period, notes: Notes) -> Look:
    """Reads an hour of the period that has GPU samples: of its last day the last one that is as busy as any.

    Where the source has none in the period, a day of it from the store, else an hour of the last day up to now.
    """
    profiles = exporters.configured(job.config)
    end = min(period.end, -(-job.now // job.config.window) * job.config.window)
    day = max(period.start, end - DAY)
    span = _fullest(job, source, profiles, day, end) or _any_day(job, source, profiles, period.start, end)
    if span:
        return _read(job, cluster, source, profiles, span, notes, in_period=True)
    if stored := _stored(job, cluster, profiles, source, period):
        return stored
    now = job.now // job.config.window * job.config.window
    span = _fullest(job, source, profiles, now - DAY, now) if period.end <= now - HOUR else None
    return _read(
        job, cluster, source, profiles, span or (max(period.start, end - HOUR), end), notes, in_period=not span
    )


def _read(
    job: Job,
    cluster: ClusterConfig,
    source: Source,
    profiles: list[Profile],
    span: tuple[int, int],
    notes: Notes,
    *,
    in_period: bool,
) -> Look:
    start, end = span
    w = job.config.window
    evidence = Evidence({name: schema.empty_table() for name, schema in TABLES.items()}, [])
    series: dict[str, Windows] = {}
    present: set[str] = set()
    try:
        present = source.metrics(start, end)
        evidence = collect(
            source, job.config, cluster.source.replica_label, profiles, job.prices.gpu_types(), start, end
        )
        for name in sorted({m for p in profiles for m in exporters.metric_names(p)} & present):
            found = source.windows(name, start, end, w, values=False)
            if found.labels:
                series[name] = found
    except DataError as e:  # the rest can still be told
        notes.block("unreadable", e.message, e.hint)
    return Look(job, cluster, source, profiles, start, end, evidence, present, series, False, in_period)


def _stored(job: Job, cluster: ClusterConfig, profiles: list[Profile], source: Source, period: Period) -> Look | None:
    """The last collected day of the period that has GPUs."""
    for day in reversed(period.days()):
        try:
            meta = job.store.meta(cluster.name, day)
            if not meta or not meta["rows"].get("inventory"):
                continue
            tables = {name: job.store.table(cluster.name, [day], name) for name in TABLES}
            evidence = Evidence(tables, job.store.problems(cluster.name, [day]))
        except DataError:
            continue
        end = min(day + DAY, -(-job.now // job.config.window) * job.config.window)
        return Look(job, cluster, source, profiles, day, end, evidence, set(), {}, True, True)
    return None


def _any_day(job: Job, source: Source, profiles: list[Profile], start: int, end: int) -> tuple[int, int] | None:
    """The same in the last day before that has samples at all."""
    found, _ = _counts(source, profiles, start - start % DAY, -(-end // DAY) * DAY, DAY)
    days = sorted((d for d in found if d * DAY < end), reverse=True)
    spans = (_fullest(job, source, profiles, max(start, d * DAY), min(end, (d + 1) * DAY)) for d in days)
    return next((s for s in spans if s), None)


def _fullest(job: Job, source: Source, profiles: list[Profile], start: int, end: int) -> tuple[int, int] | None:
    """Of the hours of `[start, end)` that are nearly full, the last one that names nearly the most pods."""
    if start >= end:
        return None
    counts, pods = _counts(source, profiles, start - start % HOUR, -(-end // HOUR) * HOUR, HOUR)
    spans = {h: (max(start, h * HOUR), min(end, (h + 1) * HOUR)) for h in counts}
    inside = {h: n for h, n in counts.items() if spans[h][0] < spans[h][1]}
    if not inside:
        return None
    full = {h: pods[h] for h, n in inside.items() if n >= _NEARLY * max(inside.values())}
    a, b = spans[max(h for h, n in full.items() if n >= _NEARLY * max(full.values()))]
    w = job.config.window
    return a - a % w, -(-b // w) * w


def _counts(
    source: Source, profiles: list[Profile], start: int, end: int, unit: int
) -> tuple[dict[int, int], dict[int, int]]:
    """By hour or day: samples of the fullest series, of devices where they are reported, else of processes; and how
    many pods are named.
    """
    present = source.metrics(start, end)
    samples: dict[str, dict[int, int]] = {"device": {}, "process": {}}
    pods: dict[int, int] = {}
    for level, profile in ((level, profile) for level in samples for profile in profiles):
        name = next((m for m in _names(profile, level) if m in present), None)
        mapped = (
            profile.process_labels if level == "process" else profile.device_memory and profile.device_memory.labels
        )
        if name and mapped:
            found = source.windows(name, start, end, unit, by=[*mapped.namespace, *mapped.pod], values=False)
            for window, count in zip(found.window.tolist(), found.count.tolist(), strict=True):
                samples[level][window] = max(samples[level].get(window, 0), count)
                pods[window] = pods.get(window, 0) + 1
    return samples["device"] or samples["process"], pods


def _names(profile: Profile, level: str) -> list[str]:
    process = set(profile.process_memory.metric) if profile.process_memory else set()
    return [m for m in exporters.metric_names(profile) if (m in process) == (level == "process")]


def read_metrics(profiles: list[Profile]) -> set[str]:
    """Every metric that billing reads."""
    return {m for p in profiles for m in exporters.metric_names(p)} | set(KUBE_METRICS)


def ranges(days: Collection[int]) -> tuple[str, ...]:
    """UTC days as `FIRST/LAST`, or one alone."""
    listed = np.array(sorted(days), np.int64)
    if not listed.size:
        return ()
    parts = np.split(listed, np.flatnonzero(np.diff(listed) > DAY) + 1)
    return tuple(utc_day(int(p[0])) + (f"/{utc_day(int(p[-1]))}" if p.size > 1 else "") for p in parts)
