"""What was found, as text for a terminal of 100 columns and as JSON for machines."""

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from chargeback.doctor.findings import Exporter, Findings, History, Note, Scrape, Share, counted, some

WIDTH = 100
_INDENT = "  "
_WAYS = {
    "measured": "measured by pod",
    "one-pod": "one pod each, which has all of it",
    "slots": "shared, divided by slots (estimated)",
    "pid-only": "shared, processes without pods",
    "request": "one pod each, known by its request",
    "free": "nobody's at this time",
}
_MOST = 5


def as_json(findings: Sequence[Findings]) -> str:
    """All clusters; keys sorted, the same findings give the same bytes."""
    ready = all(f.ready for f in findings)
    clusters = [{**asdict(f), "ready": f.ready} for f in findings]
    return json.dumps({"schema": 1, "ready": ready, "clusters": clusters}, indent=1, sort_keys=True) + "\n"


def as_table(findings: Sequence[Findings]) -> str:
    """All clusters, section by section; the verdict comes last, where a terminal stops."""
    return "\n".join(_clean(line) for f in findings for line in _cluster(f)) + "\n"


def _clean(line: str) -> str:
    """Names come from outside: nothing in them may steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line).rstrip()


def _cluster(f: Findings) -> list[str]:
    lines = [f"Cluster {f.cluster}, period {f.start} to {f.end}", ""]
    lines += _section("Server", _server(f))
    lines += _section("Exporters", _exporters(f))
    lines += _section("Scrapes", _scrapes(f.scrapes))
    lines += _section("Memory by pod", _memory(f))
    lines += _section("Coverage", _coverage(f))
    lines += _section("Collected and reported", _history(f.history))
    lines += _notes("Blocking", f.blocking) + _notes("Warnings", f.warnings) + _notes("Hints", f.hints)
    if f.ready:
        verdict = "can be billed now" + (f", with {counted(len(f.warnings), 'warning')}" if f.warnings else "")
    else:
        verdict = f"cannot be billed now: {counted(len(f.blocking), 'reason')}, under Blocking"
    return [*lines, *_wrapped(f"{f.cluster}, {f.period} {verdict}.", "Verdict: "), ""]


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return [title, *(_INDENT + line for line in found), ""] if found else []


def _wrapped(text: str, first: str = "", rest: str | None = None) -> list[str]:
    """`text` behind `first`, its further lines behind `rest` (or as many blanks), within the width.

    A word that is longer, such as a flag, stays whole so that it can be copied.
    """
    return textwrap.wrap(
        text, WIDTH - len(_INDENT), initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest, break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def _columns(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows as aligned columns, those of `right` to the right; the last column is wrapped."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    out = []
    for row in rows:
        cells = [
            cell.rjust(w) if i in set(right) else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=False))
        ]
        out += _wrapped(row[-1], "  ".join(cells) + "  ") or ["  ".join(cells)]
    return out


def _server(f: Findings) -> list[str]:
    s = f.server
    name = " ".join(p for p in (s.kind, s.version) if p)
    rows = [("server", f"{name} at {s.address}")]
    held = f"{s.oldest}, {s.held_days:g} days ago" if s.oldest else "no sample of any metric that is read"
    rows.append(("oldest sample", held))
    where = {"store": "from the store, as the source has no more of the period", "source": ""}[f.looked.place]
    where = where or ("" if f.looked.in_period else "which is NOT in the period: that has no GPU sample")
    rows.append(("looked at", f"{f.looked.start} to {f.looked.end}" + (f", {where}" if where else "")))
    r = f.replicas
    if r.label:
        rows.append(("replicas", f"{r.label}: {', '.join(r.values) or 'no series has it'}"))
    if r.doubled_series:
        rows.append(("doubled", f"{r.doubled_series:,} series differ only in {', '.join(r.differ_in)}"))
    return _columns(rows)


def _exporters(f: Findings) -> list[str]:
    head = ("exporter", "nodes", "GPUs", "devices", "series", "metrics")
    rows = [head, *(_exporter(e) for e in f.exporters)] if f.exporters else []
    lines = _columns(rows, right=(1, 2, 3, 4))
    if f.not_found:
        lines += _wrapped(", ".join(f.not_found), "not found: ")
    named = [h for h in f.honouring if h.renamed]
    for h in named:
        lines += _wrapped(
            f"{h.exporter}: of {h.series:,} series {h.renamed:,} name their pod in exported_pod, {h.plain:,} in pod, "
            f"{h.none:,} name none",
            "labels: ",
        )
    return lines


def _exporter(e: Exporter) -> tuple[str, ...]:
    text = ", ".join(e.metrics) or "-"
    if e.missing:
        text += f"; missing: {', '.join(e.missing)}"
    return (e.name, f"{e.nodes:,}", f"{e.gpus:,}", f"{e.devices:,}", f"{e.series:,}" if e.series else "-", text)


def _scrapes(scrapes: Sequence[Scrape]) -> list[str]:
    rows = []
    for s in scrapes:
        others = some({f"{n} {sec:g} s" for n, sec in s.others.items()})
        text = f"on {counted(s.nodes, 'node')}" + (f"; others: {others}" if others else "")
        rows.append((s.exporter, f"{s.seconds:g} s", text))
    return _columns(rows, right=(1,))


def _memory(f: Findings) -> list[str]:
    m = f.memory_by_pod
    lines = _wrapped(f"{m.how}: {m.why}")
    rows = [(f"{number:,}", _WAYS[way]) for way, number in m.devices.items()]
    if rows:
        lines += _columns([("devices", ""), *rows], right=(0,))
    if f.repeated:
        rows_ = [(r.device, f"{r.pods:,}", f"{r.rows:,}", f"{r.percent:,} %") for r in f.repeated[:_MOST]]
        metrics = sorted({r.metric for r in f.repeated})
        lines += ["", *_wrapped(f"rows of {', '.join(metrics)} that repeat one value and cannot be added:")]
        lines += _columns([("device", "pods", "rows", "add up to"), *rows_], right=(1, 2, 3))
        if len(f.repeated) > _MOST:
            lines.append(f"and {len(f.repeated) - _MOST:,} more")
    return lines


def _coverage(f: Findings) -> list[str]:
    lines = _columns([_share(s) for s in f.shares], right=(1, 2))
    if f.gpu_counts:
        rows = [
            (c.node, c.instance_type or "-", f"{c.reports:,} of {c.has:,} GPUs report") for c in f.gpu_counts[:_MOST]
        ]
        lines += ["", *_columns(rows)]
        if len(f.gpu_counts) > _MOST:
            lines.append(f"and {len(f.gpu_counts) - _MOST:,} more nodes")
    return lines


def _share(s: Share) -> tuple[str, str, str, str]:
    percent = f"{100 * s.have // s.of} %" if s.of else "-"
    return (s.what, f"{s.have:,} of {s.of:,}", percent, f"without: {', '.join(s.without)}" if s.without else "")


def _history(h: History) -> list[str]:
    rows = [("of this period", f"{h.period_collected} of {counted(h.period_days, 'day')} collected")]
    if h.since is None:
        rows.append(("in all", "nothing so far"))
        return _columns(rows)
    rows.append(("in all", f"{counted(h.collected_days, 'day')} since {h.since}"))
    for what, found in (
        ("never collected", h.days_never_collected), ("lost for good", h.days_lost),
        ("months reported", h.months_reported), ("as draft only", h.months_as_draft),
        ("never reported", h.months_never_reported),
    ):  # fmt: skip
        if found:
            rows.append((what, ", ".join(found)))
    return _columns(rows)


def _notes(title: str, notes: Sequence[Note]) -> list[str]:
    lines: list[str] = []
    told: set[str] = set()
    for n in notes:
        lines += _wrapped(f"{n.code}: {n.message}", "- ")
        lines += _wrapped("the same change as above" if n.change in told else n.change, "    -> ", "       ")
        told |= {n.change} - {""}
    return _section(title, lines)
