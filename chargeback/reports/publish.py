"""Writes a report's files into a folder, the manifest last."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from chargeback.documents import Origin
from chargeback.ledger import Store, digest
from chargeback.money import to_decimal
from chargeback.period import iso
from chargeback.reports import Report
from chargeback.reports.finance import finance_csv, lines_csv
from chargeback.reports.pages import index_page, invoice_page

SCHEMA = 1


def publish(
    report: Report, folder: Path, inputs: list[tuple[str, Origin]], store: Store, evidence: list[tuple[str, int]]
) -> None:
    """All files of a report; `inputs` are named by what they are, evidence partitions by their place in the store."""
    (folder / "finance.csv").write_bytes(finance_csv(report))
    pq.write_table(report.lines, folder / "lines.parquet", compression="zstd")
    (folder / "index.html").write_text(index_page(report), encoding="utf-8")
    for team, name in report.folders.items():
        own = folder / "invoices" / name
        own.mkdir(parents=True)
        (own / "index.html").write_text(invoice_page(report, team), encoding="utf-8")
        (own / "lines.csv").write_bytes(lines_csv(report, team))
    read = [{"what": what, "path": o.path.name, "sha256": o.sha256, "bytes": o.bytes} for what, o in inputs]
    for cluster, day in evidence:
        paths = sorted(store.usage(cluster, day).glob("*"))
        read += [{"what": "evidence", **_entry(path, store.root)} for path in paths]
    written = [_entry(p, folder) for p in sorted(folder.rglob("*")) if p.is_file()]
    text = json.dumps(manifest(report, read, written), indent=1, ensure_ascii=False)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def manifest(report: Report, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """What was read, what was written, and the proof (R3)."""
    zero = to_decimal(0)
    return {
        "schema": SCHEMA,
        "version": report.version,
        "period": {
            "start": iso(report.period.start),
            "end": iso(report.period.end),
            "timezone": report.period.timezone,
        },
        "draft": report.draft,
        "currency": report.config.currency,
        "node_cost": f"{report.node_cost:.9f}",
        "billed": str(report.billed),
        "kinds": {k: f"{v + zero:.9f}" for k, v in report.kinds.items()},
        "teams": {t: str(v) for t, v in report.teams.items()},
        "invoices": {t: {"number": n, "folder": report.folders[t]} for t, n in report.invoices.items()},
        "reconciled": report.charged == report.node_cost and sum(report.teams.values()) == report.billed,
        "observed_share": report.observed_share,
        "estimated_share": report.estimated_share,
        "problems": [
            {"code": p.code, "severity": p.severity, "subject": p.subject, "count": p.count, "message": p.message}
            for p in report.problems
        ],
        "inputs": inputs,
        "outputs": outputs,
    }


def _entry(path: Path, root: Path) -> dict[str, Any]:
    sha256, size = digest(path)
    return {"path": path.relative_to(root).as_posix(), "sha256": sha256, "bytes": size}
