"""One cluster examined: what is there, what is missing, and whether the period could be billed now."""

from chargeback.config import ClusterConfig
from chargeback.doctor import coverage, heard, memory
from chargeback.doctor.findings import Findings, Notes, Server
from chargeback.doctor.history import history
from chargeback.doctor.look import Look, look, read_metrics
from chargeback.errors import DataError
from chargeback.job import Job
from chargeback.period import DAY, Period, iso
from chargeback.sources import Source


def examine(job: Job, cluster: ClusterConfig, source: Source, period: Period) -> Findings:
    """Looks at an hour of the period and says what can be billed from it. Reads only; raises `SourceUnreachable`."""
    notes = Notes()
    info = source.info()
    seen = look(job, cluster, source, period, notes)
    oldest = _oldest(seen, notes)
    every = heard.heard(seen)
    found, absent = heard.found_exporters(seen, every, notes)
    fleet, missing = coverage.fleet(seen, period, notes)
    _check_there(seen, bool(found), bool(fleet.facts), period, notes)
    for warning in source.warnings():
        notes.warn("partial-data", f"the server warns: {warning}", "a report from such answers is a draft")
    if period.end > job.now:
        notes.warn("draft", f"the period is not over until {iso(period.end)}: what is billed now is a draft")
    shares = [*coverage.node_shares(seen, fleet, notes), *coverage.team_shares(seen, notes)] if found else []
    return Findings(
        cluster=cluster.name,
        period=period.name,
        start=iso(period.start),
        end=iso(period.end),
        server=Server(
            info.kind, info.version, info.address,
            iso(oldest) if oldest is not None else None,
            round(max(0, job.now - oldest) / DAY, 1) if oldest is not None else None,
        ),
        looked=seen.about(),
        scrapes=tuple(heard.scrapes(seen, notes)),
        exporters=tuple(found),
        not_found=tuple(absent),
        memory_by_pod=memory.memory_by_pod(seen, every, notes),
        repeated=tuple(heard.repeated(seen, every, notes)),
        honouring=tuple(heard.honouring(seen, every, notes)),
        shares=tuple(shares),
        missing_prices=tuple(missing),
        gpu_counts=tuple(coverage.gpu_counts(seen, fleet, notes)),
        replicas=heard.replicas(seen, every, notes),
        history=history(job, cluster, period, oldest, notes),
        blocking=tuple(sorted(notes.blocking)),
        warnings=tuple(sorted(notes.warnings)),
        hints=tuple(sorted(notes.hints)),
    )  # fmt: skip


def _oldest(seen: Look, notes: Notes) -> int | None:
    try:
        return seen.source.oldest(read_metrics(seen.profiles))
    except DataError as e:
        notes.block("unreadable", e.message, e.hint)
        return None


def _check_there(seen: Look, exporters: bool, nodes: bool, period: Period, notes: Notes) -> None:
    """Q3: a period without a GPU is an error, not a bill of zero."""
    wanted = sorted(read_metrics(seen.profiles) - read_metrics([]))
    if not exporters:
        what = "no exporter reports a GPU" + (", though nodes with GPUs are there" if nodes else "")
        notes.block(
            "no-gpu", what, f"see that one is scraped, and that address, tenant and cluster_label are right; asked "
            f"for {', '.join(wanted[:4])} and others",
        )  # fmt: skip
    elif not seen.in_period:
        notes.block(
            "no-gpu", f"no GPU sample from {iso(period.start)} to {iso(period.end)}; what is shown is of another time",
            f"choose a period that has data; {iso(seen.start)} has",
        )  # fmt: skip
