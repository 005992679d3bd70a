"""The scenarios under golden/: what a person worked out, what a file gives, and what a real Prometheus gives."""

import csv
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from clusters import Charges, Result, read
from scenarios import GOLDEN, SCENARIOS
from servers import prometheus

from chargeback.cli import main

NAMES = sorted(SCENARIOS)


def billed(config: Path, period: str, store: Path) -> Result:
    """A run of the command line."""
    done = CliRunner().invoke(main, ["run", "-c", str(config), "--period", period, "--output", str(store)])
    assert done.exit_code == 0, done.output
    (report,) = (store / "reports").iterdir()
    return read(store, report)


def period_of(folder: Path) -> str:
    """The scenario's period."""
    return (folder / "period").read_text(encoding="utf-8").strip()


def expected(folder: Path) -> tuple[Decimal, Charges, Charges]:
    """Node cost, charges and the estimated part of them, as expected.csv has them."""
    with (folder / "expected.csv").open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    charges, estimated = (
        {(r["team"], r["kind"]): Decimal(r[c]) for r in rows if Decimal(r[c])} for c in ("cost", "estimated")
    )
    return charges.pop(("*", "node_cost")), charges, estimated


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest) -> Path:
    """A scenario's folder."""
    return GOLDEN / str(request.param)


def test_every_folder_is_a_scenario() -> None:
    assert sorted(p.parent.name for p in GOLDEN.glob("*/expected.csv")) == NAMES


def test_the_samples_are_those_of_the_story(folder: Path) -> None:
    assert (folder / "metrics.om").read_text(encoding="utf-8") == SCENARIOS[folder.name]().text()


def test_the_money_is_what_was_worked_out_by_hand(folder: Path, tmp_path: Path) -> None:
    node_cost, charges, estimated = expected(folder)
    result = billed(folder / "chargeback.yaml", period_of(folder), tmp_path / "store")
    assert sum(charges.values()) == node_cost  # the hand did not slip
    assert result.node_cost == node_cost
    assert result.charges == charges
    assert result.estimated == estimated
    wanted = folder / "problems"
    assert set(wanted.read_text(encoding="utf-8").split() if wanted.exists() else []) <= result.problems
    assert sum(result.invoices.values()) == Decimal(result.manifest["billed"])
    assert not list(folder.glob("store"))


def test_a_prometheus_gives_the_same_charges_row_by_row(folder: Path, tmp_path: Path) -> None:
    from_file = billed(folder / "chargeback.yaml", period_of(folder), tmp_path / "from-file")
    config: dict[str, Any] = yaml.safe_load((folder / "chargeback.yaml").read_text(encoding="utf-8"))
    (tmp_path / "prices.yaml").write_bytes((folder / "prices.yaml").read_bytes())
    with prometheus(folder / "metrics.om") as url:
        config["source"] = {"prometheus": {"url": url}}
        (tmp_path / "chargeback.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        from_server = billed(tmp_path / "chargeback.yaml", period_of(folder), tmp_path / "from-server")
    assert from_server.rows == from_file.rows
    assert from_server.lines == from_file.lines
    assert from_server.manifest["problems"] == from_file.manifest["problems"]
