"""Every figure on a page adds up, and nothing from a cluster gets out of its place."""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest

from chargeback.errors import NotReconciled
from chargeback.problems import Problem
from chargeback.reports import Report
from chargeback.reports.pages import index_page, invoice_page

HOSTILE = '<script>alert("x")</script> & co'
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """A page's tables as rows of cells, its text, links and tags; fails on tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[tuple[str, list[str]]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self._table = ""
        self._group = ""
        self.feed(html)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "caption":
            self._table = given["id"] or ""
            self.tables[self._table] = []
        elif tag in ("thead", "tbody", "tfoot"):
            self._group = tag
        elif tag == "tr":
            self.tables[self._table].append((f"{self._group} {given.get('class', '')}".strip(), []))
        elif tag in ("td", "th"):
            self.tables[self._table][-1][1].extend([""] * int(given.get("colspan") or 1))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[self._table][-1][1][-1] += data.strip()

    def column(self, table: str, heading: str, where: str) -> list[Decimal]:
        """The numbers of a column, in rows of that part of the table."""
        rows = self.tables[table]
        at = rows[0][1].index(heading)
        return [Decimal(cells[at].replace(",", "").rstrip("%")) for part, cells in rows if part == where]


def numbers(text: str) -> set[str]:
    """The digits of each number in a page, whatever separates them."""
    text = re.sub(r"<(script|style).*?</\1>", " ", text, flags=re.DOTALL)
    return {re.sub(r"\D", "", n) for n in re.findall(r"\d[\d.,'\u00a0\u202f\u2019 ]*", re.sub(r"<[^>]+>", "|", text))}


@pytest.mark.parametrize("team", ["research", "platform", HOSTILE])
def test_each_table_of_an_invoice_adds_up_to_its_total(report: Report, team: str) -> None:
    page = Page(invoice_page(report, team))
    total = report.teams[team]
    for table in {"kinds", "workloads", "gpus", "places"} & page.tables.keys():
        for heading in ("Amount", "GPU-hours", "Share"):
            rows, foot = (page.column(table, heading, part) for part in ("tbody", "tfoot"))
            assert sum(rows) == foot[0], (table, heading)
        assert page.column(table, "Amount", "tfoot") == [total]
        assert page.column(table, "Share", "tfoot") == [100]
    hours = {
        tuple(page.column(t, "GPU-hours", "tfoot"))
        for t in {"kinds", "workloads", "gpus", "places", "lines"} & page.tables.keys()
    }
    assert len(hours) == 1


@pytest.mark.parametrize("team", ["research", "platform", HOSTILE])
@pytest.mark.parametrize("heading", ["Amount", "GPU-hours", "GiB-hours"])
def test_lines_add_up_to_subtotals_and_subtotals_to_the_total(report: Report, team: str, heading: str) -> None:
    page = Page(invoice_page(report, team))
    running, subtotals = Decimal(0), []
    for part, cells in page.tables["lines"]:
        at = page.tables["lines"][0][1].index(heading)
        if part == "tbody":
            running += Decimal(cells[at].replace(",", ""))
        elif part == "tbody subtotal":
            subtotals.append(Decimal(cells[at].replace(",", "")))
            assert running == subtotals[-1]
            running = Decimal(0)
    assert sum(subtotals) == page.column("lines", heading, "tfoot")[0]
    if heading == "Amount":
        assert sum(subtotals) == report.teams[team]


@pytest.mark.parametrize("team", ["research", "platform", HOSTILE])
def test_used_idle_and_other_add_up_to_the_amount(report: Report, team: str) -> None:
    page = Page(invoice_page(report, team))
    for table in {"workloads", "gpus"} & page.tables.keys():
        for part in ("tbody", "tfoot"):
            columns = [page.column(table, h, part) for h in ("Used", "Idle", "Other", "Amount")]
            assert all(used + idle + other == amount for used, idle, other, amount in zip(*columns, strict=True))


def test_an_invoice_shows_its_team_and_total_as_one_number(report: Report) -> None:
    for team, total in report.teams.items():
        html = invoice_page(report, team)
        assert re.sub(r"\D", "", str(total)) in numbers(html)
        assert team in Page(html).text
    assert "research" in invoice_page(report, "research")


def test_an_invoice_says_for_when_to_whom_and_that_it_is_a_draft(report: Report, final: Report) -> None:
    text = Page(invoice_page(report, "research")).text
    for what in (report.invoices["research"], "November 2026", "Europe/Berlin", "4711", "research@example.org"):
        assert what in text
    assert "720 hours" in text
    assert "Draft – not final" in text and "2026-11-30 was not collected" in text
    assert "Draft" not in Page(invoice_page(final, "research")).text


def test_an_invoice_shows_where_and_at_which_price(report: Report) -> None:
    rows = {
        cells[1]: cells for part, cells in Page(invoice_page(report, "research")).tables["places"] if part == "tbody"
    }
    assert rows["p4d.24xlarge"][0] == "produs-east-1"
    assert rows["p4d.24xlarge"][3].endswith("21.957642/h")
    assert rows["p4d.24xlarge"][4] == "2"  # n1 and n2
    assert rows["g5.xlarge"][2:5] == ["spot", "prices.yaml g5.xlarge spot 0.412000/h", "1"]


def test_an_invoice_shows_nothing_of_other_teams(report: Report) -> None:
    html = invoice_page(report, "research")
    for other in ("secret-pod", "secret-ns", "alert", "cmd|", "gnp", "prometheus.example.org"):
        assert other not in html
    assert "4 pods of research came in by default" in html


def test_names_from_a_cluster_are_text(report: Report) -> None:
    html = invoice_page(report, HOSTILE)
    page = Page(html)
    tags = {tag for tag, _ in page.tags}
    assert "script" not in tags and "b" not in tags
    assert '<script>alert("x")</script> & co' in page.text
    assert "a/b↵<b>" in page.text  # the newline is seen
    assert "=cmd|'/c calc'!A1" in page.text
    assert "\u202e" not in html and "<bdi>\ufffdgnp.exe</bdi>" in html


def test_right_to_left_names_keep_their_direction_to_themselves(
    built: Callable[..., Report], charges: list[Any]
) -> None:
    team = "فريق"
    report = built([(team, *row[1:]) for row in charges], shared=[])
    assert f"<h1><bdi>{team}</bdi></h1>" in invoice_page(report, team)


@pytest.mark.parametrize("page", ["invoice", "index"])
def test_pages_are_self_contained_and_run_nothing(report: Report, page: str) -> None:
    html = invoice_page(report, "research") if page == "invoice" else index_page(report)
    tags = Page(html).tags
    assert not {t for t, _ in tags} & {"script", "img", "iframe", "object", "form", "base"}
    for _, attributes in tags:
        assert not [a for a in attributes if a.startswith("on") or a in ("style", "srcset", "src", "action")]
        assert not re.match(r"[a-z]+:(?!,$)|//", attributes.get("href") or "")
    style = re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    assert len(style) == 1 and "url(" not in re.sub(r"url\(#[a-z-]+\)", "", style[0]) and "@import" not in style[0]
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in html


@pytest.mark.parametrize("page", ["invoice", "index"])
def test_tables_have_captions_scopes_and_a_way_to_scroll(report: Report, page: str) -> None:
    tags = Page(invoice_page(report, "research") if page == "invoice" else index_page(report)).tags
    ids = [a["id"] for _, a in tags if a.get("id")]
    assert len(ids) == len(set(ids))
    assert all(a.get("scope") for t, a in tags if t == "th")
    regions = [a for t, a in tags if t == "div" and a.get("role") == "region"]
    assert len(regions) == len([t for t, _ in tags if t == "table"]) == len([t for t, _ in tags if t == "caption"])
    assert all(a["tabindex"] == "0" and a["aria-labelledby"] in ids for a in regions)
    assert [t for t, _ in tags if t in ("header", "main", "footer", "h1")] == ["header", "h1", "main", "footer"]


def test_the_index_adds_up_and_proves_it(report: Report) -> None:
    page = Page(index_page(report))
    assert page.column("teams", "Total", "tfoot") == [report.billed] == [sum(page.column("teams", "Total", "tbody"))]
    assert page.column("teams", "Share", "tfoot") == [100] == [sum(page.column("teams", "Share", "tbody"))]
    for table, heading in (("kinds", "As invoiced"), ("gpus", "Amount"), ("places", "Amount")):
        assert page.column(table, heading, "tfoot") == [report.billed] == [sum(page.column(table, heading, "tbody"))]
    assert (
        page.column("kinds", "Exact charges", "tfoot")
        == [sum(page.column("kinds", "Exact charges", "tbody"))]
        == [report.charged]
    )
    proof = {cells[0]: Decimal(cells[1].replace(",", "")) for _, cells in page.tables["proof"][1:]}
    cost, charged, gap, rounding, billed, invoices, left = proof.values()
    assert cost == charged == report.node_cost and gap == left == 0
    assert charged + rounding == billed == invoices == report.billed


def test_the_index_links_to_each_invoice(report: Report) -> None:
    links = [a["href"] for t, a in Page(index_page(report)).tags if t == "a"]
    assert [h for h in links if h and h.startswith("invoices/")] == [
        f"invoices/{report.folders[t]}/index.html" for t in sorted(report.teams, key=lambda t: -report.teams[t])
    ]
    assert {"finance.csv", "lines.parquet", "manifest.json"} <= set(links)


def test_the_index_names_problems_and_inputs_without_secrets(report: Report) -> None:
    html = index_page(report)
    text = Page(html).text
    for problem in report.problems:
        assert problem.code in text and problem.message in text
    assert "prometheus.example.org:9090" in text
    assert "secret:" not in html and "someone" not in html and "key=1" not in html
    assert "AWS price list" in text and "2026-11-01" in text
    assert "over 99.9%" in text  # 0.99953 is not all


def test_many_problems_of_a_kind_are_counted_not_listed(report: Report) -> None:
    many = [Problem("scrape-gap", f"node-{i:03d}", "warning", 2, "gap") for i in range(100)]
    page = Page(index_page(replace(report, problems=many)))
    assert sum(page.column("problems", "Count", "tbody")) == 200
    assert len([1 for part, _ in page.tables["problems"] if part == "tbody"]) == 26


@pytest.mark.parametrize(
    ("currency", "digits", "total"), [("USD", 2, "$2,168.60"), ("JPY", 0, "¥2,169"), ("KWD", 3, "KWD\u00a02,168.603")]
)
def test_amounts_have_the_digits_of_the_currency(
    built: Callable[..., Report], currency: str, digits: int, total: str
) -> None:
    report = built(config={"currency": currency}, digits=digits)
    html = invoice_page(report, "research")
    assert f'<p class="total">{total}</p>' in html
    assert re.sub(r"\D", "", str(report.teams["research"])) in numbers(html)
    assert sum(Page(html).column("kinds", "Amount", "tbody")) == report.teams["research"]


def test_a_team_without_a_line_has_an_invoice(report: Report) -> None:
    empty = replace(
        report,
        teams={**report.teams, "new": Decimal("0.00")},
        invoices={**report.invoices, "new": "2026-11-0009"},
        folders={**report.folders, "new": "new"},
    )
    html = invoice_page(empty, "new")
    assert "Nothing was charged" in html and "000" in numbers(html)
    assert 'href="invoices/new/index.html"' in index_page(empty)


def test_a_team_that_gets_money_back_has_an_invoice(built: Callable[..., Report]) -> None:
    report = built(shared=[("research", "shared", "-5000"), ("platform", "shared", "5000")])
    html = invoice_page(report, "research")
    assert '<p class="total">-$2,949.65</p>' in html
    page = Page(html)
    assert sum(page.column("kinds", "Amount", "tbody")) == report.teams["research"] == Decimal("-2949.65")
    assert "-0.00" not in html and "nan" not in page.text


def test_figures_that_do_not_add_up_are_not_shown(report: Report) -> None:
    wrong = {**report.teams, "research": report.teams["research"] + Decimal("0.01")}
    with pytest.raises(NotReconciled):
        invoice_page(replace(report, teams=wrong), "research")
    with pytest.raises(NotReconciled):
        index_page(replace(report, teams=wrong))
    with pytest.raises(NotReconciled):
        index_page(replace(report, charged=report.charged + Decimal("0.000000001")))
    with pytest.raises(NotReconciled):
        invoice_page(replace(report, detail=report.detail.slice(1)), "research")


def test_the_same_report_gives_the_same_bytes(built: Callable[..., Report], charges: list[Any]) -> None:
    one, other = built(), built(charges[::-1])
    other = replace(other, lines=other.lines.take(list(range(other.lines.num_rows))[::-1]))
    assert index_page(one) == index_page(other)
    assert all(invoice_page(one, t) == invoice_page(other, t) for t in one.teams)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"allocation": {"basis": "request"}}, "By request."),
        ({"allocation": {"idle": "consumers"}}, "divided among the pods that use it"),
        ({"allocation": {"shared": "even"}}, "in equal parts"),
        ({"window": "10m", "max_gap": "90m"}, "windows of 10 minutes"),
        ({"mig": {"weight": "compute"}}, "compute slices"),
        ({}, "may leave no trace"),  # Q4
    ],
)
def test_pages_say_how_it_was_calculated(built: Callable[..., Report], settings: dict[str, Any], sentence: str) -> None:
    report = built(config=settings)
    assert sentence in invoice_page(report, "research")
    assert sentence in index_page(report)
