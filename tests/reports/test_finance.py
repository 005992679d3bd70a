"""finance.csv is RFC 4180, exact, and safe to open in a spreadsheet."""

import csv
import io
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from chargeback.reports import Report
from chargeback.reports.finance import amount_text, defused, finance_csv, lines_csv

HOSTILE = '<script>alert("x")</script> & co'
COLUMNS = (
    "invoice,period_start,period_end,team,cost_center,cluster,namespace,workload_kind,workload,gpu_model,mig_profile,"
    "purchase_option,kind,gpu_hours,memory_gib_hours,amount,currency,estimated_share,x_project"
)


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8"), newline=""), strict=True))


def test_columns_are_in_the_order_of_the_interface(report: Report) -> None:
    assert finance_csv(report).split(b"\r\n")[0].decode() == COLUMNS


def test_what_is_written_is_read_back(report: Report) -> None:
    rows = read(finance_csv(report))
    assert len(rows) == report.lines.num_rows
    for row, line in zip(rows, report.lines.to_pylist(), strict=True):
        for name in ("team", "namespace", "workload", "gpu_model", "kind", "x_project", "invoice", "currency"):
            assert row[name] == defused(line[name])
        assert Decimal(row["amount"]) == line["amount"]
        for name in ("gpu_hours", "memory_gib_hours", "estimated_share"):
            assert re.fullmatch(r"\d+\.\d{6}", row[name])
            assert float(row[name]) == pytest.approx(line[name], abs=5e-7)
        assert row["period_start"] == "2026-10-31T23:00:00Z"
        assert row["period_end"] == "2026-11-30T23:00:00Z"


def test_lines_end_as_rfc_4180_says(report: Report) -> None:
    data = finance_csv(report)
    assert data.endswith(b"\r\n") and not data.startswith(b"\xef\xbb\xbf")
    outside = re.sub(rb'"(?:[^"]|"")*"', b"", data)
    assert outside.count(b"\n") == outside.count(b"\r\n") == report.lines.num_rows + 1


def test_amounts_add_up_by_team(report: Report) -> None:
    sums: dict[str, Decimal] = {}
    for row in read(finance_csv(report)):
        assert re.fullmatch(r"-?\d+\.\d\d", row["amount"]) and row["amount"] != "-0.00"  # R4
        sums[row["team"]] = sums.get(row["team"], Decimal(0)) + Decimal(row["amount"])
    assert sums == report.teams


def test_a_team_gets_its_own_lines_only(report: Report) -> None:
    for team, total in report.teams.items():
        rows = read(lines_csv(report, team))
        assert {r["team"] for r in rows} == {team}
        assert sum(Decimal(r["amount"]) for r in rows) == total
    assert sum(len(read(lines_csv(report, t))) for t in report.teams) == report.lines.num_rows
    assert b"secret" not in lines_csv(report, "research")


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@x",
        "\t=1",
        "\rx",
        "\nx",
        "  =1",
        " \t\u00a0\u3000@x",
        "\uff1d1",
        "\uff0bx",
        "\uff0dx",
        "\uff20x",
        "\ufeff=1",
        "\0=1",
        "-",
    ],
)
def test_what_a_spreadsheet_would_run_is_defused(text: str) -> None:
    assert defused(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "a=1", "a-b", "1", "<b>", "'x", " a", "é@x", "a\nb"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert defused(text) == text


def test_a_workload_that_is_a_formula_is_defused(report: Report) -> None:
    assert "'=cmd|'/c calc'!A1" in {r["workload"] for r in read(lines_csv(report, HOSTILE))}


def test_a_negative_amount_is_a_number(report: Report) -> None:
    assert "-120.00" in {r["amount"] for r in read(finance_csv(report))}


@pytest.mark.parametrize(("digits", "text"), [(2, "-1.50"), (0, "-2"), (3, "-1.500")])
def test_amounts_have_the_digits_of_the_currency(digits: int, text: str) -> None:
    assert amount_text(Decimal(text), digits) == text
    assert amount_text(Decimal(text) * 0, digits).startswith("0")
    with pytest.raises(ValueError, match="digits"):
        amount_text(Decimal("0.0001"), digits)


def test_a_currency_without_a_minor_unit(built: Callable[..., Report], charges: list[Any]) -> None:
    report = built(charges[:3], shared=[], config={"currency": "JPY"}, digits=0)
    assert [r["amount"] for r in read(finance_csv(report))] == [str(a) for a in (162, 859)]
