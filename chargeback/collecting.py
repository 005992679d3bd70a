"""Evidence for a period: one partition a UTC day and cluster, pulled once, in shares of nodes, and kept."""

import hashlib
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chargeback import __version__, exporters
from chargeback.config import ClusterConfig, Config
from chargeback.errors import DataError
from chargeback.evidence.collect import Evidence, merged, wanted_labels
from chargeback.evidence.collect import collect as read_partition
from chargeback.evidence.gpu import ALL_NODES, NodeShare
from chargeback.evidence.kube import METRICS as KUBE_METRICS
from chargeback.job import Job
from chargeback.ledger import Store
from chargeback.period import DAY, Period, iso, to_ms, utc_day, zone_of
from chargeback.sources import OneOf, Source
from chargeback.sources.openmetrics import read as read_openmetrics
from chargeback.sources.prometheus import PrometheusSource

SETTLE = 15 * 60_000
"""After a day and `max_gap` more, ms until nothing more of it can come."""
NODES_AT_ONCE = 64
WHOLE_AND_RAW = {"partial_response": "false", "max_source_resolution": "0s"}
"""What Thanos needs to be told: no answer with holes, no downsampled data. Other servers pass over it."""
Opener = Callable[[ClusterConfig, Config], Source]


@dataclass(frozen=True)
class How:
    """`refresh`: also what is complete already. `jobs`: processes at once. `share`: of the nodes, with a run of its
    own for each other share.
    """

    refresh: bool = False
    jobs: int = 1
    share: NodeShare = ALL_NODES


AS_IT_IS = How()


def open_source(cluster: ClusterConfig, config: Config) -> Source:
    """The source of a cluster, as configured."""
    source: Source
    if cluster.source.openmetrics is not None:
        wanted = {*KUBE_METRICS, "up", *(m for p in exporters.configured(config) for m in exporters.metric_names(p))}
        source = read_openmetrics(cluster.source.openmetrics, wanted=wanted)
    else:
        assert cluster.source.prometheus is not None
        known = {**WHOLE_AND_RAW, "dedup": "false" if cluster.source.replica_label else "true"}
        asked = {**known, **cluster.source.prometheus.params}
        source = PrometheusSource(cluster.source.prometheus.model_copy(update={"params": asked}))
    label = cluster.source.cluster_label
    return OneOf(source, label, cluster.name) if label else source


def collect(job: Job, period: Period, opened: Opener = open_source, how: How = AS_IT_IS) -> None:
    """Pulls the evidence of a period that the store lacks. Raises what sources raise, and `DataError` for a period
    that the source no longer holds (Q2). The caller holds the store's lock.
    """
    config = job.config
    for cluster in config.all_clusters():
        days = [d for d in period.days(config.max_gap, config.max_gap) if d < job.now]
        asks = fingerprint(config, cluster)
        missing = [d for d in days if how.refresh or not _has(job.store, cluster.name, d, asks, how.share)]
        if not missing:
            continue
        source = opened(cluster, config)
        names = {m for p in exporters.configured(config) for m in exporters.metric_names(p)} | set(KUBE_METRICS)
        oldest = source.oldest(names)
        _check_retention(job, cluster, period, oldest, names)
        missing = [d for d in missing if not _would_lose(job.store, cluster.name, d, oldest, config.max_gap)]
        task = _Task(config, cluster, job.store, job.prices.gpu_types(), job.now, oldest, asks, how.share)
        steps = job.progress(f"collecting {cluster.name}", missing, len(missing))
        if how.jobs > 1 and len(missing) > 1 and cluster.source.prometheus is not None and opened is open_source:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(min(how.jobs, len(missing)), context) as pool:
                coming = [pool.submit(_pull, task, day, None) for day in missing]
                for day, done in zip(steps, coming, strict=True):
                    _keep(task, day, *done.result())
        else:
            for day in steps:
                _keep(task, day, *_pull(task, day, source))


@dataclass(frozen=True)
class _Task:
    """What pulling a day needs, in a process of its own if need be."""

    config: Config
    cluster: ClusterConfig
    store: Store
    gpu_types: set[str]
    now: int
    oldest: int | None
    asks: str
    share: NodeShare


def _pull(task: _Task, day: int, source: Source | None) -> tuple[Evidence, dict[str, Any]]:
    """Reads a partition, group of nodes by group of nodes; with what is known of it. Writes nothing: a process that
    outlives a killed run must not touch a store whose lock is free by then.
    """
    config, cluster = task.config, task.cluster
    source = source or open_source(cluster, config)
    end = min(day + DAY, -(-task.now // config.window) * config.window)
    before = len(source.warnings())
    groups = _groups(source, config, day)
    parts = []
    for i in range(groups):
        share = NodeShare(task.share.index + i * task.share.of, task.share.of * groups)
        found = read_partition(
            source, config, cluster.source.replica_label, exporters.configured(config), task.gpu_types, day, end, share
        )
        parts.append(found)
    evidence = merged(parts)
    warned = sorted(set(source.warnings()[before:]))
    meta = {
        "version": __version__,
        "cluster": cluster.name,
        "window_ms": config.window,
        "asks": task.asks,
        "asked": [iso(day), iso(end)],
        "source": vars(source.info()),
        "rows": {name: t.num_rows for name, t in evidence.tables.items()},
        "samples": int(sum(evidence.tables["devices"]["samples"].to_pylist())),
        "warnings": warned,
        "complete": not warned and day + DAY + config.max_gap + SETTLE <= task.now,
        "whole": not warned,
        "held_from_ms": task.oldest or day,
    }
    return evidence, meta


def _keep(task: _Task, day: int, evidence: Evidence, meta: dict[str, Any]) -> None:
    """Puts a partition into the store, or a share's part of it, and the whole once all parts are there."""
    cluster = task.cluster
    if task.share.of == 1:
        task.store.write_evidence(cluster.name, day, evidence, meta)
        return
    task.store.write_share(cluster.name, day, task.share, evidence, meta)
    if (shares := task.store.shares(cluster.name, day, task.share.of)) is not None:
        whole = merged([e for e, _ in shares])
        rows = {name: t.num_rows for name, t in whole.tables.items()}
        task.store.write_evidence(cluster.name, day, whole, _together([m for _, m in shares]) | {"rows": rows})
        task.store.drop_shares(cluster.name, day)


def _together(metas: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known of a partition from what is known of its shares."""
    first = {k: v for k, v in metas[0].items() if k not in ("schema", "problems", "revision")}
    return first | {
        "asked": [first["asked"][0], min(m["asked"][1] for m in metas)],
        "samples": sum(m["samples"] for m in metas),
        "warnings": sorted({w for m in metas for w in m["warnings"]}),
        "complete": all(m["complete"] for m in metas),
        "whole": all(m["whole"] for m in metas),
        "held_from_ms": max(m["held_from_ms"] for m in metas),
    }


def _groups(source: Source, config: Config, start: int) -> int:
    """Into how many groups of nodes a day is cut, so that no reading holds more than `NODES_AT_ONCE` nodes."""
    most = 1
    for profile in exporters.configured(config):
        mapped = profile.device_memory.labels if profile.device_memory else profile.process_labels
        metric = exporters.metric_names(profile)[-1 if profile.process_memory and not profile.device_memory else 0]
        names = list(mapped.node) if mapped else []
        day = start - start % DAY
        most = max(most, len(source.windows(metric, day, day + DAY, DAY, by=names, values=False).labels))
    return -(-most // NODES_AT_ONCE)


def fingerprint(config: Config, cluster: ClusterConfig) -> str:
    """A digest of all in the configuration that decides what a partition holds; another one is collected anew."""
    profiles = [p.model_dump(mode="json") for p in exporters.configured(config)]
    asks = {
        "profiles": profiles,
        "labels": sorted(wanted_labels(config)),
        "window": config.window,
        "max_gap": config.max_gap,
        "scrape_interval": config.scrape_interval,
        "system_pods": config.system_pods,
        "replica_label": cluster.source.replica_label,
        "cluster_label": cluster.source.cluster_label,
    }
    return hashlib.sha256(json.dumps(asks, sort_keys=True).encode()).hexdigest()[:16]


def _has(store: Store, cluster: str, day: int, asks: str, share: NodeShare) -> bool:
    """Whether a day is complete in the store, or the share's part of it is."""
    meta = store.meta(cluster, day) or (store.share_meta(cluster, day, share) if share.of > 1 else None)
    return bool(meta and meta["complete"] and meta["asks"] == asks)


def _would_lose(store: Store, cluster: str, day: int, oldest: int | None, max_gap: int) -> bool:
    """Whether what is in the store begins before what the source still holds: evidence is never replaced by less."""
    meta = store.meta(cluster, day)
    if meta is None:
        return False
    held = oldest if oldest is not None else day + DAY
    return bool(max(held, day) > max(meta["held_from_ms"], day) + max_gap)


def _check_retention(job: Job, cluster: ClusterConfig, period: Period, oldest: int | None, names: set[str]) -> None:
    """Q2: a period that begins before the `oldest` sample held (ms), uncollected, is not billed without a word."""
    config = job.config
    since = _since(cluster, config)
    lost = []
    for day in period.days():
        begins = max(day, period.start, since)
        meta = job.store.meta(cluster.name, day)
        held = meta["held_from_ms"] if meta else oldest
        if begins < day + DAY and (held is None or begins < held - config.max_gap) and day < job.now:
            lost.append(begins)
    if not lost:
        return
    if oldest is None:
        raise DataError(
            f"cluster {cluster.name}: the source holds no sample of any metric that is read",
            "check the address, the tenant and that an exporter is scraped; asked for "
            f"{', '.join(sorted(names)[:6])} and others",
        )
    start = -(-oldest // config.window) * config.window
    hint = "a nightly `chargeback collect` keeps data for good; set `since` if the cluster is that new"
    if start < period.end:
        hint = f"--period {iso(start)}/{iso(period.end)} works; {hint}"
    raise DataError(
        f"cluster {cluster.name}: no evidence of {iso(lost[0])} was kept, and data exists only from {iso(oldest)} on: "
        "this is the oldest sample that the source holds",
        hint,
    )


def _since(cluster: ClusterConfig, config: Config) -> int:
    """From when on the cluster existed, in ms; a bare date leaves open when on that day."""
    since = cluster.since or config.since
    if since is None:
        return 0
    return to_ms(since, zone_of(config.timezone)) + (0 if isinstance(since, datetime) else DAY)


def incomplete(job: Job, cluster: str, period: Period) -> list[str]:
    """Q1: why evidence of the period, or of the `max_gap` around it, is not whole."""
    gap = job.config.max_gap
    reasons = []
    for day in period.days(gap, gap):
        meta = job.store.meta(cluster, day)
        inside = day < period.end and day + DAY > period.start
        if meta is None:
            if inside and day < job.now:
                reasons.append(f"{cluster}: {utc_day(day)} was not collected")
        elif not meta["whole"]:
            reasons.append(
                f"{cluster}: {utc_day(day)} was collected with warnings: {'; '.join(meta['warnings'])[:200]}"
            )
        elif not meta["complete"] and meta["asked"][1] < iso(min(day + DAY, period.end + gap)):
            reasons.append(f"{cluster}: {utc_day(day)} was collected before it was over")
    return reasons
