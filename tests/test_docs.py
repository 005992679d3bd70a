"""The documentation tells the truth: what it names exists, what exists is named, and its figures are what comes out."""

import ast
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import click
import clusters
import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from chargeback import cli, config, exporters, prices, schemas
from chargeback.errors import ChargebackError
from chargeback.evidence.collect import TABLES
from chargeback.period import zone_of
from chargeback.reports.words import KINDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "chargeback"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
NOT_YET = {"C4", "D3", "P3", "P4", "P5", "L1"}
"""Rules that are not implemented, or in part."""
COUNTS = {"W": 3, "C": 5, "D": 4, "M": 7, "H": 5, "S": 5, "G": 3, "T": 3, "R": 4, "Q": 4, "P": 6, "L": 2}
RULES = [f"{letter}{i}" for letter, n in COUNTS.items() for i in range(1, n + 1)]
"""Every rule, in order."""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next of its rank or above; without code blocks' own lines of `#`."""
    plain = re.sub(r"^```.*?^```", lambda m: re.sub(r"(?m)^#", " #", m[0]), text, flags=re.DOTALL | re.MULTILINE)
    level = heading.count("#", 0, heading.index(" "))
    found = re.search(rf"^{re.escape(heading)}$\n(.*?)(?=^#{{1,{level}}} |\Z)", plain, re.DOTALL | re.MULTILINE)
    assert found, f"there is no heading {heading!r}"
    return found[1]


def own(text: str, heading: str) -> str:
    """What stands right below a heading, up to any other."""
    return re.split(r"(?m)^#+ ", section(text, heading))[0]


def table(text: str) -> list[list[str]]:
    """The rows of the first table in a text, without its heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    end = next((i for i, line in enumerate(text.splitlines()) if line.startswith("|")), 0)
    rows = []
    for line in text.splitlines()[end:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    assert lines, "there is no table"
    return rows[2:]


def after(text: str, mark: str) -> str:
    """What follows a comment in the text that marks it for a test."""
    return text.split(f"<!-- {mark} -->", 1)[1]


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)


def coded(cell: str) -> str:
    found = re.search(r"`([^`]+)`", cell)
    assert found, f"nothing in code in {cell!r}"
    return found[1]


# Configuration


def models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in models(a)]


def keys(model: type[BaseModel], prefix: str = "", leaves: Iterable[type] = ()) -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a model and of those below it, with its path: `a.b`, `list[].c`, `map.NAME.d`."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        below = [m for m in models(field.annotation) if m not in leaves]
        if not below or path == "clusters[].source":
            yield path, field
            continue
        text = str(field.annotation)
        yield path, field
        inner = f"{path}.*." if "dict[" in text else f"{path}[]." if "tuple[" in text else f"{path}."
        yield from keys(below[0], inner, leaves)


HEADINGS = (
    "## The whole report",
    "## Where samples come from",
    "## How cost is divided",
    "## Who pays",
    "## What nodes cost",
)
DOCUMENTED: list[tuple[type[BaseModel], tuple[str, ...], tuple[type, ...]]] = [
    (config.Config, HEADINGS, (config.Profile,)),
    (prices.Book, ("## Price book",), ()),
    (config.Profile, ("## A mapping of your own",), (config.Metric, config.MetricLabels)),
    (config.Metric, ("### Metrics",), ()),
    (config.MetricLabels, ("### Labels",), ()),
]
IDS = [m.__name__ for m, _, _ in DOCUMENTED]


def normal(path: str) -> str:
    return re.sub(r"\.[A-Z]+\.", ".*.", path)


def described(headings: tuple[str, ...]) -> dict[str, list[str]]:
    text = read("docs/configuration.md")
    return {normal(coded(row[0])): row for h in headings for row in table(own(text, h))}


@pytest.mark.parametrize(("model", "headings", "leaves"), DOCUMENTED, ids=IDS)
def test_every_key_is_described_and_every_described_key_exists(
    model: type[BaseModel], headings: tuple[str, ...], leaves: tuple[type, ...]
) -> None:
    known = dict(keys(model, leaves=leaves))
    if model is config.Profile:  # a process metric is written without a level of its own
        known |= {f"process_memory.{n}": f for n, f in config.ProcessMemory.model_fields.items()}
        known = {k: f for k, f in known.items() if not k.startswith("process_memory.labels.")}
    holders = {k.rsplit(".", 1)[0].removesuffix("[]").removesuffix(".*") for k in known if "." in k}
    rows = described(headings)
    assert sorted(set(known) - set(rows) - holders) == []
    assert sorted(set(rows) - set(known)) == []


@pytest.mark.parametrize(("model", "headings", "leaves"), DOCUMENTED, ids=IDS)
def test_the_defaults_are_those_of_the_program(
    model: type[BaseModel], headings: tuple[str, ...], leaves: tuple[type, ...]
) -> None:
    fields = dict(keys(model, leaves=leaves))
    for path, row in described(headings).items():
        field, said = fields.get(path), row[2]
        if field is None or said.startswith("[see"):
            continue
        if said == "required":
            assert field.is_required(), path
            continue
        assert not field.is_required(), path
        default = field.get_default(call_default_factory=True)
        if said == "none":
            assert not default, path
            continue
        kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        text = coded(said)
        value = text if field.annotation is str and text != '""' else yaml.safe_load(text)
        assert TypeAdapter(kind).validate_python(value) == default, path


def test_the_choices_are_those_of_the_program() -> None:
    for model, headings, leaves in DOCUMENTED:
        fields = dict(keys(model, leaves=leaves))
        for path, row in described(headings).items():
            annotation = fields[path].annotation if path in fields else None
            words = [a for a in (annotation, *get_args(annotation)) if str(get_origin(a)) == "typing.Literal"]
            choices = {str(v) for a in words for v in get_args(a)}
            said = set(re.findall(r"`([^`]+)`", row[1]))
            if choices - {"auto"} and "`" in row[1]:
                assert said == choices, path


def shape(data: dict[str, Any]) -> Callable[[dict[str, Any]], BaseModel]:
    return prices.Book.model_validate if "as_of" in data else config.Config.model_validate


def test_every_yaml_of_the_configuration_page_loads() -> None:
    blocks = fenced(read("docs/configuration.md"), "yaml")
    assert len(blocks) >= 4
    least = {"cluster": "c", "source": {"openmetrics": "m.om"}, "pricing": {"books": ["b.yaml"]}}
    for block in blocks:
        data = yaml.safe_load(block)
        shape(data)(data if "currency" in data else least | data)


def test_the_complete_example_is_complete_and_loads_as_a_file(tmp_path: Path) -> None:
    block = fenced(section(read("docs/configuration.md"), "## A complete example"), "yaml")[0]
    (tmp_path / "chargeback.yaml").write_text(block, encoding="utf-8")
    loaded, _ = config.load(tmp_path / "chargeback.yaml")
    assert set(yaml.safe_load(block)) == set(config.Config.model_fields) - {"clusters"}
    assert loaded.system_pods == config.DEFAULT_SYSTEM_PODS


def test_shipped_profiles_are_named() -> None:
    text = own(read("docs/configuration.md"), "## A mapping of your own")
    for name in exporters.shipped():
        assert f"`{name}`" in text
    assert f"{('No', 'One', 'Two', 'Three', 'Four', 'Five')[len(exporters.shipped())]} profiles are shipped" in text


def test_init_writes_files_that_load_as_they_are(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli.main, ["init", str(tmp_path / "new")], catch_exceptions=False)
    assert made.exit_code == 0
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["chargeback.yaml", "prices.yaml"]
    loaded, _ = config.load(tmp_path / "new" / "chargeback.yaml")
    read_ = prices.load(loaded.pricing.books, tmp_path / "new", loaded.currency, zone_of(loaded.timezone))
    assert loaded.source is not None
    assert loaded.source.prometheus is not None
    assert read_.entries
    assert any(e.node for e in read_.entries)


def test_what_init_comments_out_loads_too() -> None:
    opened = re.sub(r"(?m)^( *)#(?=\S)", r"\1", read("templates/init/chargeback.yaml"))
    shown = config.Config.model_validate(yaml.safe_load(opened))
    assert shown.teams
    assert shown.nodes
    assert shown.dimensions
    assert shown.since
    assert len(shown.ownership.rules) == 2
    assert shown.source is not None
    assert shown.source.replica_label
    assert shown.source.prometheus is not None
    assert shown.source.prometheus.basic_auth
    assert set(yaml.safe_load(opened)) == set(config.Config.model_fields) - {
        "clusters",
        "scrape_interval",
        "system_pods",
    }


# Problems


def codes_in(path: Path) -> set[str]:
    """Problem codes by the calls that report them: their first argument."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) < 3 or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("add", "find", "Problem"):
            texts = [
                n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            found |= {t for t in texts if re.fullmatch(r"[a-z]+(-[a-z]+)*", t)}
    return found


def test_every_problem_has_a_paragraph_and_every_paragraph_a_problem() -> None:
    source = set().union(*(codes_in(p) for p in PACKAGE.rglob("*.py")))
    text = read("docs/problems.md")
    assert sorted(re.findall(r"(?m)^### (.+)$", text)) == sorted(source)
    assert len(source) > 15


def test_every_problem_says_what_it_does_to_the_money_and_what_to_do() -> None:
    text = read("docs/problems.md")
    for code in re.findall(r"(?m)^### (.+)$", text):
        paragraph = section(text, f"### {code}")
        assert re.match(r"\n[A-Za-z]", paragraph), f"{code}: what it means is missing"
        assert "- **Money**:" in paragraph, code
        assert "- **Do**:" in paragraph, code


# Command line


def commands() -> dict[str, click.Command]:
    return dict(cli.main.commands)


def shell(text: str) -> Iterator[str]:
    """Commands that a text shows: lines of its shell blocks, and pieces of code."""
    for block in (*fenced(text, "sh"), *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)):
        yield from block.splitlines()


def test_every_command_and_option_that_is_shown_exists() -> None:
    shown = set()
    for page in PAGES:
        for line in shell(page.read_text(encoding="utf-8")):
            found = re.match(r" *(?:docker run .* |\S*/)?chargeback ([a-z]\w*)(.*)$", line.split("#")[0])
            if not found:
                continue
            name, rest = found[1], re.split(r"&&|[|;]", found[2])[0]
            assert name in commands(), f"{page.name}: {line}"
            shown.add(name)
            known = {o for p in commands()[name].params for o in (*p.opts, *p.secondary_opts)}
            assert {w for w in shlex.split(rest) if w.startswith("-")} <= known | {"--help"}, f"{page.name}: {line}"
    assert shown == set(commands())


def test_the_readme_describes_every_command_and_option() -> None:
    text = section(read("README.md"), "## The first real run")
    assert {coded(row[0]).split()[1] for row in table(text)} == set(commands())
    said = set(re.findall(r"`(-[-\w]+)`", text))
    real = {o for c in commands().values() for p in c.params if isinstance(p, click.Option) for o in p.opts}
    assert said == real
    variables = {str(p.envvar) for c in commands().values() for p in c.params if p.envvar}
    assert set(re.findall(r"`(CHARGEBACK_\w+)`", text)) == variables


def test_the_exit_codes_are_those_of_the_errors() -> None:
    rows = {int(row[0]) for row in table(section(read("README.md"), "## Exit codes"))}
    assert rows == {0, ChargebackError.exit_code, *(e.exit_code for e in ChargebackError.__subclasses__())}


def test_make_targets_that_are_shown_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", read("Makefile")))
    for page in PAGES:
        for line in shell(page.read_text(encoding="utf-8")):
            if found := re.match(r"make ([a-z-]+)", line):
                assert found[1] in targets, f"{page.name}: {line}"


# Links and names


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", re.sub(r"`", "", heading).lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_and_headings_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8"))
            assert anchor in {slug(h) for h in headings}, f"{page.name}: {target}"


def defined(path: Path) -> set[str]:
    """Functions and classes in a file, or in all files of a folder."""
    files = [path] if path.is_file() else sorted(path.glob("*.py"))
    nodes = (n for f in files for n in ast.walk(ast.parse(f.read_text(encoding="utf-8"))))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def test_the_table_of_rules_has_every_rule_and_names_what_exists() -> None:
    text = read("docs/model.md")
    rows = table(section(text, "## The rules"))
    assert [row[0] for row in rows if row[0] in NOT_YET] == []
    assert [row[0] for row in rows] == [r for r in RULES if r not in NOT_YET | {"L2"}]
    for rule, _, code in rows:
        for place in code.split(";"):
            path, *names = re.findall(r"`([^`]+)`", place)
            assert (PACKAGE / path).exists(), f"{rule}: {path}"
            assert set(names) <= defined(PACKAGE / path), f"{rule}: {place}"
    assert set(re.findall(r"\b([A-Z]\d)\b", section(text, "## Not implemented"))) == NOT_YET


def test_modules_that_the_model_page_names_exist() -> None:
    text = section(read("docs/model.md"), "## The way of the data")
    named = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(named) > 5
    for name in named:
        assert (PACKAGE / name).exists(), name


def test_the_changelog_names_what_there_is() -> None:
    text = section(read("CHANGELOG.md"), "## [Unreleased]")
    for word in (
        "collect",
        "report",
        "run",
        "demo",
        "Prometheus",
        "CSV",
        "HTML",
        "Parquet",
        "CronJob",
        *exporters.shipped(),
    ):
        assert word in text, word


# Figures


def amounts(text: str) -> dict[str, Decimal]:
    """Team and amount, as the program prints them."""
    return {m[1]: Decimal(m[2].replace(",", "")) for m in re.finditer(r"(?m)^(\S+) +([\d,]+\.\d\d) USD$", text)}


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the demo prints, and its folder."""
    folder = tmp_path_factory.mktemp("docs") / "chargeback-demo"
    made = CliRunner().invoke(cli.main, ["demo", "--output", str(folder)], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    return made.stdout, folder


def tree(text: str) -> Iterator[str]:
    """The paths of an indented tree; what stands behind two blanks is a comment."""
    above: list[str] = []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = re.split(r"\s{2,}", line.strip())[0]
        above = [*above[:depth], name.rstrip("/")]
        yield "/".join(above)


def test_the_readme_shows_the_demo_as_it_is(demo: tuple[str, Path]) -> None:
    printed, folder = demo
    shown = fenced(after(read("README.md"), "demo"), "text")[0]
    assert amounts(shown) == amounts(printed)
    assert [line for line in printed.splitlines() if line.endswith("USD")] == shown.splitlines()[:-1]
    assert printed.splitlines()[-1].endswith(shown.splitlines()[-1].removeprefix("..."))
    paths = list(tree(fenced(after(read("README.md"), "tree"), "text")[0]))
    assert len(paths) > 10
    for path in paths:
        assert (folder.parent / path).exists(), path
    manifest = json.loads((folder / "reports" / "2026-10" / "manifest.json").read_text(encoding="utf-8"))
    documented = set(re.findall(r"(?m)^### (.+)$", read("docs/problems.md")))
    assert {p["code"] for p in manifest["problems"]} <= documented
    code = fenced(read("docs/data.md"), "python")[0].replace("chargeback-demo", folder.as_posix())
    exec(compile(code, "docs/data.md", "exec"), {"print": lambda _: None})


def hour(folder: Path, **allocation: str) -> clusters.Result:
    """The README's card of 24 GiB, in four slots, and its three pods."""
    c = clusters.Cluster()
    labels = {"label_nvidia_com_gpu_replicas": "4", "label_nvidia_com_gpu_sharing_strategy": "time-slicing"}
    c.node("n1", labels=labels)
    c.gpu("n1", used=20, size=24)
    for i, (name, gib) in enumerate((("chat", 12), ("rank", 6), ("embed", 2))):
        c.pod(f"apps/{name}", team=name, node="n1")
        c.process("n1", f"apps/{name}", gib, pid=str(i))
    book = clusters.prices("4.80", gib=24)
    return clusters.run(folder, c, book, allocation=allocation or {"basis": "memory", "idle": "holders"})


def test_the_readmes_example_is_what_the_program_charges(tmp_path: Path) -> None:
    result = hour(tmp_path)
    *rows, total = table(after(read("README.md"), "example"))
    for who, _, used, idle, pays in rows:
        if who == "platform":
            assert round(result.charges[who, "unallocated"], 6) == Decimal(idle.split()[0])
        else:
            assert round(result.charges[who, "used"], 6) == Decimal(used)
            assert round(result.charges[who, "idle"], 6) == Decimal(idle)
        assert result.invoices[who] == Decimal(pays)
    assert result.node_cost == sum(result.invoices.values()) == Decimal(total[4])


def test_the_readmes_policies_are_what_the_program_charges(tmp_path: Path) -> None:
    rows = table(after(read("README.md"), "policies"))
    assert len(rows) == 5
    for i, (policy, *paid) in enumerate(rows):
        result = hour(tmp_path / str(i), **yaml.safe_load(coded(policy)))
        teams = ("chat", "rank", "embed", "platform")
        assert [result.invoices.get(t, Decimal(0)) for t in teams] == [Decimal(p) for p in paid], policy


# Files and columns


COLUMNS: list[tuple[str, list[str]]] = [
    *((f"### {name}.parquet", schema.names) for name, schema in TABLES.items()),
    ("### charges.parquet", schemas.ALLOCATIONS.names),
    ("### finance.csv", schemas.LINES.names),
]


@pytest.mark.parametrize(("heading", "columns"), COLUMNS, ids=[h[4:] for h, _ in COLUMNS])
def test_columns_are_described_in_their_order(heading: str, columns: list[str]) -> None:
    assert [coded(row[0]) for row in table(own(read("docs/data.md"), heading))] == columns


def test_what_a_run_leaves_is_described(tmp_path: Path) -> None:
    result = hour(tmp_path)
    text = read("docs/data.md")
    assert {coded(row[0]) for row in table(own(text, "### manifest.json"))} == set(result.manifest)
    files = {p.relative_to(result.folder).as_posix() for p in result.folder.rglob("*") if p.is_file()}
    said = {coded(row[0]) for row in table(own(text, "## reports"))}
    assert {re.sub(r"invoices/[^/]+/", "invoices/TEAM/", f) for f in files} == said
    usage = [p for p in (result.store / "usage").rglob("*") if p.is_file()]
    assert {f"### {p.name}" for p in usage} <= set(re.findall(r"(?m)^### .+$", text))
    part = json.loads(next(p for p in usage if p.suffix == ".json").read_text(encoding="utf-8"))
    assert set(part) <= set(re.findall(r"`(\w+)`", own(text, "### partition.json")))
    assert {coded(row[0]) for row in table(own(text, "### Kinds of charge"))} <= set(KINDS)
    assert {r["kind"] for r in result.rows} <= {coded(row[0]) for row in table(own(text, "### Kinds of charge"))}


def test_no_page_names_an_index_or_a_machine() -> None:
    for page in [*PAGES, *sorted((ROOT / "templates" / "init").glob("*.yaml"))]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"--(extra-)?index-url|/home/|/root/|/tmp/", text), page.name
