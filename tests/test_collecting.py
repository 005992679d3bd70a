"""Collecting that can be left alone: whole partitions, one run at a time, interruptions, shares of nodes, midnight."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, exclusive, prices, run, span, write
from servers import prometheus

from chargeback import collecting, config, pipeline
from chargeback.collecting import How
from chargeback.errors import DataError
from chargeback.evidence.gpu import NodeShare
from chargeback.job import Job
from chargeback.ledger import locked
from chargeback.period import Period, parse_period
from chargeback.sources import Source

DAY_START = datetime(2025, 3, 4, tzinfo=UTC)
LATER = datetime(2025, 4, 1, tzinfo=UTC)


def prepared(path: Path, period: str, now: datetime = LATER) -> tuple[Job, Period]:
    settings, origin = config.load(path)
    moment = round(now.timestamp() * 1000)
    return pipeline.prepare(settings, origin, path.parent, moment), parse_period(
        period, settings.timezone, settings.window, moment
    )


def bytes_of(store: Path) -> dict[str, str]:
    """Digests of all evidence in a store."""
    files = sorted(p for p in (store / "usage").rglob("*") if p.is_file())
    return {str(p.relative_to(store)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def month_of_nodes(nodes: int = 5, days: int = 2) -> Cluster:
    """Nodes with a GPU each that a pod of its own fills, for some days at a scrape every ten minutes."""
    c = Cluster(days * 24 * 60, every=600, start=DAY_START)
    for i in range(nodes):
        c.node(f"n{i}")
        c.pod(f"apps/p{i}", team=f"team{i % 2}", node=f"n{i}")
        c.gpu(f"n{i}", f"GPU-{i}", used=20 + i, pods=[f"apps/p{i}"])
        c.process(f"n{i}", f"apps/p{i}", 20 + i, uuid=f"GPU-{i}")
    return c


@dataclass
class Counting:
    """A source that counts what it is asked for."""

    inner: Source
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if name in ("windows", "samples"):
            self.asked.append(name)
        return getattr(self.inner, name)


def test_a_complete_day_is_not_asked_for_again(tmp_path: Path) -> None:
    path = write(tmp_path, exclusive(), prices())
    job, period = prepared(path, span(0, 60))
    seen: list[Counting] = []

    def opened(cluster: Any, settings: Any) -> Any:
        seen.append(Counting(collecting.open_source(cluster, settings)))
        return seen[-1]

    collecting.collect(job, period, opened)
    assert len(seen) == 1
    assert seen[0].asked
    collecting.collect(job, period, opened)
    assert len(seen) == 1  # nothing was even opened


@pytest.mark.parametrize(("minutes", "complete"), [(74, False), (75, True)])
def test_a_day_is_complete_when_max_gap_and_a_quarter_of_an_hour_have_passed(
    tmp_path: Path, minutes: int, complete: bool
) -> None:
    path = write(tmp_path, exclusive(), prices(), max_gap="1h")
    now = DAY_START + timedelta(days=1, minutes=minutes)
    job, period = prepared(path, span(0, 60), now)
    collecting.collect(job, period)
    meta = job.store.meta("test", round(DAY_START.timestamp() * 1000))
    assert meta is not None
    assert meta["complete"] is complete


def test_a_refresh_is_the_next_revision_and_one_that_fails_leaves_the_former(tmp_path: Path) -> None:
    path = write(tmp_path, exclusive(), prices())
    job, period = prepared(path, span(0, 60))
    collecting.collect(job, period)
    before = bytes_of(job.store.root)

    @dataclass
    class Broken:
        inner: Source

        def __getattr__(self, name: str) -> Any:
            if name == "samples":
                raise DataError("cut off", "")
            return getattr(self.inner, name)

    with pytest.raises(DataError):
        collecting.collect(job, period, lambda c, s: Broken(collecting.open_source(c, s)), How(refresh=True))
    assert bytes_of(job.store.root) == before
    collecting.collect(job, period, how=How(refresh=True))
    meta = job.store.meta("test", round(DAY_START.timestamp() * 1000))
    assert meta is not None
    assert meta["revision"] == 1


def test_a_new_dimension_is_collected_and_a_new_policy_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, exclusive(), prices())
    job, period = prepared(path, span(0, 60))
    collecting.collect(job, period)
    for settings, anew in (
        ({"allocation": {"idle": "platform"}}, False),
        ({"dimensions": {"project": "project"}}, True),
    ):
        other, _ = prepared(write(tmp_path, exclusive(), prices(), **settings), span(0, 60))
        before = bytes_of(job.store.root)
        collecting.collect(other, period)
        assert (bytes_of(job.store.root) != before) is anew, settings


def test_shares_of_nodes_in_any_order_give_the_bytes_of_one_run(tmp_path: Path) -> None:
    text = month_of_nodes()
    stores = []
    for name, shares in (("one", [NodeShare()]), ("three", [NodeShare(i, 3) for i in (2, 0, 1)])):
        path = write(tmp_path, text, prices(), store=str(tmp_path / name))
        job, period = prepared(path, "2025-03-04")
        for i, share in enumerate(shares):
            assert i == 0 or not bytes_of(job.store.root)  # nothing is there until the last share is
            collecting.collect(job, period, how=How(share=share))
        stores.append(bytes_of(job.store.root))
    assert stores[0] == stores[1]


def test_the_number_of_processes_changes_no_byte_of_evidence_and_reports(tmp_path: Path) -> None:
    with prometheus(month_of_nodes(2, 6).text()) as url:
        found = []
        for jobs in (1, 2):
            folder = tmp_path / str(jobs)
            folder.mkdir()
            path = write(folder, "# EOF\n", prices(), source={"prometheus": {"url": url}})
            job, period = prepared(path, "2025-03-04T00:00Z/2025-03-10T00:00Z")
            collecting.collect(job, period, how=How(jobs=jobs))
            pipeline.report(job, period, jobs)
            files = sorted(p for p in (job.store.root).rglob("*") if p.is_file() and p.name != "manifest.json")
            found.append({str(p.relative_to(job.store.root)): p.read_bytes() for p in files})
    assert found[0] == found[1]
    assert sum(name.endswith("charges.parquet") for name in found[0]) == 6


def story(start: datetime) -> Cluster:
    """Two hours: a pod that ends at 45, another from 70 on, its team changed at 90, the exporter silent from 50 to 80,
    and a host process; the node is gone at 110."""
    c = Cluster(120, start=start)
    c.node("n1", at=(0, 110))
    c.pod("apps/one", team="red", node="n1", at=(0, 110), done=45)
    c.pod("apps/two", team="blue", node="n1", at=(70, 110))
    c.gpu("n1", used=lambda m: 40 if m < 45 else 10, at=(0, 110))
    c.process("n1", "apps/one", 40, at=(0, 45))
    c.process("n1", "apps/two", 10, pid="7", at=(70, 110))
    c.hole("DCGM", (50, 80))
    return c


@pytest.mark.parametrize("gap", ["20m", "1h"])
@pytest.mark.parametrize("minute", [20, 45, 55, 65, 75, 105])
def test_the_border_of_a_day_does_nothing_to_the_money(tmp_path: Path, gap: str, minute: int) -> None:
    found = []
    for name, start in (
        ("noon", DAY_START + timedelta(hours=12)),
        ("midnight", DAY_START + timedelta(days=1, minutes=-minute)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        result = run(folder, story(start), prices(), period=span(0, 120, start), max_gap=gap)
        found.append((result.charges, result.estimated))
    assert found[0] == found[1]


HOLDER = """
import sys, time
from pathlib import Path
from chargeback.ledger import locked
with locked(Path(sys.argv[1]), "chargeback run", 1_000):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_run_says_who_holds_the_store_and_since_when(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    path = write(tmp_path, exclusive(), prices(), store=str(tmp_path / "store"))
    second = subprocess.run(
        [sys.executable, "-m", "chargeback", "run", "-c", str(path), "--period", span(0, 60)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert second.returncode == 7
    assert f"chargeback run on {os.uname().nodename}, process {holder.pid}, for " in second.stderr


def test_the_lock_of_a_dead_run_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(tmp_path / "store", "the next", 2_000):
        said = json.loads((tmp_path / "store" / ".lock").read_text())
    assert said["what"] == "the next"


def killed_and_resumed(tmp_path: Path, moments: int, seed: int) -> None:
    """Collects from a real server, killed at random moments, and compares with a run that nobody disturbed."""
    with prometheus(month_of_nodes(3, 3).text()) as url:
        settings = {"source": {"prometheus": {"url": url}}}
        command = [
            sys.executable,
            "-m",
            "chargeback",
            "collect",
            "--period",
            "2025-03-04T00:00Z/2025-03-07T00:00Z",
            "-c",
        ]
        calm, wild = tmp_path / "calm", tmp_path / "wild"
        for folder in (calm, wild):
            folder.mkdir()
            write(folder, "# EOF\n", prices(), **settings)
        began = time.monotonic()
        subprocess.run([*command, str(calm / "chargeback.yaml")], check=True, capture_output=True)
        whole = time.monotonic() - began
        store = config.load(wild / "chargeback.yaml")[0].store
        rng = random.Random(seed)
        for _ in range(moments):
            process = subprocess.Popen(
                [*command, str(wild / "chargeback.yaml")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(rng.uniform(0.3, 1) * whole)
            process.kill()
            process.wait()
            if rng.random() < 0.3:  # else little would be left to kill
                for meta in list(store.glob("usage/*/*/partition.json"))[:1]:
                    meta.unlink()
        subprocess.run([*command, str(wild / "chargeback.yaml")], check=True, capture_output=True)
    assert bytes_of(store) == bytes_of(config.load(calm / "chargeback.yaml")[0].store)
    assert not [p for p in store.rglob(".*") if p.name.endswith((".new", ".old"))]


def test_a_killed_run_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, 3, 1)


@pytest.mark.slow
def test_twenty_killed_runs_are_continued_to_the_same_bytes(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, 20, 2)


def test_a_former_partition_is_put_back_where_a_run_died_between_two_names(tmp_path: Path) -> None:
    path = write(tmp_path, exclusive(), prices())
    job, period = prepared(path, span(0, 60))
    collecting.collect(job, period)
    before = bytes_of(job.store.root)
    folder = job.store.usage("test", round(DAY_START.timestamp() * 1000))
    folder.rename(folder.with_name(f".{folder.name}.old"))
    collecting.collect(job, period)
    assert bytes_of(job.store.root).keys() == before.keys()
    assert not list(folder.parent.glob(".*.old"))


def test_evidence_is_never_replaced_by_less(tmp_path: Path) -> None:
    # The day is collected at 20:00, before it is over; then the server forgets all before 15:00.
    path = write(tmp_path, month_of_nodes(1, 1), prices())
    job, period = prepared(path, "2025-03-04T00:00Z/2025-03-04T19:00Z", DAY_START + timedelta(hours=20))
    collecting.collect(job, period)
    before = bytes_of(job.store.root)
    late = Cluster(9 * 60, every=600, start=DAY_START + timedelta(hours=15))
    late.node("n0")
    late.gpu("n0", used=20)
    job, period = prepared(write(tmp_path, late, prices()), "2025-03-04T00:00Z/2025-03-04T19:00Z")
    collecting.collect(job, period)
    assert bytes_of(job.store.root)[next(k for k in before if "2025-03-04/devices" in k)] in before.values()
