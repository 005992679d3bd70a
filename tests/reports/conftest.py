"""A small report by hand: three teams, one with hostile names, a credit, a shared cost, a draft."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from chargeback.config import Config
from chargeback.money import largest_remainder, round_half_even
from chargeback.period import Period, parse_period
from chargeback.problems import Problem
from chargeback.reports import BookUsed, Report
from chargeback.reports.folders import team_folders
from chargeback.schemas import DAILY, DETAIL, LINES

NAMESPACE = "a/b\n<b>"
HOSTILE = '<script>alert("x")</script> & co'
NOW = 1_800_000_000_000
CONFIG: dict[str, Any] = {
    "cluster": "prod",
    "timezone": "Europe/Berlin",
    "source": {"prometheus": {"url": "https://someone:secret@prometheus.example.org:9090/api?key=1"}},
    "teams": {"research": {"cost_center": "4711", "contact": "research@example.org"}, "platform": {}, HOSTILE: {}},
    "pricing": {"books": ["builtin:aws"]},
    "dimensions": {"project": "project"},
}
DEMAND = ("p4d.24xlarge", "us-east-1", "on-demand", "builtin:aws p4d.24xlarge us-east-1 on-demand 21.957642/h")
SPOT = ("g5.xlarge", "eu-central-1", "spot", "prices.yaml g5.xlarge spot 0.412000/h")
A100, A10G = "NVIDIA A100-SXM4-40GB", "NVIDIA A10G"
Charge = tuple[str, str, str, str, str, str, str, tuple[str, str, str, str], str, float, float, str, str]
CHARGES: list[Charge] = [
    # team, node, namespace, workload kind, workload, model, profile, where, kind, GPU-h, GiB-h, cost, estimated
    ("research", "n1", "train", "Job", "llm-7b", A100, "", DEMAND, "used", 301.128, 9000.04, "826.543210987", "0"),
    ("research", "n1", "train", "Job", "llm-7b", A100, "", DEMAND, "idle", 58.873, 0, "161.591919191", "0"),
    (
        "research",
        "n2",
        "train",
        "Job",
        "llm-7b",
        A100,
        "",
        DEMAND,
        "used",
        12.004,
        310.5,
        "32.944444444",
        "32.944444444",
    ),
    (
        "research",
        "n2",
        "lab",
        "StatefulSet",
        "notebook",
        A100,
        "3g.20gb",
        DEMAND,
        "used",
        2.3333,
        11.11,
        "6.404123456",
        "0.5",
    ),
    (
        "research",
        "n2",
        "lab",
        "StatefulSet",
        "notebook",
        A100,
        "3g.20gb",
        DEMAND,
        "idle",
        357.6667,
        0,
        "981.666666665",
        "0",
    ),
    ("research", "n3", "lab", "Deployment", "demo", A10G, "", SPOT, "used", 100.005, 800.05, "41.202060005", "0"),
    (
        HOSTILE,
        "n3",
        NAMESPACE,
        "Deployment",
        "=cmd|'/c calc'!A1",
        A10G,
        "",
        SPOT,
        "used",
        10.0,
        20.0,
        "4.121111113",
        "0",
    ),
    (HOSTILE, "n3", NAMESPACE, "Deployment", "\u202egnp.exe", A10G, "", SPOT, "idle", 3.335, 0, "1.374002222", "0"),
    ("platform", "n1", "", "", "", A100, "", DEMAND, "unallocated", 720.0, 0, "1976.187780001", "0"),
    ("platform", "n2", "", "", "", A100, "", DEMAND, "unpartitioned", 90.25, 0, "247.7108333", "0"),
    ("platform", "n2", "", "", "", A100, "", DEMAND, "unobserved", 1.5, 0, "4.117057875", "0"),
    ("platform", "n1", "", "", "", A100, "", DEMAND, "used", 0.5, 2.5, "1.3723526", "0"),
]
SHARED = [
    ("platform", "shared", "-120.000000005"),
    ("research", "shared", "118.250000004"),
    (HOSTILE, "shared", "1.750000001"),
]
PROBLEMS = [
    Problem("scrape-gap", "prod/n2", "warning", 2, "no samples of n2 for 25 minutes"),
    Problem(
        "unrequested-use", "prod/secret-ns/secret-pod", "warning", 3, "secret-pod used a GPU that it did not request"
    ),
    Problem("unknown-team", HOSTILE, "warning", 1, f"the label {HOSTILE} names no listed team"),
    Problem("unowned", "research", "info", 4, "4 pods of research came in by default"),
]


def build(
    charges: list[Charge] | None = None,
    shared: list[tuple[str, str, str]] | None = None,
    config: dict[str, Any] | None = None,
    digits: int = 2,
    draft: list[str] | None = None,
    period: Period | None = None,
) -> Report:
    """A report of these charges, put together as the rules say (R2), without the code that the program has for it."""
    charges = CHARGES if charges is None else charges
    shared = SHARED if shared is None else shared
    settings = Config.model_validate({**CONFIG, **(config or {})})
    period = period or parse_period("2026-11", settings.timezone, 300_000, NOW)
    detail = [
        dict(
            zip(
                DETAIL.names,
                [
                    team,
                    "prod",
                    node,
                    *where,
                    gpu,
                    mig,
                    "exclusive",
                    *pod,
                    kind,
                    hours,
                    gib,
                    Decimal(cost),
                    Decimal(est),
                ],
                strict=True,
            )
        )
        for team, node, *pod, gpu, mig, where, kind, hours, gib, cost, est in charges
    ]
    empty = dict.fromkeys(
        ("node", "instance_type", "region", "price", "sharing", "namespace", "workload_kind", "workload"), ""
    )
    blank = {**empty, "cluster": "", "purchase_option": "", "gpu_model": "", "mig_profile": "", "gpu_hours": 0.0}
    rest = [
        {**blank, "team": t, "kind": k, "memory_gib_hours": 0.0, "cost": Decimal(c), "estimated_cost": Decimal(0)}
        for t, k, c in shared
    ]
    by = tuple(n for n in LINES.names[3:13] if n != "cost_center")
    groups: dict[tuple[str, ...], list[Any]] = {}
    for row in [*detail, *rest]:
        line = groups.setdefault(tuple(row[k] for k in by), [0.0, 0.0, Decimal(0), Decimal(0)])
        for i, n in enumerate(("gpu_hours", "memory_gib_hours", "cost", "estimated_cost")):
            line[i] += row[n]
    keys = sorted(groups)
    exact = {t: int(sum(groups[k][2] for k in keys if k[0] == t).scaleb(9)) for t in sorted({k[0] for k in keys})}
    total = round_half_even(sum(exact.values()), digits)
    teams = dict(zip(exact, largest_remainder(total, list(exact.values()), list(exact), digits), strict=True))
    folders = team_folders(teams)
    invoices = {t: f"CB-2026-11-{folders[t]}" for t in teams}
    lines = []
    for team, owed in teams.items():
        own = [k for k in keys if k[0] == team]
        amounts = largest_remainder(owed, [int(groups[k][2].scaleb(9)) for k in own], own, digits)
        for k, amount in zip(own, amounts, strict=True):
            gpu, gib, cost, guess = groups[k]
            details = settings.teams.get(team)
            lines.append(
                {
                    **dict(zip(by, k, strict=True)),
                    "invoice": invoices[team],
                    "period_start": period.start,
                    "period_end": period.end,
                    "cost_center": details.cost_center if details else "",
                    "gpu_hours": gpu,
                    "memory_gib_hours": gib,
                    "amount": amount,
                    "currency": settings.currency,
                    "x_project": "apollo" if k[2] == "lab" else "",
                    "estimated_share": float(guess / cost) if cost else 0.0,
                }
            )
    kinds: dict[str, Decimal] = {}
    for row in [*detail, *rest]:
        kinds[row["kind"]] = kinds.get(row["kind"], Decimal(0)) + row["cost"]
    cost = sum((r["cost"] for r in detail), Decimal(0))
    return Report(
        config=settings,
        period=period,
        version="0.1.0",
        lines=pa.Table.from_pylist(lines, LINES.append(pa.field("x_project", pa.string()))),
        detail=pa.Table.from_pylist([*detail, *rest], DETAIL),
        daily=pa.Table.from_pylist(
            [{"team": r["team"], "date": date(2026, 11, 3), "kind": r["kind"], "cost": r["cost"]} for r in detail],
            DAILY,
        ),
        teams=teams,
        invoices=invoices,
        folders=folders,
        node_cost=cost,
        charged=cost,
        billed=total,
        kinds=kinds,
        observed_share=0.99953,
        estimated_share=0.0078,
        problems=PROBLEMS,
        books=[BookUsed("builtin:aws", "AWS price list", "2026-11-01"), BookUsed("prices.yaml", "our contract", "")],
        draft=["the period is not over", "2026-11-30 was not collected"] if draft is None else draft,
        digits=digits,
    )


@pytest.fixture
def report() -> Report:
    return build()


@pytest.fixture
def built() -> Callable[..., Report]:
    """Builds a report of other charges, shared costs or settings."""
    return build


@pytest.fixture
def charges() -> list[Charge]:
    """What the report is made of, to make others of it."""
    return CHARGES


@pytest.fixture
def final(report: Report) -> Report:
    return replace(report, draft=[])
