"""Charges of a period -> invoice lines and totals: T3, R2 and R3."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chargeback import __version__, schemas
from chargeback.config import Config
from chargeback.errors import NotReconciled
from chargeback.money import largest_remainder, minor_digits, round_half_even, to_decimal
from chargeback.period import Period, zone_of
from chargeback.problems import Problem, Problems
from chargeback.reports import BookUsed, Report
from chargeback.reports.charges import nanos, summed
from chargeback.reports.folders import team_folders

LINE_KEY = (
    "team", "cluster", "namespace", "workload_kind", "workload", "gpu_model", "mig_profile", "purchase_option", "kind",
)  # fmt: skip
DETAIL_KEY = (
    "team", "cluster", "node", "instance_type", "region", "purchase_option", "price", "gpu_model", "mig_profile",
    "sharing", "namespace", "workload_kind", "workload", "kind",
)  # fmt: skip
SHARED_KINDS = ("unallocated", "unpartitioned", "unobserved", "host", "idle", "used")


@dataclass
class Sums:
    """Sums of charges as days come in; bounded by the number of distinct lines, not of hours."""

    dimensions: Sequence[str]
    lines: list[pa.Table] = field(default_factory=list)
    detail: list[pa.Table] = field(default_factory=list)
    daily: list[pa.Table] = field(default_factory=list)
    node_cost: int = 0
    carried: int = 0

    def add(self, charges: pa.Table, timezone: str) -> None:
        """Takes in some hours' charges (`ALLOCATIONS`)."""
        extra = [f"x_{d}" for d in self.dimensions]
        named = pc.not_equal(charges["pod"], "")
        charges = charges.append_column("named", named)
        self.lines.append(summed(charges, [*LINE_KEY, *extra, "named"]))
        self.detail.append(summed(charges, DETAIL_KEY))
        local = _local_dates(charges["start"], timezone)
        self.daily.append(summed(charges.append_column("date", local), ("team", "date", "kind")))

    def extend(self, other: "Sums") -> None:
        """Takes in what was added up elsewhere."""
        self.lines += other.lines
        self.detail += other.detail
        self.daily += other.daily
        self.node_cost += other.node_cost
        self.carried += other.carried

    def merged(self, name: str) -> pa.Table:
        """All that came in, added up."""
        tables = getattr(self, name)
        keys = [
            c for c in tables[0].column_names if c not in ("gpu_hours", "memory_gib_hours", "cost", "estimated_cost")
        ]
        return summed(pa.concat_tables(tables), keys)


def _local_dates(start: pa.ChunkedArray, timezone: str) -> pa.Array:
    """The local date of each hour; few distinct ones, so each is worked out once."""
    encoded = start.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    zone = zone_of(timezone)
    days = pa.array([t.astimezone(zone).date() for t in encoded.dictionary.to_pylist()], pa.date32())
    return days.take(encoded.indices)


def build(
    config: Config, period: Period, sums: Sums, problems: Problems, books: list[BookUsed], draft: list[str]
) -> Report:
    """The report of a period. Raises `NotReconciled` where charges, node cost and invoices do not add up (R3)."""
    digits = minor_digits(config.currency)
    table = _shared(sums.merged("lines"), config)
    keys = [*LINE_KEY, *(f"x_{d}" for d in sums.dimensions)]
    table = summed(table.drop_columns(["named"]), keys)
    exact = nanos(table["cost"])
    charged = sum(exact)
    if charged != sums.node_cost:
        raise NotReconciled(
            f"charges {to_decimal(charged)} and node cost {to_decimal(sums.node_cost)} differ",
            "nothing was published; please report this with the configuration",
        )
    billed = round_half_even(charged, digits)
    team_of = table["team"].to_pylist()
    by_team: dict[str, list[int]] = {}
    for i, team in enumerate(team_of):
        by_team.setdefault(team, []).append(i)
    names = sorted(by_team)
    totals = largest_remainder(billed, [sum(exact[i] for i in by_team[t]) for t in names], names, digits)
    amounts = [Decimal(0)] * len(exact)
    line_names = list(zip(*(table[k].to_pylist() for k in keys), strict=True))
    for team, total in zip(names, totals, strict=True):
        rows = by_team[team]
        parts = largest_remainder(total, [exact[i] for i in rows], [line_names[i] for i in rows], digits)
        for i, amount in zip(rows, parts, strict=True):
            amounts[i] = amount
    teams = dict(zip(names, totals, strict=True))
    if sum(teams.values()) != billed or sum(amounts) != billed:
        raise NotReconciled(f"invoices add up to {sum(teams.values())}, not to {billed}", "nothing was published")
    folders = team_folders(names)
    mark = "-draft" if draft else "-r0"
    invoices = {t: f"CB-{period.name}-{folders[t]}{mark}" for t in names}
    kinds: dict[str, int] = {}
    for kind, cost in zip(table["kind"].to_pylist(), exact, strict=True):
        kinds[kind] = kinds.get(kind, 0) + cost
    estimated = sum(nanos(table["estimated_cost"]))
    unseen = kinds.get("unobserved", 0) + sums.carried
    return Report(
        config=config, period=period, version=__version__,
        lines=_lines(table, keys, amounts, invoices, config, period),
        detail=sums.merged("detail").select(schemas.DETAIL.names).cast(schemas.DETAIL),
        daily=sums.merged("daily").select(schemas.DAILY.names).cast(schemas.DAILY),
        teams=teams, invoices=invoices, folders=folders,
        node_cost=to_decimal(sums.node_cost), charged=to_decimal(charged), billed=billed,
        kinds={k: to_decimal(v) for k, v in sorted(kinds.items())},
        observed_share=_share(sums.node_cost - unseen, sums.node_cost, 1.0),
        estimated_share=_share(estimated, sums.node_cost, 0.0),
        problems=problems.sorted(), books=books, draft=draft, digits=digits,
    )  # fmt: skip


def _share(part: int, whole: int, empty: float) -> float:
    return round(part / whole, 6) if whole else empty


def _lines(
    table: pa.Table, keys: list[str], amounts: list[Decimal], invoices: dict[str, str], config: Config, period: Period,
) -> pa.Table:  # fmt: skip
    n = table.num_rows
    names = table["team"].to_pylist()
    cost = [abs(v) for v in nanos(table["cost"])]
    guessed = [abs(v) for v in nanos(table["estimated_cost"])]
    columns = {k: table[k] for k in keys} | {
        "invoice": pa.array([invoices[t] for t in names], pa.string()),
        "period_start": pa.array([period.start] * n).cast(pa.timestamp("ms")).cast(schemas.TIME),
        "period_end": pa.array([period.end] * n).cast(pa.timestamp("ms")).cast(schemas.TIME),
        "cost_center": pa.array([config.teams[t].cost_center if t in config.teams else "" for t in names], pa.string()),
        "gpu_hours": table["gpu_hours"],
        "memory_gib_hours": table["memory_gib_hours"],
        "amount": pa.array(amounts, schemas.MONEY),
        "currency": pa.array([config.currency] * n, pa.string()),
        "estimated_share": pa.array(np.array([_share(g, c, 0.0) for g, c in zip(guessed, cost, strict=True)])),
    }
    extra = [k for k in keys if k.startswith("x_")]
    schema = pa.schema([*schemas.LINES, *(pa.field(k, pa.string()) for k in extra)])
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _shared(table: pa.Table, config: Config) -> pa.Table:
    """T3: hands what nobody used on to the other teams, with the counter-entry at the platform team."""
    if config.allocation.shared == "platform":
        return table
    platform = config.ownership.platform
    cost = nanos(table["cost"])
    rows = zip(table["team"].to_pylist(), table["kind"].to_pylist(), table["named"].to_pylist(), cost, strict=True)
    whole = 0
    paid: dict[str, int] = {}
    for team, kind, named, amount in rows:
        if team == platform and not named and kind in SHARED_KINDS:
            whole += amount
        elif team != platform:
            paid[team] = paid.get(team, 0) + amount
    paid = {t: v for t, v in sorted(paid.items()) if v > 0}
    if not whole or not paid:
        return table
    weights = paid if config.allocation.shared == "proportional" else dict.fromkeys(paid, 1)
    total, upto, before = sum(weights.values()), 0, 0
    parts = {platform: -whole}
    for team, weight in weights.items():
        upto += weight
        now = whole * upto // total
        parts[team] = now - before
        before = now
    text = [c for c in table.column_names if pa.types.is_string(table.schema.field(c).type)]
    columns: dict[str, list[object]] = {c: [""] * len(parts) for c in text}
    columns |= {"team": list(parts), "kind": ["shared"] * len(parts)}
    columns |= {"cost": [to_decimal(v) for v in parts.values()], "named": [False] * len(parts)}
    columns |= {"gpu_hours": [0.0] * len(parts), "memory_gib_hours": [0.0] * len(parts)}
    columns["estimated_cost"] = [Decimal(0)] * len(parts)
    return pa.concat_tables([table, pa.table([columns[c] for c in table.column_names], schema=table.schema)])


def unowned(detail: pa.Table, config: Config) -> list[Problem]:
    """One finding for each namespace whose pods have no team."""
    default = config.ownership.default
    rows = detail.filter(pc.and_(pc.equal(detail["team"], default), pc.not_equal(detail["namespace"], "")))
    if not rows.num_rows:
        return []
    by = summed(rows, ("cluster", "namespace"))
    return [
        Problem(
            "unowned", f"{cluster}/{namespace}", "warning", 1,
            f"pods without a team cost {to_decimal(cost):.2f} {config.currency}; label the namespace or the pods "
            f"with {config.ownership.team_label}, or write a rule",
        )
        for cluster, namespace, cost in zip(
            by["cluster"].to_pylist(), by["namespace"].to_pylist(), nanos(by["cost"]), strict=True
        )
    ]  # fmt: skip
