"""Collecting from a real Prometheus, beside the same requests read and thrown away, and beside a user's own script."""

import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import requests
from requests.adapters import HTTPAdapter

from chargeback import pipeline
from chargeback.config import PrometheusConfig
from chargeback.period import DAY, HOUR, Period
from chargeback.sources import Matchers, Samples, Source, SourceInfo, Windows
from chargeback.sources.prometheus import PrometheusSource

from . import by_hand
from .child import alone
from .figures import Figure
from .fleet import START, Fleet
from .jobs import job
from .server import Server, holding

NODES = 25
ONE_IN = 5
DAYS = 2
FEW_HOURS = 6
LONG = 10
ROUNDS = 3
CONCURRENCY = PrometheusConfig(url="http://127.0.0.1").concurrency


def _collect(url: str, hours: int, opened: Callable[[Any, Any], Source] | None = None) -> float:
    """Collects the hours from `START` on into a new store; gives seconds."""
    begins, ends = START + HOUR, START + hours * HOUR - HOUR  # the hour around it lies on the same days
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        now = START + hours * HOUR + (DAY if hours * HOUR % DAY == 0 else 0)
        work = job(Path(folder), now, source={"prometheus": {"url": url}})
        began = time.perf_counter()
        pipeline.collect(work, Period(begins, ends, "bench", "UTC"), *([opened] if opened else []))
        return time.perf_counter() - began


@dataclass
class Recorder:
    """The requests that went out, in the order in which they were sent."""

    sent: list[requests.PreparedRequest] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Records every request of the program meanwhile."""
        send, lock = requests.Session.send, threading.Lock()

        def noted(session: requests.Session, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            with lock:
                self.sent.append(request)
            return send(session, request, **options)

        with patch.object(requests.Session, "send", noted):
            yield

    def replay(self) -> float:
        """Sends all again, as many at once, and throws the answers away; gives seconds."""
        with requests.Session() as session, ThreadPoolExecutor(CONCURRENCY) as pool:
            session.trust_env = False
            session.mount("http://", HTTPAdapter(pool_maxsize=CONCURRENCY))

            def read(request: requests.PreparedRequest) -> None:
                with session.send(request, stream=True) as response:
                    while response.raw.read1(1 << 20):
                        pass

            began = time.perf_counter()
            list(pool.map(read, self.sent))
            return time.perf_counter() - began


@dataclass(frozen=True)
class Repeated:
    """A source whose first `days` days come again and again."""

    source: Source
    days: int

    def _back(self, end: int) -> int:
        """How many ms before the time asked for the same lies in the source."""
        span = self.days * DAY
        return (end - 1 - START) // span * span

    def info(self) -> SourceInfo:
        return self.source.info()

    def metrics(self, start: int, end: int) -> set[str]:
        back = self._back(end)
        return self.source.metrics(start - back, end - back)

    def oldest(self, metrics: Collection[str]) -> int | None:
        return self.source.oldest(metrics)

    def windows(
        self, metric: str, start: int, end: int, window: int, *, by: Collection[str] | None = None,
        matchers: Matchers | None = None, values: bool = True,
    ) -> Windows:  # fmt: skip
        back = self._back(end)
        found = self.source.windows(metric, start - back, end - back, window, by=by, matchers=matchers, values=values)
        return replace(found, window=found.window + back // window)

    def samples(self, metric: str, start: int, end: int, matchers: Matchers | None = None) -> Samples:
        back = self._back(end)
        found = self.source.samples(metric, start - back, end - back, matchers)
        return replace(found, time=found.time + back)

    def warnings(self) -> list[str]:
        return self.source.warnings()


def collect_days(url: str, days: int, held: int) -> float:
    """Collects so many days from a server that holds a few, again and again."""
    return _collect(url, 24 * days, lambda *_: Repeated(PrometheusSource(PrometheusConfig(url=url)), held))


def measure(
    nodes: int = NODES, hours: int = 24 * DAYS, few: int = FEW_HOURS, long: int = LONG, rounds: int = ROUNDS
) -> list[Figure]:
    """All of it; the requests, the program and the script take turns."""
    fleet = Fleet(nodes, ONE_IN)
    with holding((fleet, START, START + hours * HOUR), (Fleet(4 * nodes, ONE_IN), START, START + few * HOUR)) as both:
        one, four = both
        return [*_side_by_side(one, hours, rounds), *_growth(one, four, hours, few, long, rounds)]


def _side_by_side(server: Server, hours: int, rounds: int) -> list[Figure]:
    recorder = Recorder()
    with recorder.listening():
        _collect(server.url, hours)
    mine, theirs, script = [], [], []
    for i in range(rounds):
        theirs.append(recorder.replay())
        mine.append(_collect(server.url, hours))
        if i < rounds - 1 or rounds == 1:
            began = time.perf_counter()
            by_hand.run(server.url, [str(r.url) + ("?" + str(r.body) if r.body else "") for r in recorder.sent])
            script.append(time.perf_counter() - began)
    ours = min(mine)
    return [
        Figure("samples in the server", server.samples / 1e6, "M"),
        Figure("requests of a run", len(recorder.sent)),
        Figure("collecting", ours, "s"),
        Figure("the same requests, read and thrown away", min(theirs), "s"),
        Figure("collecting ÷ requests alone", ours / min(theirs), goal=1.25),
        Figure("the same queries in a script with pandas", min(script), "s"),
        Figure("collecting ÷ script", ours / min(script), goal=0.7),
    ]


def _growth(one: Server, four: Server, hours: int, few: int, long: int, rounds: int) -> list[Figure]:
    held = hours // 24
    day, days = (alone(collect_days, one.url, n, held) for n in (1, long))
    small, large = (min(_collect(s.url, few) for _ in range(rounds)) for s in (one, four))
    return [
        Figure("peak memory for one day", day.peak / 2**20, "MiB"),
        Figure(f"peak memory for {long} days", days.peak / 2**20, "MiB"),
        Figure(f"peak memory for {long} days ÷ one", days.peak / day.peak, goal=1.1),
        Figure(f"{few} hours of all GPUs", small, "s"),
        Figure(f"{few} hours of four times the GPUs", large, "s"),
        Figure("time of four times the GPUs ÷ time", large / small, goal=4.2),
    ]
