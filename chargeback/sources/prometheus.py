"""Samples from a Prometheus, or what answers like one (Thanos, Mimir, VictoriaMetrics), over its HTTP API.

Sums and counts are made by the server, over exactly the windows of W1: the query asks at a window's end for what lies
before it, and `offset 1ms` moves the range so that the edge's own sample is the next window's. How long that range is
depends on whether the server's ranges hold their left end (Prometheus 2) or not (Prometheus 3, VictoriaMetrics).
"""

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote_plus

import numpy as np
from numpy.typing import NDArray
from prometheus_api_client import PrometheusConnect

from chargeback.config import PrometheusConfig
from chargeback.errors import DataError, SourceUnreachable
from chargeback.period import DAY, HOUR
from chargeback.sources import Labels, Matchers, Samples, SourceInfo, Windows
from chargeback.sources.replies import Series, series
from chargeback.sources.transport import LONGEST_URL, Busy, Refused, Session, retrying

MOST_POINTS = 10_000
"""Windows of a range query; servers take 11,000."""
MINUTE = 60_000
_FAR = 4_102_444_800_000  # the year 2100
_YEAR = 365 * DAY
_URL_RESERVE = 600  # what stands in a URL beside the selector
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RE2_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
_READ_AGAIN = 3
T = TypeVar("T")
Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Server:
    """What answers: `closed` where a range holds its left end too."""

    info: SourceInfo
    closed: bool


@dataclass(frozen=True)
class _Grid:
    """The windows of a question: where the first begins, their length in ms, and how many there are."""

    start: int
    window: int
    width: int


@dataclass(frozen=True)
class _Job:
    """A question for `[start, end)` ms that may be asked in parts; parts are multiples of `unit` ms."""

    ask: Callable[[int, int], list[Series]]
    start: int
    end: int
    unit: int
    what: str


class PrometheusSource:
    """A `Source` that asks a server. At most `config.concurrency` requests are under way at once.

    A question is cut by time (points and samples of a request) and by the matchers' values (length of its URL); a
    slice that the server refuses as too much or does not answer in time is halved, down to one window. Each retry
    waits `backoff` seconds, then twice that, and so on. `now` gives seconds since the epoch.
    """

    def __init__(self, config: PrometheusConfig, *, backoff: float = 0.5, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._backoff = backoff
        self._now = now
        self._warnings: set[str] = set()
        self._session = Session(config, self._warnings.add)
        self._connect = PrometheusConnect(url=self._session.url, session=self._session, timeout=config.timeout)
        self._session.mount_pool()
        self._pool = ThreadPoolExecutor(config.concurrency, thread_name_prefix="prometheus")
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._spans: dict[str, int] = {}

    def __enter__(self) -> "PrometheusSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is under way and closes connections."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)
        self._session.close()

    def info(self) -> SourceInfo:
        """Kind and version of the server, from its build information, and its address without credentials."""
        return self._known().info

    def warnings(self) -> list[str]:
        """What replies warned of so far, sorted, each once."""
        return sorted(self._warnings)

    def metrics(self, start: int, end: int) -> set[str]:
        """Names of the metrics with a sample in `[start, end)` ms, and perhaps more: all that the server still
        holds near it. Prometheus answers by whole blocks, VictoriaMetrics by whole days, a server that does not
        know the parameters with all it has.
        """

        def either() -> set[str]:
            try:
                return self._names({"start": _seconds(start), "end": _seconds(end - 1)})
            except Refused as e:
                if e.status not in (400, 422):
                    raise
                return self._names({})

        return self._retry(either) if start < end else set()

    def oldest(self, metrics: Collection[str]) -> int | None:
        """Time in ms of the oldest sample of any of these metrics that is still held; None without one (Q2).

        The server's index gives the day before which there is nothing; from there on days, then an hour, a minute
        and at last samples are read. A server whose index knows no times is read from five years ago on.
        """
        names = sorted(set(metrics))
        if not names:
            return None
        selector = "{" + _matcher("__name__", names) + "}"
        now = int(self._now() * 1000)
        try:
            if self._known().info.kind == "victoriametrics":
                return self._first_of_all(selector, now + 2 * DAY)
        except Busy:
            pass
        low = self._empty_until(selector, now)
        if low is None:
            return None
        last = max(now, low + 400 * DAY)
        length = DAY
        low -= low % DAY
        while low <= last:
            end = low + length
            if (at := self._first(selector, low, end, DAY)) is not None:
                for unit, finer in ((DAY, HOUR), (HOUR, MINUTE)):
                    found = self._first(selector, at, at + unit, finer)
                    at = self._same(found, selector)
                return int(self._same(self._first_sample(selector, at), selector))
            low, length = end, min(2 * length, 32 * DAY)
        return None

    def samples(self, metric: str, start: int, end: int, matchers: Matchers | None = None) -> Samples:
        """Raw samples of `[start, end)` ms."""
        selectors = self._selectors(metric, matchers)
        if start >= end or not selectors:
            return Samples([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))
        self._known()
        span = self._span(selectors, start, end, min(end - start, 5 * MINUTE), 1, DAY)

        def asker(selector: str) -> Callable[[int, int], list[Series]]:
            def ask(a: int, b: int) -> list[Series]:
                # the range may hold its left end, or more: what is outside is cut off
                return [_cut(s, a, b) for s in self._instant(f"{selector}[{b - a}ms]", b - 1)]

            return ask

        jobs = [
            _Job(asker(selector), a, b, MINUTE, f"raw {metric}")
            for selector in selectors
            for a, b in _slices(start, end, span)
        ]
        pieces = [s for piece in self._all(jobs) for s in piece if s.time.size]
        keys, at = _numbered(pieces)
        time = _joined([s.time for s in pieces], np.int64)
        value = _joined([s.value for s in pieces], np.float64)
        order = np.lexsort((time, at))
        at, time, value = at[order], time[order], value[order]
        if ((at[1:] == at[:-1]) & (time[1:] == time[:-1])).any():
            raise self._inconsistent(metric, "a sample came twice")
        return Samples([dict(k) for k in keys], at, time, value)

    def windows(
        self,
        metric: str,
        start: int,
        end: int,
        window: int,
        *,
        by: Collection[str] | None = None,
        matchers: Matchers | None = None,
        values: bool = True,
    ) -> Windows:
        """Sums and counts by series and window, made by the server (W1, M3); series sorted by their labels."""
        if start % window or end % window:
            raise ValueError("start and end must be multiples of the window")
        selectors = self._selectors(metric, matchers)
        if start >= end or not selectors:
            none = np.empty(0, np.int64)
            return Windows([], none, none, np.empty(0), none, np.empty(0), np.empty(0))
        span = self._span(selectors, start, end, window, window, MOST_POINTS * window)
        for _ in range(_READ_AGAIN):
            found = self._windows_once(metric, selectors, start, end, window, by, values, span)
            if found is not None:
                return found
            self._wait(self._backoff)
        raise self._inconsistent(metric, "sums and counts do not belong together")

    def _windows_once(
        self,
        metric: str,
        selectors: Sequence[str],
        start: int,
        end: int,
        window: int,
        by: Collection[str] | None,
        values: bool,
        span: int,
    ) -> Windows | None:
        """One reading; None where the replies contradict each other, because samples came in between."""

        def grouped(operator: str, function: str, selector: str, length: int) -> str:
            inner = f"{function}({self._range(selector, length)})"
            return inner if by is None else f"{operator} by ({','.join(_label(n) for n in sorted(by))}) ({inner})"

        def ranged(function: str, selector: str) -> Callable[[int, int], list[Series]]:
            query = grouped("max", function, selector, window)
            return lambda a, b: self._ranged(query, a, b, window)

        def extreme(operator: str, selector: str) -> Callable[[int, int], list[Series]]:
            return lambda a, b: self._instant(grouped(operator, f"{operator}_over_time", selector, b - a), b)

        slices = list(_slices(start, end, span))
        askers = {"count": [ranged("count_over_time", s) for s in selectors]}
        if values:
            askers["sum"] = [ranged("sum_over_time", s) for s in selectors]
            askers["min"] = [extreme("min", s) for s in selectors]
            askers["max"] = [extreme("max", s) for s in selectors]
        jobs = [
            _Job(ask, a, b, window, f"{name} {metric}")
            for name, asks in askers.items()
            for ask in asks
            for a, b in slices
        ]
        answers = self._all(jobs)
        each = len(selectors) * len(slices)
        pieces = {
            name: [s for piece in answers[i * each : (i + 1) * each] for s in piece] for i, name in enumerate(askers)
        }
        keys, at = _numbered(pieces["count"])
        grid = _Grid(start, window, (end - start) // window)
        place = self._places(metric, pieces["count"], at, grid)
        count = _joined([s.value for s in pieces["count"]], np.float64)
        place, count = self._merged(metric, place, count, by is not None)
        if not (np.isfinite(count).all() and (count == np.rint(count)).all() and (count >= 1).all()):
            raise self._inconsistent(metric, "a count is not a whole number")
        lenient = self._known().info.kind == "victoriametrics"  # it leaves out what is not a number
        total = np.zeros(place.size)
        low, high = np.full(len(keys), np.nan), np.full(len(keys), np.nan)
        if values:
            numbers = {key: i for i, key in enumerate(keys)}
            found = self._aligned(metric, pieces["sum"], numbers, place, grid, by is not None, lenient)
            if found is None:
                return None
            total = found
            for name, edge, pick in (("min", low, np.fmin), ("max", high, np.fmax)):
                ids = _known_numbers(pieces[name], numbers)
                if ids is None or (not lenient and np.unique(ids).size != len(keys)):
                    return None
                pick.at(edge, ids, _joined([s.value for s in pieces[name]], np.float64))
        return Windows(
            [dict(key) for key in keys],
            place // grid.width,
            start // window + place % grid.width,
            total,
            count.astype(np.int64),
            low,
            high,
        )

    def _aligned(
        self,
        metric: str,
        pieces: list[Series],
        numbers: dict[Key, int],
        place: NDArray[np.int64],
        grid: _Grid,
        by: bool,
        lenient: bool,
    ) -> NDArray[np.float64] | None:
        """The sums at the counts' places; None where they have other places."""
        ids = _known_numbers(pieces, numbers)
        if ids is None:
            return None
        at = np.repeat(ids, [s.time.size for s in pieces])
        places = self._places(metric, pieces, at, grid)
        places, value = self._merged(metric, places, _joined([s.value for s in pieces], np.float64), by)
        if places.size == place.size and (places == place).all():
            return value
        if not lenient or not np.isin(places, place).all():
            return None
        total = np.full(place.size, np.nan)
        total[np.searchsorted(place, places)] = value
        return total

    def _places(self, metric: str, pieces: list[Series], at: NDArray[np.int64], grid: _Grid) -> NDArray[np.int64]:
        """Series number times the grid's width, plus the window's number in it; checks that times are window ends."""
        time = _joined([s.time for s in pieces], np.int64) - grid.start
        if (time % grid.window).any() or ((time <= 0) | (time > grid.width * grid.window)).any():
            raise self._inconsistent(metric, "an answer for times that were not asked for")
        place: NDArray[np.int64] = at * grid.width + time // grid.window - 1
        return place

    def _merged(
        self, metric: str, place: NDArray[np.int64], value: NDArray[np.float64], by: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Sorted by place, each once; only with `by` can groups of matchers share one, and the largest stands."""
        order = np.argsort(place, kind="stable")
        place, value = place[order], value[order]
        first = np.flatnonzero(np.append(True, place[1:] != place[:-1])) if place.size else place
        if first.size == place.size:
            return place, value
        if not by:
            raise self._inconsistent(metric, "a series came twice")
        return place[first], np.fmax.reduceat(value, first)

    def _ranged(self, query: str, start: int, end: int, window: int) -> list[Series]:
        """`query` at the ends of the windows of `[start, end)`."""
        params = {"start": _seconds(start + window), "end": _seconds(end), "step": _seconds(window)} | self._extra()
        start_time, end_time = _moment(start + window), _moment(end)
        return self._series(
            lambda: self._connect.custom_query_range(query, start_time, end_time, params["step"], params=params)
        )

    def _instant(self, query: str, at: int) -> list[Series]:
        params = {"time": _seconds(at)} | self._extra()
        return self._series(lambda: self._connect.custom_query(query, params=params))

    def _extra(self) -> dict[str, str]:
        # its cache does not see samples that came late
        return {"nocache": "1"} if self._server and self._server.info.kind == "victoriametrics" else {}

    def _names(self, params: dict[str, str]) -> set[str]:
        names = self._connect.get_label_values("__name__", params)
        if names is None:  # so Thanos says that there is none
            return set()
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise self._session.broken("no list of names")
        return set(names)

    def _series(self, ask: Callable[[], Any]) -> list[Series]:
        try:
            result = ask()
            if any("histogram" in entry or "histograms" in entry for entry in result):
                raise DataError(
                    f"{self._session.url}: a metric is a native histogram, not a number",
                    "map another metric in exporters",
                )
            return [series(entry) for entry in result]
        except (ValueError, AttributeError, TypeError, KeyError) as e:
            raise self._session.broken(f"{type(e).__name__} in its data") from None

    def _range(self, selector: str, length: int) -> str:
        """A range of exactly the `length` ms before a time, which itself is left out (W1)."""
        return f"{selector}[{max(length - 1, 1) if self._known().closed else length}ms] offset 1ms"

    def _selectors(self, metric: str, matchers: Matchers | None) -> list[str]:
        """Selectors whose series together, each once, are what is asked for; each short enough for a URL."""
        name = metric if _NAME.fullmatch(metric) else ""
        fixed = [] if name else [_matcher("__name__", [metric])]
        wanted = {label: sorted(set(v)) for label, v in (matchers or {}).items()}
        if not all(wanted.values()):
            return []
        texts = {label: len(quote_plus(_matcher(label, v))) for label, v in wanted.items()}
        longest = max(texts, key=lambda label: (texts[label], label), default=None)
        if longest is None:
            return [name + ("{" + fixed[0] + "}" if fixed else "")]
        fixed += [_matcher(label, v) for label, v in sorted(wanted.items()) if label != longest]
        room = LONGEST_URL - _URL_RESERVE - len(self._session.url) - len(quote_plus(name + ",".join(fixed)))
        room -= sum(len(quote_plus(k + v)) + 2 for k, v in self._config.params.items())
        groups: list[list[str]] = [[]]
        left = room
        for value in wanted[longest]:
            size = len(quote_plus(_string(_RE2_SPECIAL.sub(_ESCAPED, value)))) + 3
            if groups[-1] and size > left:
                groups.append([])
                left = room
            groups[-1].append(value)
            left -= size
        return [name + "{" + ",".join([*fixed, _matcher(longest, g)]) + "}" for g in groups]

    def _span(self, selectors: Sequence[str], start: int, end: int, window: int, unit: int, longest: int) -> int:
        """How many ms one request may cover, a multiple of `unit`, by the samples that lie at eight places."""
        if len(selectors) > 1:
            selectors = [re.sub(r"\{.*", "", selectors[0], flags=re.DOTALL) or selectors[0]]
        count = -(-(end - start) // window)
        step = max(1, count // 8) * window
        query = f"sum(count_over_time({self._range(selectors[0], window)}))"

        def ask() -> list[Series]:
            return self._ranged(query, start + window - step, end, step)

        try:
            found = self._retry(ask, smaller=True)
            most = max((float(np.max(s.value)) for s in found if s.value.size), default=0.0)
        except Busy:
            return max(unit, min(longest, HOUR) // unit * unit)
        fits = longest if most <= 0 else int(self._config.max_samples / most * window)
        return max(unit, min(longest, fits) // unit * unit)

    def _all(self, jobs: Sequence[_Job]) -> list[list[Series]]:
        """The jobs' answers in the jobs' order; the first error ends them all."""
        futures = [self._pool.submit(self._halved, job, job.start, job.end) for job in jobs]
        try:
            return [f.result() for f in futures]
        finally:
            for f in futures:
                f.cancel()

    def _halved(self, job: _Job, start: int, end: int) -> list[Series]:
        """The job's answer for `[start, end)`, in halves where the server cannot do it at once."""
        length = end - start
        divisible = length > job.unit
        if not divisible or length <= self._spans.get(job.what, length):
            try:
                return self._retry(lambda: job.ask(start, end), smaller=divisible)
            except Busy as e:
                if not e.passing:  # what follows begins with slices that the server can do
                    self._spans[job.what] = min(self._spans.get(job.what, length), max(job.unit, length // 2))
                self._wait(max(e.wait, self._backoff))
        middle = start + max(1, length // job.unit // 2) * job.unit
        return self._halved(job, start, middle) + self._halved(job, middle, end)

    def _retry(self, call: Callable[[], T], smaller: bool = False) -> T:
        return retrying(call, self._wait, self._backoff, smaller)

    def _wait(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise SourceUnreachable(f"{self._session.url}: the run was ended", "")

    def _known(self) -> _Server:
        with self._lock:
            if self._server is None:
                self._server = self._retry(self._detected)
            return self._server

    def _detected(self) -> _Server:
        try:
            data = self._session.get(f"{self._session.url}/api/v1/status/buildinfo").json()["data"]
        except Refused:
            data = {}
        data = data if isinstance(data, dict) else {}
        version, application = str(data.get("version", "")), str(data.get("application", ""))
        number = re.match(r"v?(\d+)\.", version)
        kind, closed = "unknown", None
        if application:
            kind = application.lower().removeprefix("grafana ")
        elif data.get("revision") and number:
            kind = "thanos" if number[1] == "0" else "prometheus"
            closed = int(number[1]) < 3 if kind == "prometheus" else None
        elif self._is_victoria_metrics():
            kind, version, closed = "victoriametrics", "", False  # it gives a Prometheus' version, or none
        if closed is None:
            closed = self._holds_left_end()
        return _Server(SourceInfo(kind, version, self._session.url), closed)

    def _is_victoria_metrics(self) -> bool:
        """Whether the server knows a function that only MetricsQL has."""
        try:
            return bool(self._instant('label_set(1, "a", "b")', int(self._now() * 1000)))
        except (Refused, Busy):
            return False

    def _holds_left_end(self) -> bool:
        """Whether 10 s hold three steps of 5 s; also asked of servers whose version says nothing of ranges."""
        try:
            found = self._instant("count_over_time(vector(1)[10s:5s])", int(self._now()) // 5 * 5000)
        except (Refused, Busy):
            return False
        return bool(found) and found[0].value.tolist() == [3.0]

    def _first_of_all(self, selector: str, until: int) -> int | None:
        """The oldest sample's time, by a function that only MetricsQL has."""
        query = f"min(tfirst_over_time({selector}[{until // DAY}d]))"
        found = self._retry(lambda: self._instant(query, until), smaller=True)
        return round(float(found[0].value[0]) * 1000) if found else None

    def _empty_until(self, selector: str, now: int) -> int | None:
        """A time in ms, to the day, before which the index has nothing; None where it has nothing at all."""

        def exists(until: int) -> bool:
            params = {"match[]": selector, "start": "0", "end": _seconds(until)}
            return bool(self._retry(lambda: self._names(params)))

        try:
            if not exists(_FAR):
                return None
            if exists(DAY):
                return now - 5 * _YEAR
        except DataError:
            return now - 5 * _YEAR
        low, high = DAY, _FAR
        for at in (now + 2 * DAY, now - 32 * DAY, now - 400 * DAY):
            if not exists(at):
                low = at
                break
            high = at
        while high - low > DAY:
            middle = (low + high) // 2
            low, high = (low, middle) if exists(middle) else (middle, high)
        return low

    def _first(self, selector: str, start: int, end: int, unit: int) -> int | None:
        """Where, in steps of `unit` from `start`, the first sample lies; None without one."""
        query = f"count(last_over_time({self._range(selector, unit)}))"
        job = _Job(lambda a, b: self._ranged(query, a, b, unit), start, end, unit, f"oldest {unit}")
        times = [int(s.time.min()) for piece in self._all([job]) for s in piece if s.time.size]
        return min(times) - unit if times else None

    def _first_sample(self, selector: str, start: int) -> int | None:
        found = self._retry(lambda: self._instant(f"{selector}[{MINUTE}ms]", start + MINUTE - 1))
        times = [int(t) for s in found for t in s.time[s.time >= start][:1]]
        return min(times, default=None)

    def _same(self, found: int | None, selector: str) -> int:
        if found is None:
            raise self._inconsistent(selector, "samples vanished while they were read")
        return found

    def _inconsistent(self, metric: str, what: str) -> SourceUnreachable:
        return SourceUnreachable(
            f"{self._session.url}: inconsistent answers for {metric[:200]}: {what}",
            "run again; if it stays, ask one server directly instead of several behind one address",
        )


def _slices(start: int, end: int, span: int) -> Iterator[tuple[int, int]]:
    """`[start, end)` in pieces of `span`, the last one perhaps shorter."""
    for a in range(start, end, span):
        yield a, min(a + span, end)


def _cut(found: Series, start: int, end: int) -> Series:
    inside = (found.time >= start) & (found.time < end)
    return found if inside.all() else Series(found.labels, found.time[inside], found.value[inside])


def _key(labels: Labels) -> Key:
    return tuple(sorted((n, v) for n, v in labels.items() if n != "__name__"))


def _numbered(pieces: Iterable[Series]) -> tuple[list[Key], NDArray[np.int64]]:
    """The distinct series, sorted by their labels, and for each sample its series' number."""
    pieces = list(pieces)
    found = [_key(s.labels) for s in pieces]
    keys = sorted(set(found))
    numbers = {key: i for i, key in enumerate(keys)}
    ids = np.array([numbers[key] for key in found], np.int64)
    return keys, np.repeat(ids, [s.time.size for s in pieces])


def _known_numbers(pieces: Iterable[Series], numbers: dict[Key, int]) -> NDArray[np.int64] | None:
    """Each piece's series' number; None where one has none."""
    ids = [numbers.get(_key(s.labels), -1) for s in pieces]
    return None if -1 in ids else np.array(ids, np.int64)


def _joined(arrays: Sequence[NDArray[Any]], dtype: type[Any]) -> NDArray[Any]:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty(0, dtype)


def _matcher(label: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{_label(label)}={_string(values[0])}"
    return f"{_label(label)}=~{_string('|'.join(_RE2_SPECIAL.sub(_ESCAPED, v) for v in values))}"


_ESCAPED = r"\\\1"


def _label(name: str) -> str:
    return name if _NAME.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    """A PromQL string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}" if ms % 1000 else str(ms // 1000)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
