"""The HTML pages of a report: figures from `invoice` and `index`, poured into the templates."""

import base64
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from chargeback import resources
from chargeback.reports import Report
from chargeback.reports.figures import Figures, name, visible
from chargeback.reports.finance import lines_csv
from chargeback.reports.index import index
from chargeback.reports.invoice import invoice
from chargeback.reports.words import KINDS

__all__ = ["index_page", "invoice_page", "lines_csv"]


def invoice_page(report: Report, team: str) -> str:
    """One team's invoice as one self-contained page. Raises `NotReconciled` where its figures do not add up."""
    figures = Figures(report.config.currency, report.digits)
    page = invoice(report, team, figures)
    return _render("invoice.html.j2", page=page, f=figures, footline=f"{page.number} · {team}")


def index_page(report: Report) -> str:
    """The page of all teams. Raises `NotReconciled` where lines, invoices and bill do not add up."""
    figures = Figures(report.config.currency, report.digits)
    page = index(report, figures)
    return _render("index.html.j2", page=page, f=figures, footline=f"GPU costs · {page.period.title}")


def _render(template: str, *, footline: str, **variables: Any) -> str:
    style = _style(footline)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    safe = Markup(style)  # noqa: S704 - the stylesheet that ships with the program
    shown = {"style": safe, "style_digest": digest, "kinds": KINDS, **variables}
    return _environment().get_template(template).render(shown)


def _style(footline: str) -> str:
    """The stylesheet, and the line that stands at the foot of each printed page."""
    quoted = "".join(c if c.isalnum() or c in " -_.·" else f"\\{ord(c):x} " for c in visible(footline))
    sheet = (resources.templates() / "style.css").read_text(encoding="utf-8")
    return f'{sheet}@page {{ @bottom-left {{ content: "{quoted}"; }} }}\n'.replace("\r\n", "\n")


@lru_cache
def _environment(folders: tuple[Path, ...] = ()) -> Environment:
    """The templates' environment; a folder of a user's own is searched first."""
    environment = Environment(
        loader=FileSystemLoader([*folders, resources.templates()]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["name"] = name
    environment.filters["visible"] = visible
    return environment
