import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BASE, HOURS
from servers import free_port, prometheus
from simulated import Answer, Evaluator, Request, failure, serving, success

from chargeback.config import BasicAuth, PrometheusConfig
from chargeback.errors import ChargebackError, ConfigError, DataError, SourceUnreachable
from chargeback.period import DAY, HOUR
from chargeback.sources import Samples, SourceInfo, Windows, replies, transport
from chargeback.sources.memory import MemorySource
from chargeback.sources.prometheus import PrometheusSource

W = 300_000
START, END = BASE * 1000, (BASE + HOURS * 3600) * 1000
SECRET = "s3cr3t-value-that-nobody-may-see"


@contextmanager
def source(url: str, **settings: Any) -> Iterator[PrometheusSource]:
    with PrometheusSource(PrometheusConfig(url=url, **settings), backoff=0.001) as found:
        yield found


def plain(found: Windows) -> list[tuple[Any, ...]]:
    """Rows with labels, and the extremes of each series, in one order; NaN as text so that it equals itself."""
    labels = [tuple(sorted(ls.items())) for ls in found.labels]
    rows = [
        (labels[s], w, str(t), c)
        for s, w, t, c in zip(
            found.series.tolist(), found.window.tolist(), found.total.tolist(), found.count.tolist(), strict=True
        )
    ]
    edges = [(k, str(a), str(b)) for k, a, b in zip(labels, found.low.tolist(), found.high.tolist(), strict=True)]
    return sorted(rows) + sorted(edges)


QUESTIONS = [
    {"metric": "memory"},
    {"metric": "memory", "values": False},
    {"metric": "memory", "by": ["node"]},
    {"metric": "memory", "by": []},
    {"metric": "memory", "by": ["gpu", "absent"], "values": False},
    {"metric": "memory", "matchers": {"pod": ["dies", "forty-five"]}},
    {"metric": "memory", "matchers": {"gpu": ['A "quoted" \\ {a|b}.*'], "node": ["n0", "n.", "x"]}},
    {"metric": "memory", "matchers": {"gpu": ["", "x"]}},
    {"metric": "memory", "matchers": {"pod": []}},
    {"metric": "edges"},
    {"metric": "edges", "by": ["at"]},
    {"metric": "twice", "by": ["gpu"]},
    {"metric": "nothing"},
]


@pytest.mark.parametrize("asked", QUESTIONS, ids=str)
@pytest.mark.parametrize("server", ["prometheus_url", "victoria_url"])
def test_a_server_and_a_file_of_the_same_samples_give_the_same_windows(
    request: pytest.FixtureRequest, file: MemorySource, server: str, asked: dict[str, Any]
) -> None:
    with source(request.getfixturevalue(server)) as remote:
        found = remote.windows(start=START, end=END, window=W, **asked)
    assert plain(found) == plain(file.windows(start=START, end=END, window=W, **asked))


@pytest.mark.parametrize("asked", QUESTIONS, ids=str)
def test_ranges_without_their_left_end_give_the_same_windows_as_prometheus_3_would(
    file: MemorySource, asked: dict[str, Any]
) -> None:
    with serving(Evaluator(file)) as server, source(server.url) as remote:
        found = remote.windows(start=START, end=END, window=W, **asked)
        assert remote.info() == SourceInfo("prometheus", "3.5.0", server.url)
    assert plain(found) == plain(file.windows(start=START, end=END, window=W, **asked))


@pytest.mark.parametrize("by", [None, ["kind"], []], ids=str)
def test_what_is_not_a_number_is_kept_and_hides_no_extreme(
    prometheus_url: str, file: MemorySource, by: list[str] | None
) -> None:
    with source(prometheus_url) as remote:
        found = remote.windows("special", START, END, W, matchers={"kind": ["mixed"]}, by=by)
    assert plain(found) == plain(file.windows("special", START, END, W, matchers={"kind": ["mixed"]}, by=by))
    assert np.isnan(found.total).sum() == 1
    assert (found.low.tolist(), found.high.tolist()) == ([-np.inf], [np.inf])


def test_a_series_that_is_never_a_number_has_counts_and_no_extremes(prometheus_url: str) -> None:
    with source(prometheus_url) as remote:
        found = remote.windows("special", START, END, W, matchers={"kind": ["never"]})
    assert found.count.tolist() == [10] * 12
    assert np.isnan(found.total).all()
    assert np.isnan(found.low).all()


def test_rows_are_sorted_and_each_series_and_window_comes_once(prometheus_url: str) -> None:
    with source(prometheus_url) as remote:
        found = remote.windows("memory", START, END, W)
    pairs = list(zip(found.series.tolist(), found.window.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert [sorted(ls.items()) for ls in found.labels] == sorted(sorted(ls.items()) for ls in found.labels)
    assert all("__name__" not in ls for ls in found.labels)


@pytest.mark.parametrize("server", ["prometheus_url", "victoria_url", "simulated"])
@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, W), (W - 1, W + 1), (-HOUR, HOURS * HOUR), (2 * W, 2 * W)])
def test_raw_samples_are_those_of_the_half_open_time_asked_for(
    request: pytest.FixtureRequest, file: MemorySource, server: str, start: int, end: int
) -> None:
    with serving(Evaluator(file)) as local:
        url = local.url if server == "simulated" else request.getfixturevalue(server)
        with source(url) as remote:
            for metric in ("edges", "memory"):
                found = remote.samples(metric, START + start, START + end, {"pod": ["", "dies", "thirty"]})
                same_samples(found, file.samples(metric, START + start, START + end, {"pod": ["", "dies", "thirty"]}))


def same_samples(a: Samples, b: Samples) -> None:
    assert a.labels == b.labels
    assert a.series.tolist() == b.series.tolist()
    assert a.time.tolist() == b.time.tolist()
    assert a.value.tolist() == b.value.tolist()


@pytest.mark.parametrize("server", ["prometheus_url", "victoria_url", "simulated"])
def test_the_oldest_sample_is_found_to_the_millisecond_with_few_requests(
    request: pytest.FixtureRequest, file: MemorySource, server: str
) -> None:
    with serving(Evaluator(file)) as local:
        url = local.url if server == "simulated" else request.getfixturevalue(server)
        with source(url) as remote:
            assert remote.oldest(["memory", "edges"]) == START - 1
            assert remote.oldest(["memory", "nothing"]) == START
            assert remote.oldest(["nothing"]) is None
            assert remote.oldest([]) is None
        assert len(local.asked) < 100


def test_the_oldest_sample_is_found_where_the_index_knows_no_times(file: MemorySource) -> None:
    evaluate = Evaluator(file)

    def answer(request: Request) -> Answer:
        if request.path.endswith("/values"):
            return success(["memory", "edges"])
        return evaluate(request)

    config = PrometheusConfig(url="http://x")
    with serving(answer) as server:
        config = config.model_copy(update={"url": server.url})
        with PrometheusSource(config, backoff=0.001, now=lambda: BASE + 40 * 86400) as remote:
            assert remote.oldest(["edges"]) == START - 1


@pytest.mark.parametrize("server", ["prometheus_url", "victoria_url"])
def test_metrics_with_samples_are_named(request: pytest.FixtureRequest, server: str) -> None:
    with source(request.getfixturevalue(server)) as remote:
        assert {"memory", "edges", "twice"} <= remote.metrics(START, END)
        assert remote.metrics(START - 90 * DAY, START - 80 * DAY) == set()


def test_the_servers_are_told_apart(prometheus_url: str, victoria_url: str) -> None:
    with source(prometheus_url) as p, source(victoria_url) as v:
        assert p.info().kind == "prometheus"
        assert p.info().version.startswith("2.")
        assert v.info().kind == "victoriametrics"


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        ({"version": "0.36.1", "revision": "r"}, "thanos"),
        ({"application": "Grafana Mimir", "version": "2.14.0", "revision": "r"}, "mimir"),
        ({"version": "2.24.0"}, "unknown"),
        (None, "unknown"),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_of_a_server_whose_version_says_nothing_a_query_tells_how_its_ranges_end(
    file: MemorySource, build: dict[str, str] | None, kind: str, closed: bool
) -> None:
    evaluate = Evaluator(file, closed=closed)

    def answer(request: Request) -> Answer:
        query = request.params.get("query", "")
        if request.path.endswith("buildinfo"):
            return success(build) if build else Answer("404 page not found", 404)
        if query.startswith("label_set"):
            return failure(400, "bad_data", 'unknown function with name "label_set"')
        if "vector(1)" in query:
            number = "3" if closed else "2"
            return success({"resultType": "vector", "result": [{"metric": {}, "value": [1, number]}]})
        return evaluate(request)

    with serving(answer) as server, source(server.url) as remote:
        assert remote.info().kind == kind
        assert plain(remote.windows("edges", START, END, W)) == plain(file.windows("edges", START, END, W))


def test_slices_of_any_length_give_the_same(prometheus_url: str, file: MemorySource) -> None:
    expected = plain(file.windows("memory", START, END, W)), plain(file.windows("twice", START, END, W, by=["gpu"]))
    for most in (500, 5000):
        with source(prometheus_url, max_samples=most) as remote:
            found = (
                plain(remote.windows("memory", START, END, W)),
                plain(remote.windows("twice", START, END, W, by=["gpu"])),
            )
        assert found == expected
    with source(prometheus_url, max_samples=1) as remote:
        found_alone = plain(remote.windows("memory", START, START + HOUR, W))
    assert found_alone == plain(file.windows("memory", START, START + HOUR, W))


def test_no_request_asks_for_more_points_or_samples_than_allowed(file: MemorySource) -> None:
    with serving(Evaluator(file)) as server, source(server.url, max_samples=1000) as remote:
        remote.windows("memory", START, END, W)
        for asked in server.queries()[1:]:
            span = float(asked.params["end"]) - float(asked.params["start"]) if "end" in asked.params else 0
            assert (span / 300 + 1) * 38 <= 1000
    with serving(Evaluator(file)) as server, source(server.url) as remote:
        remote.windows("memory", START - 90 * DAY, START + 30 * DAY, W)
        points = [
            (float(r.params["end"]) - float(r.params["start"])) / float(r.params["step"]) + 1
            for r in server.queries()
            if "end" in r.params
        ]
        assert max(points) == 10_000


def test_a_real_server_that_takes_few_samples_is_asked_in_smaller_slices(text: Path, file: MemorySource) -> None:
    with prometheus(text, "--query.max-samples=400") as url, source(url) as remote:
        assert plain(remote.windows("memory", START, END, W)) == plain(file.windows("memory", START, END, W))
        same_samples(remote.samples("memory", START, START + 6 * HOUR), file.samples("memory", START, START + 6 * HOUR))


def test_long_lists_of_values_are_cut_into_questions_that_fit_a_url(
    prometheus_url: str, file: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = ["dies", *(f"no-such.pod+{i}" for i in range(2000)), "forty-five"]
    with serving(Evaluator(file)) as server, source(server.url) as remote:
        found = plain(remote.windows("memory", START, START + HOUR, W, matchers={"pod": pods}, by=["node"]))
        assert {r.method for r in server.asked} == {"GET"}
        assert len(server.queries()) > 10
    expected = plain(file.windows("memory", START, START + HOUR, W, matchers={"pod": pods}, by=["node"]))
    assert found == expected
    with source(prometheus_url) as remote:
        assert plain(remote.windows("memory", START, START + HOUR, W, matchers={"pod": pods}, by=["node"])) == expected
    monkeypatch.setattr(transport, "LONGEST_URL", 100)
    with source(prometheus_url) as remote:
        assert plain(remote.windows("memory", START, START + HOUR, W, matchers={"pod": pods}, by=["node"])) == expected


def test_a_query_that_fits_no_url_goes_as_a_form(file: MemorySource) -> None:
    matchers = {"pod": ["x" * 9000, "dies"]}
    with serving(Evaluator(file)) as server, source(server.url) as remote:
        found = remote.windows("memory", START, START + HOUR, W, matchers=matchers)
        assert "POST" in {r.method for r in server.asked}
    assert plain(found) == plain(file.windows("memory", START, START + HOUR, W, matchers=matchers))


def test_no_more_requests_than_allowed_are_under_way(file: MemorySource) -> None:
    evaluate = Evaluator(file)

    def slowly(request: Request) -> Answer:
        time.sleep(0.01)
        return evaluate(request)

    with serving(slowly) as server, source(server.url, concurrency=3, max_samples=5000) as remote:
        threads = [
            threading.Thread(target=remote.windows, args=("memory", START, START + 12 * HOUR, W)) for _ in range(2)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert server.most == 3


# A server that misbehaves


def misbehaving(held: MemorySource, wrong: Callable[[Request, int], Answer | None]) -> Callable[[Request], Answer]:
    """The right answer unless `wrong` has another; it is given how often that request came before."""
    evaluate, seen, lock = Evaluator(held), dict[str, int](), threading.Lock()

    def answer(request: Request) -> Answer:
        with lock:
            key = json.dumps([request.path, request.params])
            before = seen.get(key, 0)
            seen[key] = before + 1
        if "memory" not in request.params.get("query", ""):
            return evaluate(request)
        return wrong(request, before) or evaluate(request)

    return answer


def width(request: Request) -> float:
    """Seconds that a query covers."""
    if "end" in request.params:
        return float(request.params["end"]) - float(request.params["start"]) + 300
    return int(request.params["query"].split("[")[1].split("ms]")[0]) / 1000


PASSING: dict[str, Callable[[Request, int], Answer | None]] = {
    "a reset": lambda r, n: Answer(None) if n < 2 else None,
    "a reply cut short": lambda r, n: Answer('{"status":"success","da', length=500) if n < 2 else None,
    "JSON cut short": lambda r, n: Answer('{"status":"success","data":{"result":[{"values":[[1,"2') if n < 2 else None,
    "invalid JSON": lambda r, n: Answer("{status: success}") if n < 2 else None,
    "an empty body": lambda r, n: Answer("") if n < 2 else None,
    "JSON that says nothing": lambda r, n: Answer("{}") if n < 2 else None,
    "a list": lambda r, n: Answer("[]") if n < 2 else None,
    "bad gzip": lambda r, n: Answer(b"no gzip", headers={"Content-Encoding": "gzip"}) if n < 2 else None,
    "503": lambda r, n: failure(503, "unavailable", "starting") if n < 1 else None,
    "502 of a gateway": lambda r, n: Answer("<html>bad gateway</html>", 502) if n < 2 else None,
    "429": lambda r, n: Answer("slow down", 429, {"Retry-After": "0"}) if n < 2 else None,
    "500": lambda r, n: failure(500, "internal", "oops") if n < 2 else None,
    "200 with an internal error": lambda r, n: failure(200, "internal", "oops") if n < 2 else None,
    "422 until small": lambda r, n: failure(422, "execution", "too many samples") if width(r) > 3600 else None,
    "422 until one window": lambda r, n: failure(422, "execution", "too many samples") if width(r) > 300 else None,
    "503 until small": lambda r, n: failure(503, "timeout", "query timed out") if width(r) > 7200 else None,
    "504 until small": lambda r, n: Answer("gateway time-out", 504) if width(r) > 7200 else None,
    "200 with a time-out until small": lambda r, n: failure(200, "timeout", "late") if width(r) > 7200 else None,
    "fewer points allowed": lambda r, n: (
        failure(400, "bad_data", "exceeded maximum resolution of 12 points") if width(r) > 3600 else None
    ),
}


@pytest.mark.parametrize("what", PASSING)
def test_what_passes_or_suits_a_smaller_slice_changes_nothing(file: MemorySource, what: str) -> None:
    with serving(misbehaving(file, PASSING[what])) as server, source(server.url) as remote:
        found = remote.windows("memory", START, START + 5 * HOUR, W)
        assert remote.warnings() == []
    assert plain(found) == plain(file.windows("memory", START, START + 5 * HOUR, W))


def test_raw_samples_of_a_busy_server_are_all_there_once(file: MemorySource) -> None:
    def busy(request: Request, _: int) -> Answer | None:
        return failure(422, "execution", "too many samples") if width(request) > 4000 else None

    with serving(misbehaving(file, busy)) as server, source(server.url) as remote:
        found = remote.samples("memory", START + 1, START + 5 * HOUR + 1)
    same_samples(found, file.samples("memory", START + 1, START + 5 * HOUR + 1))


def test_a_slow_server_is_asked_for_less_then_given_up(file: MemorySource) -> None:
    def slow(request: Request, _: int) -> Answer | None:
        return Answer(json.dumps({"status": "success", "data": {}}), drip=0.05) if width(request) > 7200 else None

    with serving(misbehaving(file, slow)) as server, source(server.url, timeout=0.4) as remote:
        found = remote.windows("memory", START, START + 3 * HOUR, W, values=False)
    assert plain(found) == plain(file.windows("memory", START, START + 3 * HOUR, W, values=False))
    with (
        serving(misbehaving(file, lambda r, n: Answer("x" * 100, drip=0.05))) as server,
        source(server.url, timeout=0.2) as remote,
    ):
        began = time.monotonic()
        assert "no whole answer within 0.2 s" in fails(remote, SourceUnreachable, hours=0)
        assert time.monotonic() - began < 5


def fails(remote: PrometheusSource, error: type[ChargebackError], hours: int = 5) -> str:
    with pytest.raises(error) as caught:
        remote.windows("memory", START, START + (hours * HOUR or W), W)
    assert type(caught.value) is error
    assert caught.value.hint
    assert caught.value.__cause__ is None
    assert SECRET not in caught.value.message + caught.value.hint
    return caught.value.message


FAILING: list[tuple[str, Answer, type[ChargebackError], str]] = [
    (
        "HTML",
        Answer("<!DOCTYPE html><title>Sign in</title>", headers={"Content-Type": "text/html"}),
        SourceUnreachable,
        "web page",
    ),
    (
        "a redirect",
        Answer("", 302, {"Location": f"https://login.example/?token={SECRET}"}),
        SourceUnreachable,
        "login.example",
    ),
    ("401", Answer("who are you", 401), SourceUnreachable, "refuses us (HTTP 401: who are you)"),
    ("403", Answer("<html>no</html>", 403), SourceUnreachable, "refuses us (HTTP 403)"),
    ("404", Answer("404 page not found", 404), SourceUnreachable, "no Prometheus API there"),
    ("a reset", Answer(None), SourceUnreachable, "closed without an answer"),
    ("a reply cut short", Answer('{"status":"suc', length=500), SourceUnreachable, "cut short"),
    ("JSON cut short", Answer('{"status":"success","data":{"result":[{'), SourceUnreachable, "no whole answer"),
    ("400", failure(400, "bad_data", "parse error: unexpected end"), DataError, "parse error: unexpected end"),
    ("200 with bad_data", failure(200, "bad_data", "parse error"), DataError, "parse error"),
    ("200 with another error", failure(200, "internal", "no disk"), SourceUnreachable, "no disk"),
    ("422 for ever", failure(422, "execution", "too many samples"), DataError, "even the smallest slice"),
    ("503 for ever", failure(503, "unavailable", "not ready"), SourceUnreachable, "not ready"),
    ("500 for ever", failure(500, "internal", "oops"), SourceUnreachable, "HTTP 500: oops"),
    ("a secret echoed", failure(400, "bad_data", f"bad tenant {SECRET}"), DataError, "bad tenant ***"),
    ("data of a wrong form", success({"resultType": "matrix", "result": 5}), SourceUnreachable, "no whole answer"),
    ("no data", success(None), SourceUnreachable, ""),
    (
        "a count of a half",
        success({"result": [{"metric": {}, "values": [[BASE + 300, "0.5"]]}]}),
        SourceUnreachable,
        "inconsistent",
    ),
    (
        "times not asked for",
        success({"result": [{"metric": {}, "values": [[BASE + 1, "5"]]}]}),
        SourceUnreachable,
        "inconsistent",
    ),
    (
        "a series twice",
        success({"result": [{"metric": {}, "values": [[BASE + 300, "5"]]}] * 2}),
        SourceUnreachable,
        "inconsistent",
    ),
    ("a native histogram", success({"result": [{"metric": {}, "histograms": []}]}), DataError, "native histogram"),
]


@pytest.mark.parametrize(("what", "answer", "error", "says"), FAILING, ids=[f[0] for f in FAILING])
def test_what_does_not_pass_is_an_error_with_an_exit_code_and_no_secret(
    file: MemorySource, what: str, answer: Answer, error: type[ChargebackError], says: str
) -> None:
    with (
        serving(misbehaving(file, lambda r, n: answer)) as server,
        source(server.url, headers={"X-Scope-OrgID": SECRET}) as remote,
    ):
        message = fails(remote, error, hours=0)
    assert says in message
    assert error.exit_code in (4, 5)


def test_an_empty_answer_is_no_error_here(file: MemorySource) -> None:
    empty = success({"resultType": "matrix", "result": []})
    with serving(misbehaving(file, lambda r, n: empty)) as server, source(server.url) as remote:
        found = remote.windows("memory", START, END, W)
        raw = remote.samples("memory", START, END)
    assert (found.labels, found.series.size, raw.time.size) == ([], 0, 0)


def test_sums_without_their_counts_are_asked_for_again_then_refused(file: MemorySource) -> None:
    for times, good in ((1, True), (99, False)):

        def wrong(request: Request, before: int, times: int = times) -> Answer | None:
            is_sum = request.params["query"].startswith("sum_over_time")
            return success({"resultType": "matrix", "result": []}) if is_sum and before < times else None

        with serving(misbehaving(file, wrong)) as server, source(server.url) as remote:
            if good:
                found = remote.windows("memory", START, START + HOUR, W)
                assert plain(found) == plain(file.windows("memory", START, START + HOUR, W))
            else:
                assert "sums and counts" in fails(remote, SourceUnreachable)


def test_warnings_are_kept_and_notes_are_not(file: MemorySource) -> None:
    evaluate = Evaluator(file)

    def answer(request: Request) -> Answer:
        given = evaluate(request)
        if "over_time" not in request.params.get("query", ""):
            return given
        notes = ["PromQL info: a hint", "store-gateway 3 is away"]
        return Answer(json.dumps(json.loads(str(given.body)) | {"warnings": notes, "infos": ["x"]}))

    with serving(answer) as server, source(server.url) as remote:
        remote.windows("memory", START, START + HOUR, W)
        assert remote.warnings() == ["store-gateway 3 is away"]


def test_a_partial_answer_is_a_warning(file: MemorySource) -> None:
    partial = Answer('{"status":"success","isPartial":true,"data":{"resultType":"matrix","result":[]}}')
    with serving(misbehaving(file, lambda r, n: partial)) as server, source(server.url) as remote:
        remote.windows("memory", START, START + HOUR, W)
        assert "partial" in remote.warnings()[0]


def test_nobody_listening_is_said_with_the_reason() -> None:
    with source(f"http://user:{SECRET}@127.0.0.1:{free_port()}") as remote:
        assert "Connection refused" in fails(remote, SourceUnreachable)


def test_a_host_without_tls_is_said(file: MemorySource) -> None:
    with serving(Evaluator(file)) as server, source(server.url.replace("http:", "https:")) as remote:
        assert "TLS failed" in fails(remote, SourceUnreachable)


def test_credentials_headers_and_parameters_go_along(file: MemorySource, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with (
        serving(Evaluator(file)) as server,
        source(
            server.url, bearer_token_file=token, headers={"X-Scope-OrgID": "team-a"}, params={"dedup": "true"}
        ) as remote,
    ):
        remote.metrics(START, END)
        token.write_text("second\n")
        remote.windows("memory", START, START + HOUR, W)
        assert server.asked[0].headers["Authorization"] == "Bearer first"
        assert {r.headers["Authorization"] for r in server.asked[1:]} == {"Bearer second"}
        assert {r.headers["X-Scope-OrgID"] for r in server.asked} == {"team-a"}
        assert {r.params["dedup"] for r in server.asked} == {"true"}
    password = tmp_path / "password"
    password.write_text("öffne dich")
    with (
        serving(Evaluator(file)) as server,
        source(server.url, basic_auth=BasicAuth(username="me", password_file=password)) as remote,
    ):
        remote.metrics(START, END)
        assert server.asked[0].headers["Authorization"] == "Basic bWU6w7ZmZm5lIGRpY2g="
    with serving(Evaluator(file)) as server, source(server.url.replace("//", "//me:p%40ss@")) as remote:
        remote.metrics(START, END)
        assert server.asked[0].headers["Authorization"] == "Basic bWU6cEBzcw=="
        assert remote.info().address == server.url


@pytest.mark.parametrize("key", ["bearer_token_file", "ca_file", "cert_file", "key_file"])
def test_a_file_of_the_configuration_that_is_not_there_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*nothing"):
        PrometheusSource(PrometheusConfig.model_validate({"url": "http://127.0.0.1:1", key: tmp_path / "nothing"}))


def test_a_token_that_is_no_token_is_not_shown(file: MemorySource, tmp_path: Path) -> None:
    token = tmp_path / "token"
    for text in (f"{SECRET}\nmore", f"{SECRET} more", f"{SECRET}ö", ""):
        token.write_text("good")
        with serving(Evaluator(file)) as server, source(server.url, bearer_token_file=token) as remote:
            token.write_text(text)
            assert "bearer_token_file" in fails(remote, SourceUnreachable)


def test_a_header_that_cannot_be_sent_is_not_shown(file: MemorySource) -> None:
    with serving(Evaluator(file)) as server, source(server.url, headers={"X-Key": f"{SECRET}\n"}) as remote:
        assert "no request can be made" in fails(remote, ConfigError)


def test_answers_are_packed_unless_they_come_from_here_or_the_configuration_says_so() -> None:
    def encoding(url: str, **headers: str) -> object:
        config = PrometheusConfig(url=url, headers=headers)
        return transport.Session(config, lambda _: None).headers["accept-encoding"]

    assert encoding("https://prometheus.example") == "gzip"
    assert encoding("http://localhost:9090") == encoding("http://[::1]:9090/x") == "identity"
    assert encoding("http://127.0.0.1:9090", **{"Accept-Encoding": "gzip"}) == "gzip"


def test_packed_answers_are_read(file: MemorySource) -> None:
    evaluate = Evaluator(file)

    def packed(request: Request) -> Answer:
        return Answer(gzip.compress(str(evaluate(request).body).encode()), headers={"Content-Encoding": "gzip"})

    with serving(packed) as server, source(server.url) as remote:
        found = remote.windows("memory", START, START + HOUR, W)
    assert plain(found) == plain(file.windows("memory", START, START + HOUR, W))


# Decoding


def decoded(text: str) -> list[tuple[dict[str, str], list[int], list[str]]]:
    found = [replies.series(e) for e in replies.decode(text.encode())["data"]["result"]]
    return [(s.labels, s.time.tolist(), [str(v) for v in s.value.tolist()]) for s in found]


@pytest.mark.parametrize("blank", ["", " "])
def test_a_reply_is_read_the_same_with_and_without_blanks(blank: str) -> None:
    document = {
        "data": {
            "result": [
                {"metric": {"a": '"values":[[1,"2"]]', "e": ""}, "values": [[1, "NaN"], [1.001, "+Inf"], [2, "-Inf"]]},
                {"metric": {}, "values": []},
                {"metric": {"values": "x"}, "values": [[3, "1e-7"]]},
                {"metric": {"é": "☃"}, "value": [4.5, "0.1"]},
            ]
        }
    }
    assert decoded(json.dumps(document, separators=("," + blank, ":" + blank))) == [
        ({"a": '"values":[[1,"2"]]'}, [1000, 1001, 2000], ["nan", "inf", "-inf"]),
        ({}, [], []),
        ({"values": "x"}, [3000], ["1e-07"]),
        ({"é": "☃"}, [4500], ["0.1"]),
    ]


@pytest.mark.parametrize(
    "values",
    [
        '[[1,"2"],[3]]',
        '[[1,"2"],[3,"4",5]]',
        '[[1,"2"],3,"4"]]',
        '[[1,"x"]]',
        '[[1,""]]',
        '[["1","2"],[]]',
        '[[1,"2"]',
        '[[1,"2"],[3,"4',
        "[[1,2]]",
        '[[1,null],[2,"3"]]',
        "[[]]",
        '[1,"2"]',
    ],
)
def test_pairs_that_are_not_whole_are_an_error(values: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded('{"data":{"result":[{"metric":{},"values":' + values + "}]}}")
