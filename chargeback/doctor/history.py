"""What was collected and reported so far, and what is lost."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from chargeback.collecting import SETTLE, fingerprint
from chargeback.config import ClusterConfig
from chargeback.doctor.findings import History, Notes, counted
from chargeback.doctor.look import ranges
from chargeback.errors import DataError
from chargeback.job import Job
from chargeback.period import DAY, Period, iso, to_ms, utc_day, zone_of

_NEVER = 2**62
Meta = dict[str, Any]


def history(job: Job, cluster: ClusterConfig, period: Period, oldest: int | None, notes: Notes) -> History:
    """Days and months up to now, from `since` or the first collected day; and whether the period's can be had."""
    config = job.config
    since = cluster.since or config.since
    begins = to_ms(since, zone_of(config.timezone)) if since else None
    collected = _collected(job, cluster.name)
    start = begins if begins is not None else min(collected, default=None)
    metas = _metas(job, cluster.name, period, notes)
    today = job.now // DAY * DAY
    never = [d for d in range(start // DAY * DAY, today, DAY) if d not in collected] if start is not None else []
    lost = [d for d in never if oldest is not None and d + DAY <= oldest - config.max_gap]
    _tell_days(never, lost, oldest, notes)
    _tell_partitions(job, cluster, metas, oldest, notes)
    bare = since is not None and not isinstance(since, datetime)  # leaves open when on that day
    _check_retention(job, period, metas, (begins or 0) + (DAY if bare else 0), oldest, notes)
    return History(
        iso(start) if start is not None else None, len(collected), len(period.days()), len(metas),
        ranges(never), ranges(lost), *_months(job, period, start, notes),
    )  # fmt: skip


def _collected(job: Job, cluster: str) -> set[int]:
    """Days of the store that have a partition."""
    out = set()
    folder = job.store.usage(cluster, 0).parent
    try:
        names = [p.name.removeprefix("date=") for p in folder.glob("date=*")]
    except OSError:
        return set()
    for name in names:
        try:
            out.add(to_ms(date.fromisoformat(name), UTC))
        except ValueError:
            continue
    return out


def _metas(job: Job, cluster: str, period: Period, notes: Notes) -> dict[int, Meta]:
    """What is known of the days of the period that are collected; one that cannot be read stops a report."""
    out = {}
    for day in period.days():
        try:
            meta = job.store.meta(cluster, day)
        except DataError as e:
            notes.block("unreadable", e.message, e.hint)
            continue
        if meta is not None:
            out[day] = meta
    return out


def _tell_days(never: list[int], lost: list[int], oldest: int | None, notes: Notes) -> None:
    if lost:
        notes.warn("not-collected", f"{counted(len(lost), 'day')} lost for good: {', '.join(ranges(lost)[:6])}")
    rest = sorted(set(never) - set(lost))
    if rest:
        held = f", which the server holds from {iso(oldest)} on" if oldest is not None else ""
        span = f"{utc_day(rest[0])}T00:00Z/{utc_day(rest[-1] + DAY)}T00:00Z"
        notes.warn(
            "not-collected", f"{counted(len(rest), 'day')} never collected{held}: {', '.join(ranges(rest)[:6])}",
            f"chargeback collect --period {span}, and then every night",
        )  # fmt: skip


def _tell_partitions(
    job: Job, cluster: ClusterConfig, metas: dict[int, Meta], oldest: int | None, notes: Notes
) -> None:
    """Days that were collected otherwise than they would be now, or not whole; most are collected again."""
    config = job.config
    asks = fingerprint(config, cluster)
    held = _NEVER if oldest is None else oldest
    again = {d for d, m in metas.items() if held <= max(d, m.get("held_from_ms", d)) + config.max_gap}
    other = {d for d, m in metas.items() if m.get("window_ms") != config.window} - again
    if other:
        notes.block(
            "other-window", f"{', '.join(ranges(other))} was collected with another window, and the source no longer "
            "holds it", "set `window` back, or use another store",
        )  # fmt: skip
    changed = {d for d, m in metas.items() if m.get("asks") != asks} - again - other
    if changed:
        notes.warn(
            "other-configuration", f"{', '.join(ranges(changed))} was collected with another configuration, and the "
            "source no longer holds it: what was collected is billed",
        )  # fmt: skip
    partial = {d for d, m in metas.items() if m.get("warnings")}
    if partial:
        text = "; ".join(sorted({w for d in partial for w in metas[d]["warnings"]}))[:200]
        notes.warn("partial-data", f"{', '.join(ranges(partial))} was collected with warnings: {text}")
    over = {d for d in metas if d + DAY + config.max_gap + SETTLE <= job.now}
    early = {d for d in over if not metas[d].get("complete")} - partial
    if early:
        cure = "the next `chargeback collect` adds it" if early <= again else ""
        notes.warn("not-collected", f"{', '.join(ranges(early))} was collected before it was over", cure)


def _check_retention(
    job: Job, period: Period, metas: dict[int, Meta], since: int, oldest: int | None, notes: Notes
) -> None:
    """Q2: whether what the period lacks in the store is still held by the source."""
    config = job.config
    begins = max(period.start, since)
    days = [d for d in period.days() if d < job.now and d + DAY > begins]
    lacking = [d for d in days if d not in metas]
    if lacking and oldest is None:
        notes.block(
            "no-samples", f"the source holds no sample of any metric that is read; {counted(len(lacking), 'day')} "
            "of the period not collected",
            "check address, tenant and cluster_label, and that an exporter is scraped",
        )  # fmt: skip
        return
    known = {d: m.get("held_from_ms", d) for d, m in metas.items()}
    held = {d: min(_NEVER if oldest is None else oldest, known.get(d, _NEVER)) for d in days}
    gone = [d for d in days if max(d, begins) < held[d] - config.max_gap]
    if gone:
        first = min(held.values())
        start = -(-first // config.window) * config.window
        works = f"--period {iso(start)}/{iso(period.end)} works; " if start < period.end else ""
        notes.block(
            "retention-too-short",
            f"the period begins {iso(begins)}, but data exists only from {iso(first)} on: "
            f"{counted(len(gone), 'day')} of it can no longer be had, or only in part ({', '.join(ranges(gone)[:4])})",
            f"{works}collect nightly to keep data for good, or set `since` if the cluster is that new",
        )


def _months(
    job: Job, period: Period, start: int | None, notes: Notes
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Months that are over, from the first day on: reported, as draft only, and never."""
    if start is None:
        return (), (), ()
    zone = zone_of(job.config.timezone)
    month = datetime.fromtimestamp(start // 1000, zone).date().replace(day=1)
    final: list[str] = []
    draft: list[str] = []
    never: list[str] = []
    folder = job.store.root / "reports"
    while to_ms(after := (month + timedelta(days=32)).replace(day=1), zone) <= job.now:
        name = month.strftime("%Y-%m")
        kept = final if (folder / name / "manifest.json").is_file() else never
        kept = draft if kept is never and (folder / f"{name}-draft" / "manifest.json").is_file() else kept
        kept.append(name)
        month = after
    late = [m for m in (*draft, *never) if m != period.name]
    if late:
        notes.warn(
            "not-reported", f"{counted(len(late), 'month')} without a final report: {', '.join(late[:6])}",
            f"chargeback run --period {late[0]}",
        )  # fmt: skip
    return tuple(final), tuple(draft), tuple(never)
