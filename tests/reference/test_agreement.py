"""The program and the reference model, written apart from each other, agree on every team and kind."""

import csv
from decimal import Decimal
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from chargeback import config, pipeline
from chargeback.period import parse_period
from tests.reference.clusters import cluster

NOW = 1_796_000_000_000
NEAR = Decimal("0.000002")


def charged(folder: Path) -> dict[tuple[str, str], tuple[Decimal, Decimal]]:
    """Cost, and the estimated part of it, by (team, kind), of a case's folder."""
    settings, origin = config.load(folder / "chargeback.yaml", folder / "store")
    job = pipeline.prepare(settings, origin, folder, NOW)
    period = parse_period((folder / "period").read_text().strip(), settings.timezone, settings.window, NOW)
    pipeline.collect(job, period)
    made, _ = pipeline.report(job, period)
    table = ds.dataset(folder / "store" / "allocations", format="parquet").to_table(
        ["team", "kind", "cost", "estimated"]
    )
    sums = {("*", "node_cost"): (made.node_cost, Decimal(0))}
    for row in table.to_pylist():
        whole, guess = sums.get((row["team"], row["kind"]), (Decimal(0), Decimal(0)))
        cost = row["cost"]
        sums[row["team"], row["kind"]] = whole + cost, guess + (cost if row["estimated"] else Decimal(0))
    return sums


def agrees(seed: int, folder: Path) -> None:
    for name, content in cluster(seed).items():
        (folder / name).write_bytes(content)
    with (folder / "expected.csv").open(newline="") as f:
        want = {(r["team"], r["kind"]): (Decimal(r["cost"]), Decimal(r["estimated"])) for r in csv.DictReader(f)}
    got = charged(folder)
    zero = (Decimal(0), Decimal(0))
    wrong = {
        key: (got.get(key, zero), want.get(key, zero))
        for key in sorted(got.keys() | want.keys())
        if any(abs(a - b) > NEAR for a, b in zip(got.get(key, zero), want.get(key, zero), strict=True))
    }
    assert not wrong, f"seed {seed}: (program, model) by (team, kind): {wrong}"


@pytest.mark.parametrize("seed", range(12))
def test_a_random_cluster_is_charged_as_the_model_says(seed: int, tmp_path: Path) -> None:
    agrees(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_many_random_clusters_are_charged_as_the_model_says(seed: int, tmp_path: Path) -> None:
    agrees(seed, tmp_path)
