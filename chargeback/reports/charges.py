"""Charges by hour, with teams and exact money: the day's result as `ALLOCATIONS`, and its sums for the report."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chargeback import schemas
from chargeback.money import Ints, divide
from chargeback.ownership import WHOLE, Owner
from chargeback.tables import starts_of

ORDER = (
    "start", "node", "gpu_uuid", "gpu_instance_id", "kind", "team", "namespace", "pod", "pod_uid", "estimated",
    "price", "gpu_model", "mig_profile", "instance_type", "region", "purchase_option",
)  # fmt: skip


def decimals(nano: Ints) -> pa.Array:
    """Nano-units as decimal128(38, 9), without going through text."""
    words = np.empty((nano.size, 2), np.int64)
    words[:, 0], words[:, 1] = nano, nano >> 63
    return pa.Array.from_buffers(schemas.MONEY, nano.size, [None, pa.py_buffer(words.tobytes())])


def nanos(column: pa.ChunkedArray | pa.Array) -> list[int]:
    """decimal128(38, 9) as whole nano-units."""
    return [int(v.scaleb(9)) for v in column.to_pylist()]


def allocations(
    rows: pa.Table, owners: Sequence[Owner], cluster: str, currency: str, dimensions: Sequence[str]
) -> pa.Table:
    """Rows of `day.DayRun` with their owners' teams: a row that several share is divided exactly (T2)."""
    schema = allocation_schema(dimensions)
    if not rows.num_rows:
        return schema.empty_table()
    teams = sorted({team for o in owners for team, _ in o.parts})
    place = {t: i for i, t in enumerate(teams)}
    count = np.array([len(o.parts) for o in owners])
    first = np.cumsum(count) - count
    flat_team = np.array([place[t] for o in owners for t, _ in o.parts])
    flat_part = np.array([p for o in owners for _, p in o.parts], np.int64)
    owner = rows["owner"].to_numpy()
    which = np.repeat(np.arange(owner.size), count[owner])
    starts = starts_of(which)
    part = np.arange(which.size) - np.repeat(starts, count[owner]) + np.repeat(first[owner], count[owner])
    cost, _ = divide(rows["nano"].to_numpy(), flat_part[part], starts, np.full(starts.size, WHOLE))
    fraction = flat_part[part] / WHOLE
    taken = rows.take(pa.array(which))
    columns = {name: taken[name] for name in taken.column_names if name in schema.names}
    columns["cluster"] = pa.array([cluster] * which.size, pa.string())
    columns["team"] = pa.array(teams, pa.string()).take(pa.array(flat_team[part]))
    columns["memory_gib_hours"] = pa.array(taken["memory_gib_hours"].to_numpy() * fraction)
    columns["gpu_hours"] = pa.array(taken["gpu_hours"].to_numpy() * fraction)
    columns["cost"] = decimals(cost)
    columns["currency"] = pa.array([currency] * which.size, pa.string())
    for i, name in enumerate(dimensions):
        values = pa.array([o.dimensions[i] for o in owners], pa.string())
        columns[f"x_{name}"] = values.take(pa.array(owner[which]))
    table = pa.table([columns[n].cast(schema.field(n).type) for n in schema.names], schema=schema)
    return table.sort_by([(n, "ascending") for n in ORDER])


def allocation_schema(dimensions: Sequence[str]) -> pa.Schema:
    """`ALLOCATIONS` with one `x_` column a dimension."""
    return pa.schema([*schemas.ALLOCATIONS, *(pa.field(f"x_{d}", pa.string()) for d in dimensions)])


def summed(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Sums of gpu_hours, memory_gib_hours, cost and estimated_cost by some columns."""
    if "estimated_cost" not in table.column_names:
        zero = pa.scalar(0, schemas.MONEY)
        table = table.append_column("estimated_cost", pc.if_else(table["estimated"], table["cost"], zero))
    values = ("gpu_hours", "memory_gib_hours", "cost", "estimated_cost")
    grouped = table.group_by(list(by), use_threads=False).aggregate([(v, "sum") for v in values])
    grouped = grouped.select([*by, *(f"{v}_sum" for v in values)]).rename_columns([*by, *values])
    for name in ("cost", "estimated_cost"):
        grouped = grouped.set_column(grouped.column_names.index(name), name, grouped[name].cast(schemas.MONEY))
    return grouped.sort_by([(b, "ascending") for b in by])
