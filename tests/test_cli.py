"""What people type, and what comes back: pages, lines, exit codes, and one line with a hint for whatever goes wrong."""

import csv
import gzip
import hashlib
import http.server
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from click.testing import Result as Ended
from clusters import BOX, HOUR, START, Cluster, as_yaml, exclusive, instant, prices, span, write
from servers import free_port

from chargeback import __version__, cli

A_FEW_SECONDS = 30.0


def chargeback(*arguments: object, env: dict[str, str] | None = None) -> Ended:
    """A call of the command line."""
    return CliRunner().invoke(cli.main, [str(a) for a in arguments], env=env)


def done(*arguments: object, env: dict[str, str] | None = None) -> Ended:
    """A call that succeeds."""
    result = chargeback(*arguments, env=env)
    assert result.exit_code == 0, result.output
    return result


def fails(code: int, *arguments: object) -> tuple[str, str]:
    """The error and the hint of a call that ends so: one line each, and no traceback."""
    result = chargeback(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not re.match(r"(collecting|allocating) .*: \d+/\d+$", line)]
    assert [line.partition(": ")[0] for line in lines] == ["error", "hint"], result.stderr
    error, hint = (line.partition(": ")[2] for line in lines)
    assert error
    assert hint
    return error, hint


def nothing_published(folder: Path) -> bool:
    """No report under any store, whole or half, and nothing left over from writing one."""
    return not list(folder.rglob("reports/*")) and not list(folder.rglob(".*new*")) and not list(folder.rglob(".*old*"))


def hashes(folder: Path) -> dict[str, str]:
    """Each file's digest, by its path below the folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def manifest(report: Path) -> dict[str, Any]:
    """A report's manifest."""
    found: dict[str, Any] = json.loads((report / "manifest.json").read_text(encoding="utf-8"))
    return found


def charged(store: Path) -> Decimal:
    """All that was allocated."""
    costs = ds.dataset(store / "allocations", format="parquet", partitioning=None).to_table(columns=["cost"])["cost"]
    return sum(costs.to_pylist(), Decimal(0))


# The demo


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended, float]:
    """The folder of a demo, how it ended, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    began = time.monotonic()
    result = done("demo", "--output", folder)
    return folder, result, time.monotonic() - began


def test_the_demo_ends_with_what_each_team_pays_and_where_the_pages_are(example: tuple[Path, Ended, float]) -> None:
    folder, result, seconds = example
    assert seconds < A_FEW_SECONDS
    *teams, total, page = result.stdout.splitlines()
    assert page == str(folder / "reports" / "2026-10" / "index.html")
    assert Path(page).is_file()
    told = manifest(Path(page).parent)
    rows = [re.fullmatch(r"(\S.*?) +([\d,]+\.\d\d) USD", line) for line in [*teams, total]]
    read = {row[1]: Decimal(row[2].replace(",", "")) for row in rows if row}
    assert len(read) == len(rows)
    assert read.pop("total") == Decimal(told["billed"])
    assert read == {team: Decimal(amount) for team, amount in told["teams"].items()}
    assert list(read.values()) == sorted(read.values(), reverse=True)


def test_the_demo_adds_up(example: tuple[Path, Ended, float]) -> None:
    folder, _, _ = example
    report = folder / "reports" / "2026-10"
    told = manifest(report)
    assert told["draft"] == []
    assert told["reconciled"] is True
    assert sum(Decimal(amount) for amount in told["teams"].values()) == Decimal(told["billed"])
    assert charged(folder) == Decimal(told["node_cost"]) == sum(Decimal(cost) for cost in told["kinds"].values())
    with (report / "finance.csv").open(newline="", encoding="utf-8") as f:
        assert sum(Decimal(line["amount"]) for line in csv.DictReader(f)) == Decimal(told["billed"])
    for output in told["outputs"]:
        path = report / output["path"]
        assert (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) == (
            output["bytes"],
            output["sha256"],
        )
    assert {p.name for p in report.iterdir()} >= {
        "finance.csv",
        "lines.parquet",
        "index.html",
        "invoices",
        "manifest.json",
    }


def test_the_demo_twice_gives_the_same_bytes(example: tuple[Path, Ended, float], tmp_path: Path) -> None:
    # In another folder, at another hour of another year.
    folder, first, _ = example
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "clock", lambda: round(datetime(2031, 5, 6, 7, 8, tzinfo=UTC).timestamp() * 1000))
        second = done("demo", "--output", tmp_path / "again")
    assert hashes(tmp_path / "again" / "reports") == hashes(folder / "reports")
    assert hashes(tmp_path / "again" / "allocations") == hashes(folder / "allocations")
    assert second.stdout.splitlines()[:-1] == first.stdout.splitlines()[:-1]


# Run, collect, report


def test_run_prints_teams_dearest_first_then_the_total_and_the_page(tmp_path: Path) -> None:
    # 6.00 each: red's card, and one of nobody
    c = exclusive()
    c.gpu("n1", "GPU-1")
    config = write(tmp_path, c, prices("12.00", gpus=2))
    result = done("run", "-c", config, "--period", HOUR)
    assert result.stdout.splitlines() == [
        "platform   6.00 USD",
        "red        6.00 USD",
        "total     12.00 USD",
        str(tmp_path / "store" / "reports" / "2025-03-04T100000Z_2025-03-04T110000Z" / "index.html"),
    ]
    assert "collecting test" in result.stderr
    assert "\r" not in result.output  # a bar is for terminals


def test_collect_then_report_is_the_same_as_run(tmp_path: Path) -> None:
    config = write(tmp_path, exclusive())
    done("run", "-c", config, "--period", HOUR, "--output", tmp_path / "one")
    collected = done("collect", "-c", config, "--period", HOUR, "--output", tmp_path / "two")
    assert collected.stdout == ""
    assert not (tmp_path / "two" / "reports").exists()
    (tmp_path / "metrics.om").unlink()  # a report needs no source
    done("report", "-c", config, "--period", HOUR, "--output", tmp_path / "two")
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")


def test_run_again_changes_no_byte(tmp_path: Path) -> None:
    config = write(tmp_path, exclusive())
    done("run", "-c", config, "--period", HOUR)
    before = hashes(tmp_path / "store")
    done("run", "-c", config, "--period", HOUR)
    assert hashes(tmp_path / "store") == before


def test_one_period_does_not_disturb_another_of_the_same_day(tmp_path: Path) -> None:
    config = write(tmp_path, exclusive(minutes=120))
    done("run", "-c", config, "--period", span(0, 60))
    first = hashes(tmp_path / "store" / "reports")
    done("run", "-c", config, "--period", span(60, 120))
    assert charged(tmp_path / "store") == 12
    assert first.items() <= hashes(tmp_path / "store" / "reports").items()


def test_options_are_read_from_the_environment_too(tmp_path: Path) -> None:
    config = write(tmp_path, exclusive())
    env = {"CHARGEBACK_CONFIG": str(config), "CHARGEBACK_PERIOD": HOUR, "CHARGEBACK_OUTPUT": str(tmp_path / "there")}
    done("run", env=env)
    assert (tmp_path / "there" / "reports").is_dir()
    assert not (tmp_path / "store").exists()


def test_without_a_period_the_last_complete_month_is_billed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "clock", lambda: round(datetime(2025, 4, 17, tzinfo=UTC).timestamp() * 1000))
    config = write(tmp_path, exclusive(), since=START)
    done("run", "-c", config)
    (report,) = (tmp_path / "store" / "reports").iterdir()
    assert report.name == "2025-03"
    assert manifest(report)["node_cost"] == "6.000000000"


def test_a_folder_of_packed_files_is_a_source(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    for name, metrics in (("gpu", ("DCGM", "gpu")), ("kube", ("kube",))):
        lines = [line for line in exclusive().text().splitlines() if line.startswith(metrics)]
        (folder / f"{name}.om.gz").write_bytes(gzip.compress("\n".join([*lines, "# EOF\n"]).encode()))
    config = write(tmp_path, exclusive(), source={"openmetrics": "samples"})
    assert re.search(r"^red +6\.00 USD$", done("run", "-c", config, "--period", HOUR).stdout, re.MULTILINE)


@pytest.mark.parametrize("together", [False, True])
def test_several_clusters_are_one_bill(tmp_path: Path, together: bool) -> None:
    # Two of the same names, each with a card of 6.00 that red holds: 20 and 40 of 80 GiB. Each in a file of its own,
    # or both in one, told apart by a label.
    one, two = exclusive(20).seen_by(cluster="a"), exclusive(40).seen_by(cluster="b")
    (tmp_path / "a.om").write_text(one.text())
    (tmp_path / "b.om").write_text(two.text())
    sources = {n: {"openmetrics": f"{n}.om"} for n in ("a", "b")}
    if together:
        sources = {n: {"openmetrics": "metrics.om", "cluster_label": "cluster"} for n in ("a", "b")}
    clusters = [{"name": name, "source": source} for name, source in sources.items()]
    config = write(tmp_path, one.add(two), cluster=None, source=None, clusters=clusters)
    done("run", "-c", config, "--period", HOUR)
    (report,) = (tmp_path / "store" / "reports").iterdir()
    assert manifest(report)["teams"] == {"red": "12.00"}
    with (report / "finance.csv").open(newline="", encoding="utf-8") as f:
        amounts = {(line["cluster"], line["kind"]): line["amount"] for line in csv.DictReader(f)}
    assert amounts == {("a", "used"): "1.50", ("a", "idle"): "4.50", ("b", "used"): "3.00", ("b", "idle"): "3.00"}


def test_dimensions_are_columns_from_pod_then_namespace_labels(tmp_path: Path) -> None:
    c = exclusive()
    c.namespace("apps", project="of-the-namespace", phase="of-the-namespace")
    c.pod("apps/train", team="red", node="n1", labels={"label_project": "of-the-pod"})
    c.hole("kube_pod_labels", (0, 60))
    who = {"namespace": "apps", "pod": "train", "uid": "uid-of-apps-train"}
    c.series("kube_pod_labels", 1, {**who, "label_team": "red", "label_project": "of-the-pod"})
    config = write(tmp_path, c, dimensions={"project": "project", "phase": "phase"})
    done("run", "-c", config, "--period", HOUR)
    (finance,) = (tmp_path / "store").rglob("finance.csv")
    with finance.open(newline="", encoding="utf-8") as f:
        lines = list(csv.DictReader(f))
    assert {(line["x_project"], line["x_phase"]) for line in lines} == {("of-the-pod", "of-the-namespace")}


def test_init_writes_a_configuration_and_overwrites_none(tmp_path: Path) -> None:
    done("init", tmp_path / "new")
    before = hashes(tmp_path / "new")
    assert "chargeback.yaml" in before
    error, _ = fails(2, "init", tmp_path / "new")
    assert "there already" in error
    assert hashes(tmp_path / "new") == before


def test_the_version_is_printed() -> None:
    assert __version__ in done("--version").stdout


# What goes wrong: usage, 2


@pytest.mark.parametrize(
    "arguments", [["run"], ["bill"], ["run", "-c", "x", "--periods", HOUR], ["report", "--period"]]
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str]) -> None:
    result = chargeback(*arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "period",
    ["yesterday", "", "2025", "2025-13", "2025-3", "2025-02-30", "2025-03-04T10:00Z", f"{instant()}/", "1/2/3", "../x"],
)
def test_a_period_that_is_none_is_refused(tmp_path: Path, period: str) -> None:
    error, hint = fails(2, "run", "-c", write(tmp_path, exclusive()), "--period", period)
    assert "period" in error
    assert "2026-11" in hint
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("period", "why"),
    [
        ("2025-03-05/2025-03-04", "ends before it begins"),
        ("2025-03-04/2025-03-04", "ends before it begins"),
        (span(0, 58), "not on a window edge"),
        ("2999-01", "has not begun"),
        ("2199-01-01/2199-01-02", "has not begun"),
    ],
)
def test_a_period_that_cannot_be_is_refused(tmp_path: Path, period: str, why: str) -> None:
    error, _ = fails(2, "run", "-c", write(tmp_path, exclusive()), "--period", period)
    assert why in error
    assert not (tmp_path / "store").exists()


# What goes wrong: the configuration, 3


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    error, hint = fails(3, "run", "-c", tmp_path / "none.yaml", "--period", HOUR)
    assert str(tmp_path / "none.yaml") in error
    assert "chargeback init" in hint


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("cluster: [test\ncurrency: USD\n", ":2:"),
        ("cluster: test\n\tcurrency: USD\n", ":2:"),
        ("cluster: test\ncluster: other\n", "written twice"),
        ("a: &x 1\nb: *x\n", "aliases"),
        ("- cluster\n", "not a configuration"),
        ("", "not a configuration"),
        ("cluster: !!python/object/apply:os.system ['true']\n", ":1:"),
    ],
)
def test_broken_yaml_is_shown_where_it_is(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "chargeback.yaml"
    path.write_text(text)
    error, _ = fails(3, "run", "-c", path, "--period", HOUR)
    assert str(path) in error
    assert where in error


def test_a_configuration_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chargeback.yaml"
    path.write_bytes(b"\x1f\x8b\x08\x00\xff\xfe\x00")
    fails(3, "run", "-c", path, "--period", HOUR)


SECOND = {"name": "b", "source": {"openmetrics": "metrics.om"}}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"alocation": {"basis": "memory"}}, "unknown key alocation; did you mean allocation?"),
        ({"allocation": {"bassis": "memory"}}, "unknown key allocation.bassis; did you mean basis?"),
        ({"source": {"openmetric": "metrics.om"}}, "did you mean openmetrics?"),
        ({"ownership": {"rules": [{"match": {"namespaces": "a"}, "team": "b"}]}}, "did you mean namespace?"),
        ({"allocation": {"basis": "memroy"}}, "allocation.basis"),
        (
            {"source": {"openmetrics": "metrics.om", "prometheus": {"url": "http://localhost:9090"}}},
            "exactly one of openmetrics and prometheus",
        ),
        ({"source": {}}, "exactly one of openmetrics and prometheus"),
        ({"source": None}, "source is missing"),
        ({"clusters": [SECOND]}, "exactly one of cluster and clusters"),
        ({"cluster": None}, "exactly one of cluster and clusters"),
        ({"cluster": None, "source": None, "clusters": [SECOND, SECOND]}, "two clusters have one name"),
        ({"cluster": "../prod"}, "cluster's name"),
        ({"timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"timezone": "../../etc/passwd"}, "time zone database"),
        ({"window": "five minutes"}, "window"),
        ({"max_gap": "0s"}, "max_gap"),
        ({"currency": "dollars"}, "currency"),
        ({"pricing": None}, "pricing is missing"),
        ({"pricing": {"books": []}}, "pricing.books"),
        ({"exporters": ["dcgm"]}, "no profile is called dcgm"),
        ({"source": {"prometheus": {"url": "localhost:9090"}}}, "http://"),
        ({"ownership": {"rules": [{"match": {}, "team": "a", "split": {"a": 100}}]}}, "exactly one of team and split"),
    ],
)
def test_a_configuration_that_is_wrong_or_contradicts_itself_is_explained(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    config = write(tmp_path, exclusive(), **settings)
    error, _ = fails(3, "run", "-c", config, "--period", HOUR)
    assert says in error
    assert not (tmp_path / "store").exists()


ENTRY = {"instance_type": BOX, "per_hour": "6.00"}


@pytest.mark.parametrize(
    ("book", "says"),
    [
        (prices(prices=[ENTRY, ENTRY]), "two prices for one key at once"),
        (prices(prices=[{"instance_type": BOX, "per_hour": 6.5}]), "decimal in quotes"),
        (prices(prices=[{"instance_type": BOX, "per_hour": "six"}]), "plain decimal"),
        (prices(prices=[{"instance_type": BOX, "per_hour": "1e3"}]), "plain decimal"),
        (prices(prices=[{"instance_type": BOX, "per_hour": "-6.00"}]), "per_hour"),
        (prices(prices=[{"instance_type": BOX, "per_hour": "0.0000000001"}]), "per_hour"),
        (prices(prices=[{"per_hour": "6.00"}]), "exactly one of node and instance_type"),
        (prices(prices=[ENTRY | {"per_hours": "6.00"}]), "did you mean per_hour?"),
        (prices(currency="EUR"), "EUR"),
        (prices(as_of="some day"), "as_of"),
    ],
)
def test_a_wrong_price_book_is_explained(tmp_path: Path, book: dict[str, Any], says: str) -> None:
    error, _ = fails(3, "run", "-c", write(tmp_path, exclusive(), book), "--period", HOUR)
    assert "prices.yaml" in error
    assert says in error
    assert not (tmp_path / "store").exists()


def test_a_missing_price_book_is_named(tmp_path: Path) -> None:
    config = write(tmp_path, exclusive(), pricing={"books": ["other.yaml"]})
    assert "other.yaml" in fails(3, "run", "-c", config, "--period", HOUR)[0]
    config = write(tmp_path, exclusive(), pricing={"books": ["builtin:nowhere"]})
    assert "builtin:nowhere" in fails(3, "run", "-c", config, "--period", HOUR)[0]


# What goes wrong: the source, 4


def from_server(folder: Path, url: str, **more: Any) -> Path:
    """A configuration that reads from a server."""
    return write(folder, exclusive(), source={"prometheus": {"url": url, **more}})


def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    error, hint = fails(4, "run", "-c", from_server(tmp_path, url), "--period", HOUR)
    assert url in error
    assert "source.prometheus.url" in hint
    assert nothing_published(tmp_path)


Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A server that answers everything so; gives its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def failing(request: http.server.BaseHTTPRequestHandler) -> None:
    """An error of the server."""
    request.send_response(500)
    request.end_headers()
    request.wfile.write(b"<html>no</html>")


def cut_short(request: http.server.BaseHTTPRequestHandler) -> None:
    """A reply of which the end is missing."""
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", "100000")
    request.end_headers()
    request.wfile.write(b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"DCG')


def not_an_answer(request: http.server.BaseHTTPRequestHandler) -> None:
    """A whole reply that is no answer of Prometheus."""
    request.send_response(200)
    request.end_headers()
    request.wfile.write(b"<!doctype html><title>Log in</title>")


@pytest.mark.parametrize("answer", [failing, cut_short, not_an_answer])
def test_a_server_that_fails_or_cuts_its_reply_short_is_worth_a_retry_later(tmp_path: Path, answer: Answer) -> None:
    with answering(answer) as url:
        error, _ = fails(4, "run", "-c", from_server(tmp_path, url, timeout=5), "--period", HOUR)
    assert url in error
    assert nothing_published(tmp_path)


# What goes wrong: data, 5


def test_an_instance_type_without_a_price_is_listed(tmp_path: Path) -> None:
    c = exclusive()
    c.node("n2", "mystery-box", region="east")
    c.gpu("n2", "GPU-1")
    error, hint = fails(5, "run", "-c", write(tmp_path, c), "--period", HOUR)
    assert "mystery-box in east, on-demand" in error
    assert "instance_type: mystery-box" in hint
    assert nothing_published(tmp_path)


def no_timestamp(text: str) -> str:
    return text.replace("# EOF", 'DCGM_FI_DEV_FB_USED{UUID="GPU-0"} 7\n# EOF')


def no_value(text: str) -> str:
    return text.replace("# EOF", 'DCGM_FI_DEV_FB_USED{UUID="GPU-0"}\n# EOF')


def no_number(text: str) -> str:
    return text.replace("# EOF", 'DCGM_FI_DEV_FB_USED{UUID="GPU-0"} lots 1741082400\n# EOF')


def open_quote(text: str) -> str:
    return text.replace("# EOF", 'DCGM_FI_DEV_FB_USED{UUID="GPU-0} 7 1741082400\n# EOF')


def two_values(text: str) -> str:
    return text.replace("# EOF", 'kube_node_info{node="n1",provider_id=""} 2 1741082400.000\n# EOF')


def without_end(text: str) -> str:
    return text.replace("# EOF\n", "")


def in_the_middle_of_a_line(text: str) -> str:
    return text[: len(text) // 2]


def nothing(text: str) -> str:
    return ""


@pytest.mark.parametrize(
    "damage", [no_timestamp, no_value, no_number, open_quote, two_values, without_end, in_the_middle_of_a_line, nothing]
)
def test_a_damaged_file_of_samples_is_refused(tmp_path: Path, damage: Callable[[str], str]) -> None:
    config = write(tmp_path, damage(exclusive().text()))
    error, _ = fails(5, "run", "-c", config, "--period", HOUR)
    assert str(tmp_path / "metrics.om") in error
    assert nothing_published(tmp_path)
    assert not (tmp_path / "store" / "usage").exists()


def test_a_missing_file_of_samples_is_named(tmp_path: Path) -> None:
    config = write(tmp_path, exclusive(), source={"openmetrics": "nowhere.om"})
    assert "nowhere.om" in fails(5, "run", "-c", config, "--period", HOUR)[0]
    (tmp_path / "empty").mkdir()
    config = write(tmp_path, exclusive(), source={"openmetrics": "empty"})
    assert "holds no .om" in fails(5, "run", "-c", config, "--period", HOUR)[0]


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[: len(raw) // 2], lambda raw: raw[:-9], lambda raw: raw[:40] + b"?" * 60]
)
def test_a_packed_file_that_is_cut_or_damaged_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    (tmp_path / "samples.om.gz").write_bytes(damage(gzip.compress(exclusive().text().encode())))
    config = write(tmp_path, exclusive(), source={"openmetrics": "samples.om.gz"})
    assert "samples.om.gz" in fails(5, "run", "-c", config, "--period", HOUR)[0]
    assert nothing_published(tmp_path)


@pytest.mark.parametrize("period", ["2025-03-06", span(600, 660), "2025-03-02", "2025-02"])
def test_a_period_without_data_is_an_error_not_a_bill_of_nothing(tmp_path: Path, period: str) -> None:
    fails(5, "run", "-c", write(tmp_path, exclusive()), "--period", period)
    assert nothing_published(tmp_path)


def test_a_report_of_what_was_never_collected_is_an_error(tmp_path: Path) -> None:
    fails(5, "report", "-c", write(tmp_path, exclusive()), "--period", HOUR)
    assert nothing_published(tmp_path)


@pytest.mark.parametrize("name", ["partition.json", "devices.parquet"])
def test_evidence_that_was_damaged_is_named(tmp_path: Path, name: str) -> None:
    config = write(tmp_path, exclusive())
    done("collect", "-c", config, "--period", HOUR)
    (damaged,) = (tmp_path / "store" / "usage").rglob(f"date=2025-03-04/{name}")
    damaged.write_bytes(b"{")
    error, hint = fails(5, "report", "-c", config, "--period", HOUR)
    assert str(damaged) in error
    assert "collect" in hint
    assert nothing_published(tmp_path)


# What goes wrong: writing, 7


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_an_output_that_cannot_be_written_is_named(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    config = write(tmp_path, exclusive())
    error, _ = fails(7, "run", "-c", config, "--period", HOUR, "--output", tmp_path / where)
    assert str(tmp_path / "file") in error
    assert (tmp_path / "file").read_text() == "not a folder"


def test_the_demo_says_so_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert str(tmp_path / "file") in fails(7, "demo", "--output", tmp_path / "file")[0]


def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write(tmp_path, exclusive())
    done("run", "-c", config, "--period", HOUR)
    before = hashes(tmp_path / "store" / "reports")
    real = Path.write_text

    def full(path: Path, *args: Any, **more: Any) -> int:
        if path.name == "manifest.json":
            raise OSError(28, "No space left on device", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "write_text", full)
    error, _ = fails(7, "report", "-c", config, "--period", HOUR)
    assert "No space left" in error
    assert hashes(tmp_path / "store" / "reports") == before
    assert [p.name for p in (tmp_path / "store" / "reports").iterdir()] == ["2025-03-04T100000Z_2025-03-04T110000Z"]


def test_a_bug_is_told_from_what_users_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(cli, "clock", broken)
    result = chargeback("run", "-c", write(tmp_path, exclusive()), "--period", HOUR)
    assert result.exit_code == 1
    assert "a bug of ours" in result.stderr


# Names from outside

HOSTILE = (
    "<script>alert(1)</script>",
    "two\nlines",
    "../../../outside",
    "=cmd|'/C calc'!A0",
    "+1+1",
    "-2",
    "@SUM(A1)",
    "\t=1",
    'quotes " and , commas',
    "{{ 7 * 7 }}",
    "</title><img src=x onerror=alert(1)>",
    "a\u202egnp.exe",
    "CON",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A run on a cluster where teams, namespaces, pods, nodes, models and cost centers are named so."""
    folder = tmp_path_factory.mktemp("hostile")
    c = Cluster()
    for i, name in enumerate(HOSTILE):
        node, namespace = f"n{i}{name}", name.replace("/", "|")
        c.node(node, region=name)
        c.pod(f"{namespace}/{name}", team=name, node=node, owner=("Job", name) if i % 2 else ("<none>", "<none>"))
        c.gpu(node, f"GPU-{i}", used=20, pods=[f"{namespace}/{name}"], model=name)
    config = write(
        folder / "work", c, ownership={"platform": HOSTILE[0] + "p"},
        teams={name.strip(): {"cost_center": name, "contact": name} for name in HOSTILE},
    )  # fmt: skip
    return folder, done("run", "-c", config, "--period", HOUR)


def pages(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every page below, with its text."""
    for path in sorted(folder.rglob("*.html")):
        yield path, path.read_text(encoding="utf-8")


def test_hostile_names_are_text_in_pages(hostile: tuple[Path, Ended]) -> None:
    folder, _ = hostile
    found = list(pages(folder))
    assert len(found) == len(HOSTILE) + 1
    for path, text in found:
        assert "alert(1)</script>" not in text, path
        assert "<img" not in text, path
        assert "\u202e" not in text, path
    everything = "".join(text for _, text in found)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in everything
    assert "{{ 7 * 7 }}" in everything


def test_hostile_names_are_defused_in_csv(hostile: tuple[Path, Ended]) -> None:
    folder, _ = hostile
    files = sorted(folder.rglob("*.csv"))
    assert len(files) == len(HOSTILE) + 1
    for path in files:
        text = path.read_bytes().decode("utf-8")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        assert {len(row) for row in rows} == {len(rows[0])}, path
        for row in rows[1:]:
            for name, cell in zip(rows[0], row, strict=True):
                number = re.fullmatch(r"-?\d+(\.\d+)?", cell) and name in ("amount", "gpu_hours", "memory_gib_hours")
                assert number or not re.match(r"\s*[=+\-@\t\r\n]", cell), (path, cell)
    finance = next(path for path in files if path.name == "finance.csv")
    with finance.open(newline="", encoding="utf-8") as f:
        teams = {row["team"] for row in csv.DictReader(f)}
    assert teams == {
        name.strip() if not re.match(r"\s*[=+\-@]", name.strip()) else f"'{name.strip()}" for name in HOSTILE
    }


def test_hostile_names_are_no_paths(hostile: tuple[Path, Ended]) -> None:
    folder, _ = hostile
    assert {p.name for p in folder.iterdir()} == {"work"}
    assert {p.name for p in (folder / "work").iterdir()} == {"metrics.om", "prices.yaml", "chargeback.yaml", "store"}
    (report,) = (folder / "work" / "store" / "reports").iterdir()
    teams = [p.name for p in (report / "invoices").iterdir()]
    assert len(teams) == len(HOSTILE)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in teams)
    assert len({name.lower() for name in teams}) == len(teams)
    assert "con" not in teams


def test_hostile_names_forge_no_lines_on_the_terminal(hostile: tuple[Path, Ended]) -> None:
    _, result = hostile
    lines = result.stdout.splitlines()
    assert len(lines) == len(HOSTILE) + 2  # the teams, the total, the page
    assert all(line.isprintable() for line in lines)


def test_hostile_names_are_themselves_in_the_manifest(hostile: tuple[Path, Ended]) -> None:
    folder, _ = hostile
    (report,) = (folder / "work" / "store" / "reports").iterdir()
    assert set(manifest(report)["teams"]) == {name.strip() for name in HOSTILE}


def test_a_hostile_name_in_an_error_stays_on_its_line(tmp_path: Path) -> None:
    c = exclusive()
    c.node("n2", "box\nerror: all is well\x1b[2J")
    c.gpu("n2", "GPU-1")
    error, hint = fails(5, "run", "-c", write(tmp_path, c), "--period", HOUR)
    assert "\x1b" not in error + hint


def test_a_price_book_may_be_written_by_hand(tmp_path: Path) -> None:
    config = write(tmp_path, exclusive())
    book = as_yaml(prices()).replace("'6.00'", '"6.00"  # as agreed')
    (tmp_path / "prices.yaml").write_text(f"# prices\n{book}", encoding="utf-8")
    assert re.search(r"^red +6\.00 USD$", done("run", "-c", config, "--period", HOUR).stdout, re.MULTILINE)
