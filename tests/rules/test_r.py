"""Rules R: nothing is lost, nothing is made, to the nano-unit and to the cent."""

import json
import random
import re
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clusters import Cluster, Result, exclusive, money, prices, run, sliced, span

from chargeback.errors import NotReconciled
from chargeback.money import round_half_even, to_decimal
from chargeback.reports.charges import allocations

TEAMS = ("blue", "green", "red")


def awkward() -> Cluster:
    """Three pods on one card whose memory, slots and price divide into nothing round."""
    return sliced({"red": 3, "blue": 2, "green": 2}, {"red": 7.3, "blue": 11.1, "green": 0.7}, replicas=7)


@pytest.mark.parametrize("basis", ["memory", "request", "max"])
@pytest.mark.parametrize("idle", ["holders", "consumers", "platform"])
@pytest.mark.parametrize("price", ["7.123456789", "0.000000013", "98765.432109877"])
def test_r1_the_charges_are_the_nodes_cost_to_the_nano_unit(tmp_path: Path, price: str, basis: str, idle: str) -> None:
    result = run(tmp_path, awkward(), prices(price), allocation={"basis": basis, "idle": idle})
    assert sum(row["cost"] for row in result.rows) == result.node_cost
    assert all(row["cost"] == round(row["cost"], 9) for row in result.rows)


def test_r1_each_part_is_within_a_nano_unit_of_its_exact_value(tmp_path: Path) -> None:
    # One window of 0.000000100 / 12 -> 8 nano-units, in 7 slots: 3, 2 and 2 of 7 are 3.43, 2.29 and 2.29.
    result = run(
        tmp_path, sliced({"red": 3, "blue": 2, "green": 2}, {}, replicas=7), prices("0.0000001"), period=span(0, 5)
    )  # fmt: skip
    nano = {team: int(cost.scaleb(9)) for (team, _), cost in result.charges.items()}
    assert sum(nano.values()) == 8
    assert nano["red"] in (3, 4)
    assert {nano["blue"], nano["green"]} <= {2, 3}


def test_r1_the_order_of_samples_in_a_file_changes_nothing(tmp_path: Path) -> None:
    head, *lines = awkward().text().removesuffix("# EOF\n").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    straight = run(tmp_path / "straight", "\n".join([head, *lines, "# EOF\n"]), prices("7.123456789"))
    random.Random(1).shuffle(lines)
    shuffled = run(tmp_path / "shuffled", "\n".join([head, *lines, "# EOF\n"]), prices("7.123456789"))
    assert straight.rows == shuffled.rows


def totals(result: Result) -> dict[str, Decimal]:
    """Each team's lines in finance.csv."""
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for line in result.lines:
        sums[line["team"]] += Decimal(line["amount"])
    return dict(sums)


@pytest.mark.parametrize(
    ("minutes", "billed"),
    [
        (20, "0.00"),  # 0.005: to the even cent
        (60, "0.02"),  # 0.015
        (100, "0.02"),  # 0.025
        (105, "0.03"),  # 0.02625
    ],
)
def test_r2_the_periods_total_is_rounded_half_even_once(tmp_path: Path, minutes: int, billed: str) -> None:
    result = run(tmp_path, exclusive(20, minutes=minutes), prices("0.015"), period=span(0, minutes))
    assert result.manifest["billed"] == billed
    assert sum(result.invoices.values()) == Decimal(billed)


def test_r2_cents_go_by_largest_remainder_ties_by_name(tmp_path: Path) -> None:
    # Four teams with exactly 0.045 each of 0.18: two cents are over, for the first two by name.
    result = run(tmp_path, sliced(dict.fromkeys(("red", "green", "gold", "blue"), 1), {}, replicas=4), prices("0.18"))
    assert set(result.charges.values()) == {Decimal("0.045")}
    assert result.invoices == {
        "blue": Decimal("0.05"), "gold": Decimal("0.05"), "green": Decimal("0.04"), "red": Decimal("0.04"),
    }  # fmt: skip


def test_r2_the_largest_remainder_comes_before_the_name(tmp_path: Path) -> None:
    # 0.276 in 8 slots: blue's one is 0.0345, aqua's three 0.1035, zebra's four 0.138. Of 28 cents 3, 10 and 13 are
    # whole; the other two go to the largest remainders, zebra's 0.8 and blue's 0.45, not to aqua's 0.35.
    result = run(tmp_path, sliced({"blue": 1, "aqua": 3, "zebra": 4}, {}, replicas=8), prices("0.276"))
    assert result.invoices == {"zebra": Decimal("0.14"), "blue": Decimal("0.04"), "aqua": Decimal("0.10")}


@pytest.mark.parametrize(
    ("currency", "billed"), [("USD", "21.96"), ("JPY", "22"), ("KWD", "21.958"), ("CLF", "21.9576")]
)
def test_r2_invoices_are_in_the_currencys_minor_unit(tmp_path: Path, currency: str, billed: str) -> None:
    result = run(tmp_path, exclusive(), prices("21.957642", currency=currency), currency=currency)
    assert result.manifest["billed"] == billed
    digits = len(billed.partition(".")[2])
    assert {len(line["amount"].partition(".")[2]) for line in result.lines} == {digits}


@pytest.mark.parametrize("price", ["0.017", "1.00", "7.123456789", "1234.567891"])
def test_r2_lines_add_up_to_the_invoice_and_invoices_to_the_bill(tmp_path: Path, price: str) -> None:
    result = run(tmp_path, awkward(), prices(price))
    assert totals(result) == result.invoices
    assert sum(result.invoices.values()) == Decimal(result.manifest["billed"]) == round(result.node_cost, 2)
    for team, invoice in result.manifest["invoices"].items():
        own = (result.folder / "invoices" / invoice["folder"] / "lines.csv").read_text(encoding="utf-8").splitlines()
        assert len(own) - 1 == sum(line["team"] == team for line in result.lines)


def test_r3_the_proof_is_in_the_manifest(tmp_path: Path) -> None:
    result = run(tmp_path, awkward(), prices("7.123456789"))
    assert result.manifest["reconciled"] is True
    kinds = {kind: Decimal(cost) for kind, cost in result.manifest["kinds"].items()}
    assert sum(kinds.values()) == result.node_cost == sum(result.charges.values())
    # 593621399.08 nano-units a window
    assert result.manifest["node_cost"] == "7.123456788"


def forgetful(*args: Any) -> pa.Table:
    """The charges of a day, less one of them."""
    return allocations(*args)[1:]


def test_r3_a_run_that_does_not_reconcile_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargeback.pipeline.allocations", forgetful)
    with pytest.raises(NotReconciled) as caught:
        run(tmp_path, awkward(), prices("7.123456789"))
    assert caught.value.exit_code == 6
    assert "7.123456788" in caught.value.message
    assert not list((tmp_path / "store").glob("reports/*"))


def test_r3_a_report_that_was_there_before_stays_when_the_next_one_does_not_reconcile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tmp_path, awkward())
    before = {p: p.read_bytes() for p in first.folder.rglob("*") if p.is_file()}
    monkeypatch.setattr("chargeback.pipeline.allocations", forgetful)
    with pytest.raises(NotReconciled):
        run(tmp_path, awkward())
    assert {p: p.read_bytes() for p in first.folder.rglob("*") if p.is_file()} == before
    assert [p.name for p in first.folder.parent.iterdir()] == [first.folder.name]


def next_to_nothing() -> Cluster:
    """red's card and one of nobody."""
    c = exclusive(0)
    c.gpu("n1", "GPU-1")
    return c


@pytest.mark.parametrize("price", ["0.0024", "0.012", "0.024"])
def test_r4_there_is_no_minus_zero(tmp_path: Path, price: str) -> None:
    # The platform's half is handed on: a tenth of a cent, half a cent, a cent, and the counter-entry.
    result = run(tmp_path, next_to_nothing(), prices(price, gpus=2), allocation={"shared": "even"})
    for path in result.folder.rglob("*"):
        if path.suffix in (".csv", ".json", ".html"):
            text = re.sub(r"<style.*?</style>|<[^>]*>", " ", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            assert not re.search(r"[-\u2212]\$?0\.0+(?!\d)", text), path


@pytest.mark.parametrize("nano", [-1, -4_999_999, -5_000_000, 0])
def test_r4_what_rounds_to_nothing_is_plain_zero(nano: int) -> None:
    assert str(round_half_even(nano, 2)) == "0.00"
    assert not to_decimal(nano).is_signed() or nano


def test_r4_credits_are_negative_numbers_not_text(tmp_path: Path) -> None:
    # 6.00 of nobody's card are handed on.
    result = run(tmp_path, next_to_nothing(), prices("12.00", gpus=2), allocation={"shared": "even"})
    negative = {line["kind"]: line["amount"] for line in result.lines if line["amount"].startswith("-")}
    assert negative == {"shared": "-6.00"}
    assert json.loads((result.folder / "manifest.json").read_text())["teams"] == {"platform": "0.00", "red": "12.00"}
    assert result.charges == money({("red", "idle"): "6.00", ("platform", "unallocated"): "6.00"})
