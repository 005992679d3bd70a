"""The figures of one team's invoice page; all that it shows comes from that team's lines and detail."""

from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from chargeback.config import Team
from chargeback.errors import NotReconciled
from chargeback.money import round_half_even
from chargeback.problems import Problem
from chargeback.reports import BookUsed, Report
from chargeback.reports.figures import Figures, PeriodText, nano, period_text
from chargeback.reports.sums import Row, Table, estimated, placed, settled, shared_out, summed, tabled, top
from chargeback.reports.words import KINDS, NO_POD, PROBLEMS, method

MOST_WORKLOADS = 15
MOST_IDLE = 5
UNHELD = ("unallocated", "unpartitioned", "unobserved")
PLACE = ("cluster", "region", "instance_type", "purchase_option", "price")
GPU = ("gpu_model", "mig_profile", "purchase_option")
_WORKLOAD = ("cluster", "namespace", "workload_kind", "workload")


@dataclass(frozen=True)
class Line:
    """One invoice line: what it is for in words, and its figures. `estimated` is a ratio."""

    title: str
    named: bool
    workload_kind: str
    dimensions: list[tuple[str, str]]
    gpu_model: str
    mig_profile: str
    purchase_option: str
    kind: str
    gpu_hours: Decimal
    gib_hours: Decimal
    amount: Decimal
    estimated: float


@dataclass(frozen=True)
class Group:
    """The lines of one namespace and their subtotal."""

    cluster: str
    namespace: str
    lines: list[Line]
    total: Row


@dataclass(frozen=True)
class Invoice:
    """The variables of `invoice.html.j2`, as `page`. Tables add up to `total`; `idle` to what was idle."""

    number: str
    team: str
    details: Team
    period: PeriodText
    draft: list[str]
    total: Decimal
    clusters: int
    kinds: Table
    workloads: Table
    more_workloads: Row | None
    gpus: Table
    places: Table
    idle: Table
    more_idle: Row | None
    groups: list[Group]
    lines: int
    estimated: Decimal
    estimated_share: float | None
    observed_share: float
    problems: list[Problem]
    elsewhere: list[tuple[str, str]]
    method: list[tuple[str, str]]
    books: list[BookUsed]
    version: str

    @property
    def idle_share(self) -> Decimal | None:
        return next((r.share for r in self.kinds.rows if r.key["kind"] == "idle"), Decimal(0))

    @property
    def unheld(self) -> list[Row]:
        """What was paid for and that nobody held, by kind."""
        return [r for r in self.kinds.rows if r.key["kind"] in UNHELD]

    @property
    def named_workloads(self) -> bool:
        return any(r.key["workload"] for r in self.workloads.rows)


def invoice(report: Report, team: str, figures: Figures) -> Invoice:
    """Raises `NotReconciled` where the team's lines do not add up to its total."""
    lines = settled(report.lines.filter(pc.equal(report.lines["team"], team)))
    clusters = len(report.config.all_clusters())
    by_cluster = lines if clusters > 1 else _without_cluster(lines)
    detail = report.detail.filter(pc.equal(report.detail["team"], team))
    total = report.teams[team]
    kinds = by_kind(lines)
    if kinds.total.amount != total:
        raise NotReconciled(
            f"the lines of {team} add up to {kinds.total.amount}, its invoice to {total}", "this is a bug"
        )
    workloads, more_workloads = top(tabled(by_cluster, _WORKLOAD), MOST_WORKLOADS)
    idle, more_idle = top(_idle(by_cluster), MOST_IDLE)
    guessed, guessed_share = estimated(detail)
    return Invoice(
        number=report.invoices[team],
        team=team,
        details=report.config.teams.get(team, Team()),
        period=period_text(report.period, figures),
        draft=report.draft,
        total=total,
        clusters=clusters,
        kinds=kinds,
        workloads=workloads,
        more_workloads=more_workloads,
        gpus=tabled(lines, GPU),
        places=placed(detail, lines, PLACE, report.digits),
        idle=idle,
        more_idle=more_idle,
        groups=_groups(by_cluster),
        lines=lines.num_rows,
        estimated=round_half_even(nano(guessed), report.digits),
        estimated_share=guessed_share,
        observed_share=report.observed_share,
        problems=[p for p in report.problems if p.subject == team],
        elsewhere=[(c, PROBLEMS.get(c, "")) for c in sorted({p.code for p in report.problems if p.subject != team})],
        method=method(report.config),
        books=report.books,
        version=report.version,
    )


def by_kind(lines: pa.Table) -> Table:
    """Settled lines by kind, in the order of `words.KINDS`."""
    order = list(KINDS)
    rows = sorted(tabled(lines, ["kind"]).rows, key=lambda r: order.index(r.key["kind"]))
    return shared_out(rows)


def _without_cluster(lines: pa.Table) -> pa.Table:
    """The only cluster goes without saying, and what has none does not stand apart for it."""
    return lines.set_column(lines.column_names.index("cluster"), "cluster", pa.repeat("", lines.num_rows))


def _idle(lines: pa.Table) -> Table:
    """Workloads with idle cost, the most first; `share` is the part of their whole cost that was idle."""
    rows = [r for r in tabled(lines, _WORKLOAD).rows if r.idle]
    rows.sort(key=lambda r: (-r.idle, *r.key.values()))
    return shared_out(rows)


def _groups(lines: pa.Table) -> list[Group]:
    order = list(KINDS)
    dimensions = [n for n in lines.column_names if n.startswith("x_")]
    rows = lines.to_pylist()
    rows.sort(
        key=lambda r: (
            *(not r["namespace"], r["cluster"], r["namespace"], not r["workload"], r["workload"], r["workload_kind"]),
            *(r["gpu_model"], r["mig_profile"], r["purchase_option"], order.index(r["kind"])),
            *(r[d] or "" for d in dimensions),
        )
    )
    groups = []
    for (cluster, namespace), members in groupby(rows, key=lambda r: (r["cluster"], r["namespace"])):
        found = list(members)
        figures = summed([Row({}, r["gpu_hours"], r["gib_hours"], r["amount"], r["used"], r["idle"]) for r in found])
        groups.append(Group(cluster, namespace, [_line(r, dimensions) for r in found], figures))
    return groups


def _line(row: dict[str, object], dimensions: list[str]) -> Line:
    kind = str(row["kind"])
    workload = str(row["workload"])
    return Line(
        title=workload or NO_POD.get(kind, KINDS[kind][0]),
        named=bool(workload),
        workload_kind=str(row["workload_kind"]),
        dimensions=[(d.removeprefix("x_"), str(row[d])) for d in dimensions if row[d]],
        gpu_model=str(row["gpu_model"]),
        mig_profile=str(row["mig_profile"]),
        purchase_option=str(row["purchase_option"]),
        kind=kind,
        gpu_hours=_decimal(row["gpu_hours"]),
        gib_hours=_decimal(row["gib_hours"]),
        amount=_decimal(row["amount"]),
        estimated=float(str(row["estimated_share"] or 0)),
    )


def _decimal(value: object) -> Decimal:
    assert isinstance(value, Decimal)
    return value
