"""What a report is made of; the modules beside this one write its files."""

from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from chargeback.config import Config
from chargeback.period import Period
from chargeback.problems import Problem


@dataclass(frozen=True)
class BookUsed:
    """A price book that was read: its name, where its figures come from, and of when they are."""

    name: str
    source: str
    as_of: str


@dataclass(frozen=True)
class Report:
    """All that the pages, the finance export and the manifest say; built once, by `reports.lines.build`.

    `lines`, `detail` and `daily` have the schemas of that name. `teams` maps each team to its invoice total in the
    currency's minor unit (R2), sorted by name; `invoices` to its number. `folders` maps it to its folder's name under
    `invoices/`. `kinds` are exact sums of charges. `draft` holds the reasons why this is not final (Q1), empty for
    a final report.
    """

    config: Config
    period: Period
    version: str
    lines: pa.Table
    detail: pa.Table
    daily: pa.Table
    teams: dict[str, Decimal]
    invoices: dict[str, str]
    folders: dict[str, str]
    node_cost: Decimal
    charged: Decimal
    billed: Decimal
    kinds: dict[str, Decimal]
    observed_share: float
    estimated_share: float
    problems: list[Problem]
    books: list[BookUsed]
    draft: list[str]
    digits: int
