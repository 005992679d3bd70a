"""The stages in reading order: collect evidence, allocate day by day, write the reports."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from chargeback import exporters, schemas
from chargeback import prices as price_books
from chargeback.allocate import day as allocate_day
from chargeback.allocate.frame import Before, Cluster
from chargeback.allocate.placing import PriceKey
from chargeback.collecting import collect, incomplete, open_source
from chargeback.config import Config
from chargeback.errors import DataError
from chargeback.inventory import MigWeights, NodeHistory, intervals, lives, report_lives
from chargeback.job import Job, prepare
from chargeback.ledger import Store, replace_folder
from chargeback.ownership import Owners, report_alike
from chargeback.period import DAY, HOUR, Period, iso, utc_day
from chargeback.pods import PodHistory, Requests
from chargeback.problems import Problem, Problems
from chargeback.reports import BookUsed, Report
from chargeback.reports.charges import allocations
from chargeback.reports.lines import Sums, build, unowned
from chargeback.reports.publish import publish
from chargeback.tables import times

__all__ = ["Job", "collect", "open_source", "prepare", "report"]

COARSE = 60_000
SMALL_TABLES = (
    "inventory", "at_once", "nodes", "node_labels", "intervals", "pods", "ended", "requests", "labels", "reporting",
)  # fmt: skip


def report(job: Job, period: Period, jobs: int = 1) -> tuple[Report, Path]:
    """Allocates a period from collected evidence and writes its reports; returns the report and its folder.

    Days are allocated in up to `jobs` processes; their number changes nothing in the result.
    """
    config, problems = job.config, Problems()
    sums = Sums(sorted(config.dimensions))
    draft = []
    if period.end > job.now:
        draft.append(f"the period is not over until {iso(period.end)}")
    missing_prices: dict[PriceKey, tuple[int, set[str]]] = {}
    teams: set[str] = set()
    end = min(period.end, -(-job.now // config.window) * config.window)
    for cluster in config.all_clusters():
        draft += incomplete(job, cluster.name, period)
        context, days = _context(job, cluster.name, period, end, problems)
        done = _allocated(_Days(config, job.store, context, period, end), days, jobs)
        for result in job.progress(f"allocating {cluster.name}", done, len(days)):
            for key, (ms, names) in result.missing_prices.items():
                before = missing_prices.get(key, (0, set()))
                missing_prices[key] = (before[0] + ms, before[1] | names)
            job.store.write_charges(cluster.name, result.day, result.charges, period)
            problems.extend(result.problems)
            sums.extend(result.sums)
            teams |= result.teams
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
    inputs = [("configuration", job.origin), *(("price book", o) for o in job.prices.files)]
    replace_folder(folder, lambda new: publish(built, new, inputs, job.store, evidence))
    return built, folder


@dataclass(frozen=True)
class _Days:
    """What allocating a day needs, in a process of its own if need be."""

    config: Config
    store: Store
    context: Cluster
    period: Period
    end: int


@dataclass(frozen=True)
class _DayDone:
    """A day's charges and what remains of it once they are in the store. Only the process that holds the store's lock
    writes.
    """

    day: int
    charges: pa.Table
    sums: Sums
    teams: set[str]
    missing_prices: dict[PriceKey, tuple[int, set[str]]]
    problems: list[Problem]


def _allocated(work: _Days, days: list[int], jobs: int) -> Iterator[_DayDone]:
    """Days allocated, in their order."""
    jobs = min(jobs, len(days) // 2)
    if jobs < 2:
        yield from (_allocate(work, day) for day in days)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_take_work, initargs=(work,)) as pool:
        yield from pool.map(_allocate_mine, days)


_mine: list[_Days] = []
"""The work of this process, given to it once."""


def _take_work(work: _Days) -> None:
    _mine[:] = [work]


def _allocate_mine(day: int) -> _DayDone:
    return _allocate(_mine[0], day)


def _allocate(work: _Days, day: int) -> _DayDone:
    """Allocates a UTC day's windows in the period, from their rows and those before that they may need."""
    context, period, config = work.context, work.period, work.config
    w, gap = config.window, config.max_gap
    first, last = max(day, period.start) // w, -(-min(day + DAY, work.end) // w)
    lead = min(2 * gap // w, first - (period.start - gap) // w)
    low, high = (first - lead) * w, last * w
    tables = {name: work.store.windows(context.name, low, high, name) for name in ("devices", "consumers", "holders")}
    result = allocate_day.run(context, tables, first, last, lead)
    sums = Sums(sorted(config.dimensions))
    charges = allocations(result.charges, context.owners.owners, context.name, config.currency, sums.dimensions)
    sums.add(charges, config.timezone)
    sums.node_cost, sums.carried = result.node_cost, result.carried
    teams = set(charges["team"].unique().to_pylist())
    return _DayDone(day, charges, sums, teams, result.missing_prices, result.problems)


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
        nodes=nodes, lives=found, seen_at_once=_seen_at_once(small["at_once"]), intervals=every,
        device_rank=device_rank, process_rank=process_rank, names_pods={n: n in mapped for n in names},
        pod_row_exporters={p.name for p in exporters.configured(config) if p.device_memory and not p.process_memory},
        only_processes=set(devices) - at_device_level, before=_before(store, cluster, days, found, period, gap, w),
        pods=PodHistory(small, w, first, last + 1), requests=Requests.read(small["requests"], w),
        owners=Owners(small["labels"], config, w),
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


def _seen_at_once(table: pa.Table) -> dict[str, int]:
    """C5: by node how many GPUs it was seen with at once."""
    most: dict[str, int] = {}
    for node, gpus in zip(table["node"].to_pylist(), table["gpus"].to_pylist(), strict=True):
        most[node] = max(gpus, most.get(node, 1))
    return most


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
