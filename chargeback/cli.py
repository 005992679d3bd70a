"""The command line: parse, wire, print, exit. Data goes to stdout, talk to stderr."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from chargeback import __version__, config, demo, doctor, pipeline, pruning, resources
from chargeback.collecting import How
from chargeback.errors import ChargebackError, UsageError
from chargeback.evidence.gpu import NodeShare
from chargeback.ledger import Store, locked, writing
from chargeback.period import Period, parse_period
from chargeback.reports import Report


def clock() -> int:
    """Now, in ms."""
    return time.time_ns() // 1_000_000


def progress(what: str, steps: Iterable[Any], total: int) -> Iterator[Any]:
    """A bar on a terminal, a line a step elsewhere."""
    if sys.stderr.isatty():
        with click.progressbar(steps, length=total, label=what, file=sys.stderr) as bar:
            yield from bar
        return
    for i, step in enumerate(steps, 1):
        yield step
        click.echo(f"{what}: {i}/{total}", err=True)


class Group(click.Group):
    """Turns every expected failure into one line, a hint and its exit code; never a traceback for what users cause."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ChargebackError as e:
            _fail(e.message, e.hint, e.exit_code)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OSError as e:
            _fail(f"{e.filename or 'system'}: {e.strerror or e}", "check the path, permissions and free space", 7)
        except Exception as e:  # noqa: BLE001 - the one place where a bug becomes an exit code
            traceback.print_exc()
            _fail(f"a bug: {type(e).__name__}: {e}", "please report it with the lines above", 1)


def _fail(message: str, hint: str, code: int) -> None:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    if hint:
        click.echo(f"hint: {' '.join(hint.split())}", err=True)
    raise SystemExit(code)


@click.group(cls=Group, context_settings={"auto_envvar_prefix": "CHARGEBACK", "help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Bills GPU nodes of Kubernetes clusters to teams by GPU memory, to the nano-unit."""


CONFIG = click.option(
    "-c", "--config", "path", type=click.Path(path_type=Path), required=True, envvar="CHARGEBACK_CONFIG",
    help="The configuration file.",
)  # fmt: skip
PERIOD = click.option(
    "--period", envvar="CHARGEBACK_PERIOD", help="2026-11, 2026-11-03 or START/END; default: the last complete month."
)
OUTPUT = click.option(
    "--output", type=click.Path(path_type=Path), envvar="CHARGEBACK_OUTPUT", help="Folder in place of `store`."
)


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that work on a period; each also reads CHARGEBACK_<OPTION>."""
    return CONFIG(PERIOD(OUTPUT(function)))


def _job(path: Path, period: str | None, output: Path | None) -> tuple[pipeline.Job, Period]:
    settings, origin = config.load(path, output)
    now = clock()
    chosen = parse_period(period, settings.timezone, settings.window, now)
    return pipeline.prepare(settings, origin, path.resolve().parent, now, progress), chosen


def _share(ctx: click.Context, param: click.Parameter, value: str | None) -> NodeShare:  # noqa: ARG001 - click's form
    if value is None:
        return NodeShare()
    index, _, of = value.partition("/")
    if not (index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of) <= 1000):
        raise UsageError(f"--shard {value}: not I/N", "write 1/4, 2/4, 3/4 and 4/4 in four runs")
    return NodeShare(int(index) - 1, int(of))


JOBS = click.option(
    "--jobs", type=click.IntRange(1, 64), default=os.cpu_count() or 1, envvar="CHARGEBACK_JOBS",
    help="Processes at once; default: one a core. Their number changes nothing in the result.",
)  # fmt: skip
REFRESH = click.option(
    "--refresh", is_flag=True, envvar="CHARGEBACK_REFRESH", help="Pull again what is complete already."
)
SHARD = click.option(
    "--shard", "share", callback=_share, envvar="CHARGEBACK_SHARD", metavar="I/N",
    help="Only the I-th of N shares of the nodes; the day is whole when all N runs are done.",
)  # fmt: skip


@main.command()
@_options
@JOBS
@REFRESH
@SHARD
def collect(path: Path, period: str | None, output: Path | None, jobs: int, refresh: bool, share: NodeShare) -> None:
    """Pulls evidence, one partition a UTC day and cluster; skips what is complete."""
    job, chosen = _job(path, period, output)
    with locked(job.store.root, "chargeback collect", job.now):
        pipeline.collect(job, chosen, how=How(refresh, jobs, share))


@main.command()
@_options
@JOBS
def report(path: Path, period: str | None, output: Path | None, jobs: int) -> None:
    """Allocates and writes the reports from collected evidence."""
    job, chosen = _job(path, period, output)
    with locked(job.store.root, "chargeback report", job.now):
        _tell(*pipeline.report(job, chosen, jobs))


@main.command()
@_options
@JOBS
def run(path: Path, period: str | None, output: Path | None, jobs: int) -> None:
    """Collects, then reports."""
    job, chosen = _job(path, period, output)
    with locked(job.store.root, "chargeback run", job.now):
        pipeline.collect(job, chosen, how=How(jobs=jobs))
        _tell(*pipeline.report(job, chosen, jobs))


@main.command(name="doctor")
@_options
@click.option("--json", "as_json", is_flag=True, envvar="CHARGEBACK_JSON", help="For machines.")
def doctor_(path: Path, period: str | None, output: Path | None, as_json: bool) -> None:
    """Asks the source what is there and says what can be billed from it, and what is missing."""
    job, chosen = _job(path, period, output)
    raise SystemExit(doctor.doctor_command(job, chosen, as_json))


@main.command()
@CONFIG
@OUTPUT
@click.option("--keep", required=True, envvar="CHARGEBACK_KEEP", help="Months or days to keep: 13M, 400d.")
@click.option("--yes", is_flag=True, envvar="CHARGEBACK_YES", help="Remove; without it, only say what would go.")
def prune(path: Path, output: Path | None, keep: str, yes: bool) -> None:
    """Shows the store's size by day, and removes evidence that is older than what is to be kept."""
    settings, _ = config.load(path, output)
    store, now = Store(settings.store), clock()
    first = pruning.before(keep, now)
    with locked(store.root, "chargeback prune", now):
        found = pruning.days(store)
        old = [d for d in found if d.day < first]
        for day in found:
            click.echo(f"{day.cluster}  {day.day}  {day.size / 2**20:8.1f} MiB  {'goes' if day in old else 'stays'}")
        size = sum(d.size for d in old) / 2**20
        click.echo(f"{len(old)} of {len(found)} days lie before {first}: {size:.1f} MiB", err=True)
        if yes:
            pruning.remove(old)
        elif old:
            click.echo("nothing was removed; --yes removes them", err=True)


@main.command(name="demo")
@click.option(
    "--output", type=click.Path(path_type=Path), default=Path("chargeback-demo"), envvar="CHARGEBACK_OUTPUT",
    show_default=True, help="Folder to write to.",
)  # fmt: skip
def demo_(output: Path) -> None:
    """Runs the whole job on a built-in example month; no server, no network."""
    texts = demo.config(output)
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    path = next(iter(texts))
    settings, origin = config.load(path)
    job = pipeline.prepare(settings, origin, path.resolve().parent, demo.NOW, progress)
    chosen = parse_period(demo.PERIOD, settings.timezone, settings.window, job.now)
    source = demo.source()
    pipeline.collect(job, chosen, lambda _cluster, _config: source)
    _tell(*pipeline.report(job, chosen))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Writes a commented starter configuration."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for template in sorted((resources.templates() / "init").glob("*.yaml")):
        target = folder / template.name
        if target.exists():
            raise UsageError(f"{target} is there already", "choose another folder, or move the file away")
    for template in sorted((resources.templates() / "init").glob("*.yaml")):
        with writing(folder / template.name):
            (folder / template.name).write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
        click.echo(folder / template.name)
    click.echo(f"next: edit them, then chargeback run -c {folder / 'chargeback.yaml'}", err=True)


def _tell(made: Report, folder: Path) -> None:
    """What each team pays, and where the pages are."""
    if made.draft:
        click.echo(
            f"draft: {made.draft[0]}" + (f" (and {len(made.draft) - 1} more)" if made.draft[1:] else ""), err=True
        )
    serious = [p for p in made.problems if p.severity != "info"]
    if serious:
        codes = ", ".join(sorted({p.code for p in serious}))
        click.echo(f"{len(serious)} findings on data quality ({codes}): see {folder / 'index.html'}", err=True)
    width = max(len(t) for t in [*made.teams, "total"])
    money = max(len(f"{v:,}") for v in [*made.teams.values(), made.billed])
    for team, amount in sorted(made.teams.items(), key=lambda kv: (-kv[1], kv[0])):
        shown = team.encode("unicode_escape").decode("ascii") if not team.isprintable() else team
        click.echo(f"{shown:<{width}}  {amount:>{money},} {made.config.currency}")
    click.echo(f"{'total':<{width}}  {made.billed:>{money},} {made.config.currency}")
    click.echo(f"{folder / 'index.html'}")
