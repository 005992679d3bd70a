"""The stages in reading order: collect evidence, allocate day by day, write the reports."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from chargeback import __version__, exporters, schemas
from chargeback import prices as price_books
from chargeback.allocate import day as allocate_day
from chargeback.allocate.frame import Before, Cluster
from chargeback.config import ClusterConfig, Config
from chargeback.documents import Origin
from chargeback.errors import DataError
from chargeback.evidence.collect import collect as collect_partition
from chargeback.evidence.kube import METRICS as KUBE_METRICS
from chargeback.inventory import MigWeights, NodeHistory, intervals, lives, report_lives
from chargeback.ledger import Store, replace_folder
from chargeback.ownership import Owners, report_alike
from chargeback.period import DAY, HOUR, Period, iso, to_ms, utc_day, zone_of
from chargeback.pods import PodHistory, Requests
from chargeback.prices import Prices
from chargeback.problems import Problems
from chargeback.reports import BookUsed, Report
from chargeback.reports.charges import allocations
from chargeback.reports.lines import Sums, build, unowned
from chargeback.reports.publish import publish
from chargeback.sources import OneOf, Source
from chargeback.sources.openmetrics import read as read_openmetrics
from chargeback.sources.prometheus import PrometheusSource
from chargeback.tables import times

SETTLE = 15 * 60_000
COARSE = 60_000
SMALL_TABLES = (
    "inventory", "nodes", "node_labels", "intervals", "pods", "ended", "requests", "labels", "reporting",
)  # fmt: skip


class Progress(Protocol):
    """Tells a person how far the work is: `steps` of `what`, one at a time."""

    def __call__(self, what: str, steps: Iterable[Any], total: int) -> Iterable[Any]: ...


def quiet(what: str, steps: Iterable[Any], total: int) -> Iterable[Any]:  # noqa: ARG001 - a `Progress` that says nothing
    """No talk."""
    return steps


@dataclass(frozen=True)
class Job:
    """What a run works on: configuration, where it came from, prices, store, the clock (ms) and whom to tell."""

    config: Config
    origin: Origin
    prices: Prices
    store: Store
    now: int
    progress: Progress = quiet


def open_source(cluster: ClusterConfig, config: Config) -> Source:
    """The source of a cluster, as configured."""
    source: Source
    if cluster.source.openmetrics is not None:
        wanted = {*KUBE_METRICS, "up", *(m for p in exporters.configured(config) for m in exporters.metric_names(p))}
        source = read_openmetrics(cluster.source.openmetrics, wanted=wanted)
    else:
        assert cluster.source.prometheus is not None
        source = PrometheusSource(cluster.source.prometheus)
    label = cluster.source.cluster_label
    return OneOf(source, label, cluster.name) if label else source


def collect(job: Job, period: Period, opened: Callable[[ClusterConfig, Config], Source] = open_source) -> None:
    """Pulls the evidence that the store lacks, one partition a UTC day and cluster."""
    config = job.config
    profiles = exporters.configured(config)
    for cluster in config.all_clusters():
        days = period.days(config.max_gap, config.max_gap)
        days = [d for d in days if d < job.now]
        missing = [d for d in days if not (job.store.meta(cluster.name, d) or {}).get("complete")]
        if not missing:
            continue
        source = opened(cluster, config)
        names = {m for p in profiles for m in exporters.metric_names(p)} | set(KUBE_METRICS)
        oldest = source.oldest(names)
        _check_retention(job, cluster, period, oldest, names)
        for day in job.progress(f"collecting {cluster.name}", missing, len(missing)):
            end = min(day + DAY, -(-job.now // config.window) * config.window)
            before = len(source.warnings())
            found = collect_partition(
                source, config, cluster.source.replica_label, profiles, job.prices.gpu_types(), day, end
            )
            warned = source.warnings()[before:]
            meta = {
                "version": __version__,
                "cluster": cluster.name,
                "window_ms": config.window,
                "asked": [iso(day), iso(end)],
                "source": vars(source.info()),
                "rows": {name: t.num_rows for name, t in found.tables.items()},
                "samples": int(sum(found.tables["devices"]["samples"].to_pylist())),
                "warnings": warned,
                "complete": not warned and day + DAY + config.max_gap + SETTLE <= job.now,
                "whole": not warned,
                "held_from_ms": oldest or day,
            }
            job.store.write_evidence(cluster.name, day, found, meta)


def _check_retention(job: Job, cluster: ClusterConfig, period: Period, oldest: int | None, names: set[str]) -> None:
    """Q2: a period that begins before the `oldest` sample held (ms), uncollected, is not billed without a word."""
    config = job.config
    begins = max(period.start, _since(cluster, config))
    collected = job.store.meta(cluster.name, period.start - period.start % DAY)
    if collected and begins >= collected["held_from_ms"] - config.max_gap:
        return
    if oldest is None:
        raise DataError(
            f"cluster {cluster.name}: the source holds no sample of any metric that is read",
            "check the address, the tenant and that an exporter is scraped; asked for "
            f"{', '.join(sorted(names)[:6])} and others",
        )
    if begins < oldest - config.max_gap:
        start = -(-oldest // config.window) * config.window
        hint = "collect nightly to keep data for good, or set `since` if the cluster is that new"
        if start < period.end:
            hint = f"--period {iso(start)}/{iso(period.end)} works; {hint}"
        raise DataError(
            f"cluster {cluster.name}: the period begins {iso(period.start)}, but the oldest sample is of {iso(oldest)}",
            hint,
        )


def _since(cluster: ClusterConfig, config: Config) -> int:
    """From when on the cluster existed, in ms; a bare date leaves open when on that day."""
    since = cluster.since or config.since
    if since is None:
        return 0
    return to_ms(since, zone_of(config.timezone)) + (0 if isinstance(since, datetime) else DAY)


def report(job: Job, period: Period) -> tuple[Report, Path]:
    """Allocates a period from collected evidence and writes its reports; returns the report and its folder."""
    config, problems = job.config, Problems()
    sums = Sums(sorted(config.dimensions))
    draft = []
    if period.end > job.now:
        draft.append(f"the period is not over until {iso(period.end)}")
    missing_prices: dict[tuple[str, str, str, str], tuple[int, set[str]]] = {}
    inputs = [("configuration", job.origin), *(("price book", o) for o in job.prices.files)]
    teams: set[str] = set()
    end = min(period.end, -(-job.now // config.window) * config.window)
    for cluster in config.all_clusters():
        draft += _incomplete(job, cluster.name, period)
        context, days = _context(job, cluster.name, period, end, problems)
        for day in job.progress(f"allocating {cluster.name}", days, len(days)):
            result = _day(job, context, day, period, end)
            for key, (ms, names) in result.missing_prices.items():
                before = missing_prices.get(key, (0, set()))
                missing_prices[key] = (before[0] + ms, before[1] | names)
            problems.extend(result.problems)
            charges = allocations(result.charges, context.owners.owners, cluster.name, config.currency, sums.dimensions)
            job.store.write_charges(cluster.name, day, charges, period)
            sums.add(charges, config.timezone)
            sums.node_cost += result.node_cost
            sums.carried += result.carried
            teams |= set(charges["team"].unique().to_pylist())
    _check_prices(missing_prices, config, problems)
    if not sums.node_cost and not any(t.num_rows for t in sums.lines):
        raise DataError(
            "no GPU node was alive in the period", "an empty answer is not a bill of zero: check what was collected"
        )
    report_alike(sorted(teams), problems)
    problems.extend(unowned(sums.merged("detail"), config))
    books = [BookUsed(name, book.source, book.as_of.isoformat()) for name, book in job.prices.books]
    built = build(config, period, sums, problems, books, draft)
    folder = job.store.report_folder(period, bool(draft))
    evidence = [(c.name, d) for c in config.all_clusters() for d in period.days(config.max_gap, config.max_gap)]
    replace_folder(folder, lambda new: publish(built, new, inputs, job.store, evidence))
    return built, folder


def _incomplete(job: Job, cluster: str, period: Period) -> list[str]:
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


def _context(job: Job, cluster: str, period: Period, end: int, problems: Problems) -> tuple[Cluster, list[int]]:
    """What the rules need to know of the whole period, from the small tables of its partitions."""
    config, store = job.config, job.store
    w, gap = config.window, config.max_gap
    low, high = period.start - gap, end + gap
    days = period.days(gap, gap)
    problems.extend(store.problems(cluster, days))
    _check_windows(job, cluster, days)
    small = {name: store.table(cluster, days, name) for name in SMALL_TABLES}
    first, last = low // w, -(-high // w)
    if not small["inventory"].num_rows:
        names = sorted({m for p in exporters.configured(config) for m in exporters.metric_names(p)})
        raise DataError(
            f"cluster {cluster}: no exporter reported a GPU from {iso(low)} to {iso(high)}",
            f"an empty answer is not a bill of zero; asked for {', '.join(names[:8])}: check source, tenant and scrape",
        )
    for name in ("pods", "requests", "labels", "ended", "reporting", "node_labels"):
        small[name] = _within(small[name], first * w, last * w)
    nodes = NodeHistory(small["node_labels"], config, w)
    every = intervals(
        small["intervals"], None if config.scrape_interval == "auto" else config.scrape_interval, small["nodes"]
    )
    found = lives(small["nodes"], nodes, every, low, high, gap, w)
    report_lives(found, problems)
    for (family, node), distance in sorted(every.items()):
        if distance > COARSE and family in {p.name for p in exporters.configured(config)}:
            problems.add(
                "coarse-scrape", f"{node} {family}",
                f"scraped every {distance / 1000:g} s; jobs shorter than that leave no trace", severity="info",
            )  # fmt: skip
    inventory = small["inventory"]
    names = sorted(set(inventory["exporter"].to_pylist()))
    device_rank, process_rank = exporters.ranks(config, names)
    mapped = {p.name for p in exporters.configured(config) if p.process_labels and p.process_labels.pod}
    mapped |= {p.name for p in exporters.configured(config) if p.device_memory}
    devices = list(zip(*(inventory[c].to_pylist() for c in ("node", "gpu_uuid", "gpu_instance_id")), strict=True))
    at_device_level = {d for d, rows in zip(devices, inventory["device_rows"].to_pylist(), strict=True) if rows}
    context = Cluster(
        name=cluster, config=config, prices=job.prices,
        mig=MigWeights(price_books.mig_table(), job.prices, config.mig.weight),
        nodes=nodes, lives=found, seen_at_once=_seen_at_once(inventory, w), intervals=every,
        device_rank=device_rank, process_rank=process_rank, names_pods={n: n in mapped for n in names},
        pod_row_exporters={p.name for p in exporters.configured(config) if p.device_memory and not p.process_memory},
        only_processes=set(devices) - at_device_level, before=_before(store, cluster, days, found, period, gap, w),
        pods=PodHistory(small, w, first, last + 1), requests=Requests(small["requests"], w),
        owners=Owners(small["labels"], config, w, problems),
    )  # fmt: skip
    return context, [d for d in period.days() if d < end]


def _within(table: pa.Table, low: int, high: int) -> pa.Table:
    """Stretches that touch `[low, high)`, by their first window, cut to it."""
    first = times(table["first"])
    last = times(table["last"]) if "last" in table.column_names else np.full(first.size, high)
    rows = np.flatnonzero((first < high) & (last >= low))
    cut = table.take(pa.array(rows))
    for name, values in (("first", np.maximum(first[rows], low)), ("last", np.minimum(last[rows], high - 1))):
        if name in cut.column_names and "quantity" not in name:
            i = cut.column_names.index(name)
            column = pa.array(values).cast(pa.timestamp("ms")).cast(schemas.TIME)
            cut = cut.set_column(i, table.schema.field(name), column)
    return cut


def _check_windows(job: Job, cluster: str, days: list[int]) -> None:
    for day in days:
        meta = job.store.meta(cluster, day)
        if meta and meta["window_ms"] != job.config.window:
            raise DataError(
                f"cluster {cluster}: {utc_day(day)} was collected with a window of {meta['window_ms'] // 1000} s",
                "set `window` back, or use another store",
            )


def _seen_at_once(inventory: pa.Table, w: int) -> dict[str, int]:
    """C5: by node how many GPUs it was seen with at once, from first to last report of each in a partition."""
    events: dict[str, list[tuple[int, int]]] = {}
    by_gpu: dict[tuple[str, str, int], tuple[int, int]] = {}
    columns = (inventory["node"].to_pylist(), inventory["gpu_uuid"].to_pylist())
    firsts, lasts = times(inventory["first"]).tolist(), times(inventory["last"]).tolist()
    for node, gpu, first, last in zip(*columns, firsts, lasts, strict=True):
        key = (node, gpu, first // DAY)
        a, b = by_gpu.get(key, (first, last))
        by_gpu[key] = (min(a, first), max(b, last))
    for (node, _, _), (first, last) in by_gpu.items():
        events.setdefault(node, []).extend([(first // w, 1), (last // w, -1)])
    out = {}
    for node, found in events.items():
        now = most = 0
        for _, change in sorted(found):
            now += change
            most = max(most, now)
        out[node] = max(most, 1)
    return out


def _before(
    store: Store,
    cluster: str,
    days: list[int],
    found: dict[str, list[tuple[int, int]]],
    period: Period,
    gap: int,
    w: int,
) -> dict[int, dict[tuple[str, str], Before]]:
    """By first window of each day: each GPU's layout as last reported on the days before (D2)."""
    state: dict[tuple[str, str], Before] = {}
    out = {}
    for day in days:
        start = max(day, period.start) // w
        alive = {
            n: max((a for a, b in spans if a < (start + 1) * w and b > start * w), default=None)
            for n, spans in found.items()
        }
        out[start] = {
            g: b
            for g, b in state.items()
            if alive.get(g[0]) is not None and b.window * w >= alive[g[0]] // w * w  # type: ignore[operator]
        }
        table = store.table(cluster, [day], "inventory")
        table = table.filter(table["device_rows"])
        rows: dict[tuple[str, str], list[tuple[int, str, str, str]]] = {}
        columns = [table[c].to_pylist() for c in ("node", "gpu_uuid", "gpu_instance_id", "gpu_model", "mig_profile")]
        for node, gpu, instance, model, profile, last in zip(*columns, times(table["last"]).tolist(), strict=True):
            if period.start - gap <= last:
                rows.setdefault((node, gpu), []).append((last // w, instance, model, profile))
        for gpu_key, listed in rows.items():
            latest = max(r[0] for r in listed)
            layout = sorted({(i, m, p) for at, i, m, p in listed if at == latest})
            state[gpu_key] = Before(latest, layout)
    return out


def _day(job: Job, context: Cluster, day: int, period: Period, end: int) -> allocate_day.Day:
    """Allocates a UTC day's windows in the period, from their rows and those before that they may need."""
    w, gap = job.config.window, job.config.max_gap
    first, last = max(day, period.start) // w, -(-min(day + DAY, end) // w)
    lead = min(2 * gap // w, first - (period.start - gap) // w)
    low, high = (first - lead) * w, last * w
    days = [d * DAY for d in range(low // DAY, -(-high // DAY))]
    tables = {}
    for name in ("devices", "consumers", "holders"):
        table = job.store.table(context.name, days, name)
        at = times(table["window"])
        keep = (at >= low) & (at < high)
        tables[name] = table if keep.all() else table.filter(pa.array(keep))
    return allocate_day.run(context, tables, first, last, lead)


def _check_prices(
    missing: dict[tuple[str, str, str, str], tuple[int, set[str]]], config: Config, problems: Problems
) -> None:
    """C2: a missing price is never zero, unless that was chosen; then each is flagged."""
    if not missing:
        return
    texts = []
    for (node, kind, region, option), (ms, names) in sorted(missing.items()):
        what = f"node {node} (no instance type)" if node else f"{kind} in {region or 'no region'}, {option}"
        texts.append(f"{what}: {len(names)} node(s), {ms / HOUR:.1f} h")
        problems.add(
            "missing-price", what, "no price is in force; charged as 0 because pricing.missing is zero",
            count=len(names), severity="error",
        )  # fmt: skip
    if config.pricing.missing == "fail":
        first = next(iter(sorted(missing)))
        entry = (
            f"{{node: {first[0]}, "
            if first[0]
            else f"{{instance_type: {first[1]}, region: {first[2]}, purchase_option: {first[3]}, "
        )
        raise DataError(
            f"no price for {'; '.join(texts)}", f'add to a price book under prices: - {entry}per_hour: "..."}}'
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """A report's manifest."""
    return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))


def prepare(config: Config, origin: Origin, folder: Path, now: int, progress: Progress = quiet) -> Job:
    """Everything that a run needs, from a configuration whose paths are from `folder`."""
    prices = price_books.load(config.pricing.books, folder, config.currency, zone_of(config.timezone))
    return Job(config, origin, prices, Store(config.store), now, progress)
