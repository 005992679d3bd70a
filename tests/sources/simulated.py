"""A local HTTP server that answers as a Prometheus would, from samples in memory, or misbehaves as a test wants.

It evaluates only the queries that `PrometheusSource` makes. With `closed=False` its ranges leave out their left end,
as those of Prometheus 3 do.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from chargeback.sources import Labels
from chargeback.sources.memory import MemorySource

ALL = 2**52
_QUERY = re.compile(
    r"(?:(?P<op>\w+) (?:by \((?P<by>[^)]*)\) )?\(|(?P<all>sum|count)\()?"
    r"(?:(?P<function>\w+_over_time)\()?(?P<selector>.+)\[(?P<length>\d+)ms\](?: offset (?P<offset>\d+)ms)?\)*",
    re.DOTALL,
)
_MATCHER = re.compile(r'(\w+)(=~?)"((?:[^"\\]|\\.)*)"')


@dataclass
class Request:
    """What a client asked: path, query and form parameters together, headers."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]


@dataclass
class Answer:
    """What it gets: a status and body; with `length`, that is said to be the body's length; None closes at once."""

    body: bytes | str | None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    drip: float = 0.0


@dataclass
class Server:
    """A running server: its address, the requests so far and the most that were under way at once."""

    url: str
    asked: list[Request] = field(default_factory=list)
    most: int = 0

    def queries(self) -> list[Request]:
        """The requests that carry a query for data."""
        return [r for r in self.asked if "over_time" in r.params.get("query", "")]


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Iterator[Server]:
    """A server that answers each request by `answer`."""
    http = _Http(answer)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield http.server
    finally:
        http.stop.set()
        http.shutdown()
        thread.join()
        http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.server = Server(f"http://127.0.0.1:{self.server_address[1]}")
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.busy = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        http, parts = self.server, urlsplit(self.path)
        params = dict(parse_qsl(parts.query) + parse_qsl(body.decode()))
        request = Request(self.command, parts.path, params, dict(self.headers))
        with http.lock:
            http.busy += 1
            http.server.most = max(http.server.most, http.busy)
            http.server.asked.append(request)
        try:
            given = http.answer(request)
        finally:
            with http.lock:
                http.busy -= 1
        try:
            self._send(given)
        except OSError:
            self.close_connection = True

    def _send(self, given: Answer) -> None:
        if given.body is None:
            self.close_connection = True
            self.connection.close()
            return
        data = given.body.encode() if isinstance(given.body, str) else given.body
        self.send_response(given.status)
        for name, value in {"Content-Type": "application/json", **given.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if given.length is None else given.length))
        self.end_headers()
        if given.length is not None:
            self.close_connection = True
        step = 1 if given.drip else max(1, len(data))
        for i in range(0, len(data), step):
            if given.drip and self.server.stop.wait(given.drip):
                return
            self.wfile.write(data[i : i + step])


def success(data: Any, **more: Any) -> Answer:
    """A success as the API writes it."""
    return Answer(json.dumps({"status": "success", "data": data, **more}, separators=(",", ":")))


def failure(status: int, kind: str, text: str) -> Answer:
    """An error as the API writes it."""
    return Answer(json.dumps({"status": "error", "errorType": kind, "error": text}), status)


class Evaluator:
    """Answers the API from samples in memory."""

    def __init__(self, held: MemorySource, *, version: str = "3.5.0", closed: bool = False) -> None:
        self._held = held
        self._closed = closed
        self._build = {"version": version, "revision": "abc", "branch": "HEAD", "goVersion": "go1.24"}

    def __call__(self, request: Request) -> Answer:
        params = request.params
        if request.path == "/api/v1/status/buildinfo":
            return success(self._build)
        if request.path == "/api/v1/label/__name__/values":
            start, end = (_ms(params.get(k, d)) for k, d in (("start", "0"), ("end", str(ALL // 1000))))
            names = self._held.metrics(start, end + 1)
            if selector := params.get("match[]"):
                names &= set(_labels(selector)["__name__"])
            return success(sorted(names))
        if request.path == "/api/v1/query":
            at = _ms(params["time"])
            found = self._evaluate(params["query"], np.array([at]))
            if "over_time" not in params["query"]:
                return success({"resultType": "matrix", "result": found})
            vector = [{"metric": e["metric"], "value": e["values"][0]} for e in found]
            return success({"resultType": "vector", "result": vector})
        if request.path == "/api/v1/query_range":
            start, end, step = (_ms(params[k]) for k in ("start", "end", "step"))
            times = np.arange(start, end + 1, step)
            if times.size > 11_000:
                return failure(400, "bad_data", "exceeded maximum resolution of 11,000 points per timeseries.")
            return success({"resultType": "matrix", "result": self._evaluate(params["query"], times)})
        return Answer("404 page not found\n", 404)

    def _evaluate(self, query: str, times: "np.ndarray[Any, Any]") -> list[dict[str, Any]]:
        found = _QUERY.fullmatch(query)
        assert found, query
        function, offset, length = found["function"], int(found["offset"] or 0), int(found["length"])
        matchers = _labels(found["selector"])
        names = matchers.pop("__name__")
        result: dict[tuple[tuple[str, str], ...], dict[int, list[float]]] = {}
        for name in names:
            held = self._held.samples(name, 0, ALL, matchers)
            for i, labels in enumerate(held.labels):
                time, value = held.time[held.series == i], held.value[held.series == i]
                low = np.searchsorted(time, times - offset - length, "left" if self._closed else "right")
                high = np.searchsorted(time, times - offset, "right")
                if function is None:
                    pairs = [[t / 1000, _text(v)] for t, v in zip(time, value, strict=True)][low[0] : high[0]]
                    if pairs:
                        key = tuple(sorted({**labels, "__name__": name}.items()))
                        result[key] = {-1: pairs}  # type: ignore[dict-item]
                    continue
                key = _group(found, labels)
                for t, a, b in zip(times.tolist(), low.tolist(), high.tolist(), strict=True):
                    if b > a:
                        result.setdefault(key, {}).setdefault(t, []).append(_apply(function, value[a:b]))
        if function is None:
            return [{"metric": dict(k), "values": v[-1]} for k, v in result.items()]
        operator = _OPERATORS[found["op"] or found["all"]]
        return [
            {"metric": dict(k), "values": [[t / 1000, _text(float(operator(v)))] for t, v in sorted(points.items())]}
            for k, points in result.items()
        ]


def _group(found: "re.Match[str]", labels: Labels) -> tuple[tuple[str, str], ...]:
    if found["all"] or found["op"] in ("sum", "count"):
        return ()
    kept = found["by"].split(",") if found["op"] else labels
    return tuple(sorted((n, labels[n]) for n in kept if n in labels))


def _apply(function: str, value: "np.ndarray[Any, Any]") -> float:
    with np.errstate(invalid="ignore"):
        return float(_FUNCTIONS[function](value))


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum_over_time": np.sum,
    "count_over_time": np.size,
    "min_over_time": np.fmin.reduce,
    "max_over_time": np.fmax.reduce,
    "last_over_time": lambda v: v[-1],
}
_OPERATORS: dict[str | None, Callable[[Any], Any]] = {
    "max": np.fmax.reduce,
    "min": np.fmin.reduce,
    "sum": sum,
    "count": len,
    None: lambda v: v[0],
}


def _labels(selector: str) -> dict[str, list[str]]:
    name, _, rest = selector.partition("{")
    found = {"__name__": [name]} if name else {}
    for label, operator, quoted in _MATCHER.findall(rest):
        value = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), quoted)
        if operator == "=":
            found[label] = [value]
        else:  # alternatives that are escaped, as the source writes them
            found[label] = [re.sub(r"\\(.)", r"\1", v) for v in re.split(r"(?<!\\)\|", value)]
    return found


def _ms(seconds: str) -> int:
    return round(float(seconds) * 1000)


def _text(value: float) -> str:
    if np.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if np.isinf(value) else repr(float(value))
