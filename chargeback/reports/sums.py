"""Tables of the pages: group-bys over a report's lines and detail, whose figures add up as they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from chargeback.errors import NotReconciled
from chargeback.money import largest_remainder
from chargeback.reports.figures import GIB_DIGITS, HOUR_DIGITS, nano, shares, spread
from chargeback.schemas import MONEY

REPORT_ONLY = ("shared", "pool", "surcharge", "adjustment")
"""Kinds that no node was charged for: they come into being in the report."""
_PARTS = ("used", "idle")
_FIGURES = ("gpu_hours", "gib_hours", "amount", *_PARTS)
ZERO = Decimal(0)


@dataclass(frozen=True)
class Row:
    """One row of a table. `key` says what it is of; `used` and `idle` are the parts of `amount` of these kinds."""

    key: dict[str, str] = field(default_factory=dict)
    gpu_hours: Decimal = ZERO
    gib_hours: Decimal = ZERO
    amount: Decimal = ZERO
    used: Decimal = ZERO
    idle: Decimal = ZERO
    share: Decimal | None = None
    nodes: int = 0

    @property
    def other(self) -> Decimal:
        return self.amount - self.used - self.idle


@dataclass(frozen=True)
class Table:
    """Rows and their sum."""

    rows: list[Row]
    total: Row


def settled(lines: pa.Table) -> pa.Table:
    """One team's lines with `gpu_hours` and `gib_hours` rounded so that they add up, and `amount` split by kind."""
    columns = {n: lines[n] for n in lines.column_names if n not in ("gpu_hours", "memory_gib_hours")}
    for new, old, digits in (("gpu_hours", "gpu_hours", HOUR_DIGITS), ("gib_hours", "memory_gib_hours", GIB_DIGITS)):
        columns[new] = pa.array(spread([v or 0.0 for v in lines[old].to_pylist()], digits), MONEY)
    for kind in _PARTS:
        columns[kind] = pc.if_else(pc.equal(lines["kind"], kind), lines["amount"], pa.scalar(ZERO, MONEY))
    return pa.table(columns)


def tabled(lines: pa.Table, keys: Sequence[str]) -> Table:
    """Sums of settled lines by `keys`, dearest first; with shares that add up."""
    groups = lines.group_by(list(keys), use_threads=False).aggregate([(n, "sum") for n in _FIGURES]).to_pylist()
    rows = [replace(_row([g[f"{n}_sum"] for n in _FIGURES]), key={k: g[k] for k in keys}) for g in groups]
    return shared_out(sorted(rows, key=lambda r: (-r.amount, *(r.key[k] for k in keys))))


def shared_out(rows: Sequence[Row]) -> Table:
    """The rows with their shares of the whole, and their sum."""
    with_share = [replace(r, share=s) for r, s in zip(rows, shares([r.amount for r in rows]), strict=True)]
    return Table(
        with_share, replace(summed(rows), share=Decimal(100) if any(r.share is not None for r in with_share) else None)
    )


def summed(rows: Sequence[Row]) -> Row:
    """One row with the sums of all figures."""
    return _row([sum((getattr(r, n) for r in rows), ZERO) for n in _FIGURES])


def _row(figures: Sequence[Decimal]) -> Row:
    gpu_hours, gib_hours, amount, used, idle = figures
    return Row({}, gpu_hours, gib_hours, amount, used, idle)


def top(table: Table, most: int) -> tuple[Table, Row | None]:
    """The first rows, and the rest as one row where more than one is left over."""
    if len(table.rows) <= most + 1:
        return table, None
    rest = table.rows[most:]
    share = sum((r.share for r in rest if r.share is not None), ZERO) if table.total.share is not None else None
    return Table(table.rows[:most], table.total), replace(summed(rest), share=share, nodes=len(rest))


def placed(detail: pa.Table, lines: pa.Table, keys: Sequence[str], digits: int) -> Table:
    """Amounts by where and at which price, from `detail`, rounded to add up to what the settled `lines` say.

    What no node was charged for comes behind as one row a kind. Raises `NotReconciled` where detail and lines do
    not tell of the same money.
    """
    kinds = tabled(lines, ["kind"]).rows
    others = [
        Row({**dict.fromkeys(keys, ""), "kind": r.key["kind"]}, r.gpu_hours, r.gib_hours, r.amount)
        for r in kinds
        if r.key["kind"] in REPORT_ONLY
    ]
    amount = sum((r.amount for r in kinds if r.key["kind"] not in REPORT_ONLY), ZERO)
    hours = sum((r.gpu_hours for r in kinds if r.key["kind"] not in REPORT_ONLY), ZERO)
    detail = detail.filter(pc.invert(pc.is_in(detail["kind"], pa.array(REPORT_ONLY))))
    groups = (
        detail.group_by(list(keys), use_threads=False)
        .aggregate([("cost", "sum"), ("gpu_hours", "sum"), ("node", "count_distinct")])
        .to_pylist()
    )
    groups.sort(key=lambda g: (-g["cost_sum"], *(g[k] for k in keys)))
    costs = [nano(g["cost_sum"]) for g in groups]
    allowed = (lines.num_rows + 1) * 10 ** (9 - digits)  # R2: each line is within one minor unit of its exact amount
    if abs(sum(costs) - nano(amount)) > allowed:
        raise NotReconciled(
            f"invoice lines say {amount}, the charges behind them {Decimal(sum(costs)).scaleb(-9)}", "this is a bug"
        )
    if abs(sum(g["gpu_hours_sum"] or 0.0 for g in groups) - float(hours)) > (lines.num_rows + 1) * 10.0**-HOUR_DIGITS:
        raise NotReconciled(f"invoice lines say {hours} GPU-hours, the charges behind them do not", "this is a bug")
    amounts = largest_remainder(amount, costs, range(len(costs)), digits)
    gpu_hours = spread([g["gpu_hours_sum"] or 0.0 for g in groups], HOUR_DIGITS, hours)
    rows = [
        Row({**{k: g[k] for k in keys}, "kind": ""}, gpu_hours=h, amount=a, nodes=g["node_count_distinct"])
        for g, a, h in zip(groups, amounts, gpu_hours, strict=True)
    ]
    nodes = detail.group_by(["cluster", "node"]).aggregate([]).num_rows
    table = shared_out([*rows, *others])
    return Table(table.rows, replace(table.total, nodes=nodes))


def estimated(detail: pa.Table) -> tuple[Decimal, float | None]:
    """The money in `detail` that rests on estimates, exact, and its ratio to all; None where all is nothing."""
    guessed, cost = (pc.sum(detail[n]).as_py() or ZERO for n in ("estimated_cost", "cost"))
    return guessed, float(guessed / cost) if cost > 0 else None
