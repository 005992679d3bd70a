"""The figures of the index page: all teams, the proof, what was not used, the quality of the data."""

from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from chargeback.config import ClusterConfig, Team
from chargeback.errors import NotReconciled
from chargeback.problems import Problem
from chargeback.reports import BookUsed, Report
from chargeback.reports.figures import Figures, PeriodText, period_text
from chargeback.reports.invoice import GPU, PLACE, by_kind
from chargeback.reports.sums import REPORT_ONLY, ZERO, Row, Table, placed, settled, shared_out, tabled
from chargeback.reports.words import KINDS, PROBLEMS, method

MOST_SUBJECTS = 25
_SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True)
class TeamRow:
    """A team in the list of teams. `folder` is its folder under `invoices/`."""

    team: str
    number: str
    folder: str
    details: Team
    sums: Row


@dataclass(frozen=True)
class Proof:
    """From node cost to invoices (R3); amounts exact, `gap` and `left` are zero where all is well."""

    node_cost: Decimal
    charged: Decimal
    extras: list[tuple[str, Decimal]]
    rounding: Decimal
    billed: Decimal
    invoices: Decimal

    @property
    def gap(self) -> Decimal:
        return self.charged - self.node_cost

    @property
    def left(self) -> Decimal:
        return self.billed - self.invoices


@dataclass(frozen=True)
class Finding:
    """All problems of one code."""

    code: str
    severity: str
    meaning: str
    count: int
    problems: list[Problem]
    more: int


@dataclass(frozen=True)
class SourceRow:
    """Where one cluster's samples came from."""

    cluster: str
    kind: str
    place: str


@dataclass(frozen=True)
class Index:
    """The variables of `index.html.j2`, as `page`. Tables add up to `total`; `exact` holds sums of charges by kind."""

    period: PeriodText
    draft: list[str]
    total: Decimal
    teams: list[TeamRow]
    team_total: Row
    kinds: Table
    exact: dict[str, Decimal]
    gpus: Table
    places: Table
    proof: Proof
    observed_share: float
    estimated_share: float
    findings: list[Finding]
    sources: list[SourceRow]
    exporters: list[str]
    method: list[tuple[str, str]]
    books: list[BookUsed]
    version: str

    def kind(self, name: str) -> Row:
        """The sums of one kind; nothing where there is none."""
        return next((r for r in self.kinds.rows if r.key["kind"] == name), Row({"kind": name}))


def index(report: Report, figures: Figures) -> Index:
    """Raises `NotReconciled` where lines, invoices and bill do not add up."""
    lines = _settled_by_team(report)
    teams = _teams(report, lines)
    proof = _proof(report)
    if teams.total.amount != report.billed or proof.left or proof.gap:
        raise NotReconciled(
            f"lines {teams.total.amount}, invoices {proof.invoices}, billed {report.billed}", "this is a bug"
        )
    exporters = report.config.exporters
    return Index(
        period=period_text(report.period, figures),
        draft=report.draft,
        total=report.billed,
        teams=[
            TeamRow(
                r.key["team"], report.invoices[r.key["team"]], report.folders[r.key["team"]], _details(report, r), r
            )
            for r in teams.rows
        ],
        team_total=teams.total,
        kinds=_kinds(report, lines),
        exact=report.kinds,
        gpus=tabled(lines, GPU),
        places=placed(report.detail, lines, PLACE, report.digits),
        proof=proof,
        observed_share=report.observed_share,
        estimated_share=report.estimated_share,
        findings=_findings(report.problems),
        sources=[_source(c) for c in report.config.all_clusters()],
        exporters=[] if exporters == "auto" else [e if isinstance(e, str) else e.name for e in exporters],
        method=method(report.config),
        books=report.books,
        version=report.version,
    )


def _settled_by_team(report: Report) -> pa.Table:
    parts = [settled(report.lines.filter(pc.equal(report.lines["team"], t))) for t in report.teams]
    return pa.concat_tables(parts) if parts else settled(report.lines)


def _teams(report: Report, lines: pa.Table) -> Table:
    """A row a team, those without a line too, dearest first."""
    rows = tabled(lines, ["team"]).rows
    seen = {r.key["team"] for r in rows}
    return shared_out([*rows, *(Row({"team": t}) for t in report.teams if t not in seen)])


def _details(report: Report, row: Row) -> Team:
    return report.config.teams.get(row.key["team"], Team())


def _kinds(report: Report, lines: pa.Table) -> Table:
    """By kind as invoiced; a kind whose charges round to nothing has a row too."""
    rows = by_kind(lines).rows
    seen = {r.key["kind"] for r in rows}
    return shared_out([*rows, *(Row({"kind": k}) for k in KINDS if k in report.kinds and k not in seen)])


def _proof(report: Report) -> Proof:
    extras = [(k, report.kinds[k]) for k in KINDS if k in REPORT_ONLY and report.kinds.get(k)]
    return Proof(
        node_cost=report.node_cost,
        charged=report.charged,
        extras=extras,
        rounding=report.billed - report.charged - sum((v for _, v in extras), ZERO),
        billed=report.billed,
        invoices=sum(report.teams.values(), ZERO),
    )


def _findings(problems: list[Problem]) -> list[Finding]:
    found = []
    for code, members in groupby(sorted(problems), key=lambda p: p.code):
        all_of_it = list(members)
        severity = min((p.severity for p in all_of_it), key=_rank)
        shown = all_of_it[:MOST_SUBJECTS]
        count = sum(p.count for p in all_of_it)
        found.append(Finding(code, severity, PROBLEMS.get(code, ""), count, shown, len(all_of_it) - len(shown)))
    return sorted(found, key=lambda f: (_rank(f.severity), f.code))


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else 1


def _source(cluster: ClusterConfig) -> SourceRow:
    """The source without what is nobody's business: no user, password, query or path on a disk."""
    if cluster.source.prometheus is not None:
        url = urlsplit(cluster.source.prometheus.url)
        return SourceRow(cluster.name, "Prometheus", f"{url.netloc.rpartition('@')[2]}{url.path}")
    assert cluster.source.openmetrics is not None
    return SourceRow(cluster.name, "OpenMetrics file", cluster.source.openmetrics.name)
