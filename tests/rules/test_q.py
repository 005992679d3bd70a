"""Rules Q: when a report is final, and what is noticed before anything is billed."""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from clusters import HOUR, START, Cluster, Result, exclusive, instant, money, run, span

from chargeback import pipeline
from chargeback.errors import DataError, UsageError
from chargeback.sources import Source, Windows
from chargeback.sources.memory import MemorySource


def at(minute: float) -> datetime:
    """A minute of the cluster's time."""
    return START + timedelta(minutes=minute)


def shown(page: Path) -> str:
    """The text of a page, without marks and styles, in one line."""
    text = re.sub(r"<style.*?</style>|<[^>]*>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(text.split())


def drafted(result: Result) -> bool:
    """Whether a report is a draft; its folder, number and every page must say the same."""
    draft = bool(result.manifest["draft"])
    assert result.folder.name.endswith("-draft") == draft
    for page in result.folder.rglob("*.html"):
        assert ("draft" in shown(page).lower()) == draft, page
    return draft


def test_q1_a_period_that_is_over_and_was_collected_whole_is_final(tmp_path: Path) -> None:
    result = run(tmp_path, exclusive())
    assert not drafted(result)
    assert result.folder.name == "2025-03-04T100000Z_2025-03-04T110000Z"


def test_q1_an_open_period_gives_a_draft_to_date(tmp_path: Path) -> None:
    # At 10:30 of the hour: half of 6.00.
    result = run(tmp_path, exclusive(minutes=30), now=at(30))
    assert drafted(result)
    assert result.charges == money({("red", "used"): "0.75", ("red", "idle"): "2.25"})
    assert instant(60) in result.manifest["draft"][0]


def test_q1_a_draft_in_the_middle_of_a_window_bills_what_was_seen_of_it(tmp_path: Path) -> None:
    # Samples up to 10:31:30: 32 minutes of 6.00 an hour.
    assert run(tmp_path, exclusive(minutes=32), now=at(32)).node_cost == Decimal("3.20")


def test_q1_a_partition_that_was_collected_before_it_was_over_makes_a_draft(tmp_path: Path) -> None:
    # Collected at 10:30, reported days later without collecting again; then collected again.
    run(tmp_path, exclusive(minutes=30), now=at(30))
    late = run(tmp_path, exclusive(), collect=False)
    assert drafted(late)
    assert late.node_cost == 3
    again = run(tmp_path, exclusive())
    assert not drafted(again)
    assert again.node_cost == 6


def test_q1_a_day_that_was_not_collected_makes_a_draft(tmp_path: Path) -> None:
    # Those of the period and, for the `max_gap` around it, of the 5th were collected; the 6th was not.
    c = Cluster(minutes=60 * 60, every=300)
    c.node("n1")
    c.gpu("n1")
    run(tmp_path, c, period="2025-03-04", since=instant())
    three = run(tmp_path, c, period="2025-03-04T10:00Z/2025-03-06T22:00Z", collect=False)
    assert drafted(three)
    assert "2025-03-06 was not collected" in three.manifest["draft"][0]


class Partial(MemorySource):
    """The samples of a file, with a warning for each answer about what lies before a time."""

    until = 0
    warned = 0

    def windows(self, metric: str, start: int, end: int, window: int, **more: Any) -> Windows:
        self.warned += start < self.until
        return super().windows(metric, start, end, window, **more)

    def warnings(self) -> list[str]:
        return ["partial response: store 2 is down"] * self.warned


def partial(until: datetime) -> Callable[[Any, Any], Source]:
    """Opens the configured file as such a source."""

    def opened(cluster: Any, config: Any) -> Source:
        whole = pipeline.open_source(cluster, config)
        assert isinstance(whole, MemorySource)
        source = Partial(whole._held, whole.info())
        source.until = round(until.timestamp() * 1000)
        return source

    return opened


def test_q1_an_answer_with_a_warning_of_partial_data_makes_a_draft(tmp_path: Path) -> None:
    result = run(tmp_path, exclusive(), opened=partial(at(60)))
    assert drafted(result)
    assert "store 2 is down" in result.manifest["draft"][0]
    assert not drafted(run(tmp_path, exclusive()))  # the next collection does not take it for whole


@pytest.mark.parametrize(("max_gap", "draft"), [("1h", True), ("30m", False)])
def test_q1_so_does_one_about_the_max_gap_before_the_period(tmp_path: Path, max_gap: str, draft: bool) -> None:
    # From 00:30 of the 5th: an hour before is the day before, half an hour is not.
    midnight = datetime(2025, 3, 5, tzinfo=UTC)
    c = Cluster(minutes=240, start=midnight - timedelta(hours=2))
    c.node("n1")
    c.gpu("n1")
    period = "2025-03-05T00:30Z/2025-03-05T01:30Z"
    result = run(tmp_path, c, period=period, max_gap=max_gap, opened=partial(midnight))
    assert drafted(result) == draft
    assert result.node_cost == 6


def test_q1_what_was_collected_whole_is_not_asked_for_again(tmp_path: Path) -> None:
    run(tmp_path, exclusive())

    def gone(cluster: Any, config: Any) -> Source:
        raise AssertionError("asked again")

    assert run(tmp_path, exclusive(), opened=gone).node_cost == 6


def test_q1_the_final_report_does_not_replace_the_draft_of_another_name(tmp_path: Path) -> None:
    draft = run(tmp_path, exclusive(minutes=30), now=at(30))
    final = run(tmp_path, exclusive())
    assert draft.folder != final.folder
    assert (final.folder / "manifest.json").exists()


def two_hours_too_early(folder: Path, **settings: Any) -> Result:
    """The period from 08:00 to 11:00 of a source whose oldest sample is of 10:00."""
    return run(folder, exclusive(), period=span(-120, 60), **settings)


def test_q2_a_period_that_the_source_no_longer_holds_stops_and_names_the_one_that_works(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        two_hours_too_early(tmp_path)
    assert caught.value.exit_code == 5
    assert HOUR in caught.value.hint
    assert not (tmp_path / "store").exists()
    assert run(tmp_path, exclusive(), period=HOUR).node_cost == 6


def test_q2_up_to_max_gap_before_the_oldest_sample_is_no_loss(tmp_path: Path) -> None:
    assert run(tmp_path, exclusive(), period=span(-60, 60)).node_cost == 6
    with pytest.raises(DataError):
        run(tmp_path / "other", exclusive(), period=span(-65, 60))


@pytest.mark.parametrize("since", [date(2025, 3, 4), at(-30), at(0)], ids=str)
def test_q2_a_cluster_that_is_that_new_says_so(tmp_path: Path, since: date | datetime) -> None:
    # Its first day, or the time at which it came up.
    assert two_hours_too_early(tmp_path, since=since).node_cost == 6


def test_q2_evidence_that_was_collected_in_time_is_kept_for_good(tmp_path: Path) -> None:
    # The server forgets the first half of the hour, after it was collected.
    before = run(tmp_path, exclusive())
    c = exclusive()
    c.hole("", (0, 30))
    after = run(tmp_path, c)
    assert after.rows == before.rows


def test_q2_a_period_before_all_samples_names_no_period_that_does_not_work(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, exclusive(), period=span(-240, -180))
    assert "--period" not in caught.value.hint


def test_q3_no_gpu_node_at_all_is_an_error_not_an_empty_bill(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1", "cpu-box")
    c.pod("apps/web", team="red", node="n1", request=0)
    with pytest.raises(DataError):
        run(tmp_path, c)
    assert not (tmp_path / "store" / "reports").exists()


def test_q3_a_source_without_any_metric_that_is_read_is_an_error(tmp_path: Path) -> None:
    c = Cluster()
    c.series("node_cpu_seconds_total", 1, {"node": "n1"})
    with pytest.raises(DataError, match=r"no sample of any metric that is read"):
        run(tmp_path, c)


def test_q3_an_empty_stretch_of_a_cluster_is_an_error(tmp_path: Path) -> None:
    # GPUs at noon, none in the hour that is asked for.
    c = Cluster(minutes=300)
    c.node("n1", at=(240, 300))
    c.gpu("n1", at=(240, 300))
    with pytest.raises(DataError) as caught:
        run(tmp_path, c, period=span(60, 120), since="2025-03-01")
    assert caught.value.exit_code == 5
    assert not (tmp_path / "store" / "reports").exists()


def test_q3_a_period_in_the_future_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has not begun"):
        run(tmp_path, exclusive(), now=START - timedelta(hours=1))


def test_q4_reports_say_that_a_short_job_may_leave_no_trace(tmp_path: Path) -> None:
    # apps/quick ran from 10:10:05 to 10:10:20, between two scrapes: red alone is billed, and every invoice says so.
    result = run(tmp_path, exclusive())
    pages = [shown(p) for p in result.folder.glob("invoices/*/index.html")]
    assert pages
    assert all("may leave no trace" in page for page in pages)


def test_q4_samples_that_are_far_apart_are_reported(tmp_path: Path) -> None:
    c = Cluster(every=120)
    c.node("n1")
    c.gpu("n1")
    assert "n1 dcgm-exporter" in run(tmp_path, c).subjects("coarse-scrape")
    assert "coarse-scrape" not in run(tmp_path / "fine", exclusive()).problems


def test_q2_evidence_that_was_collected_after_the_server_had_forgotten_is_no_excuse(tmp_path: Path) -> None:
    # The server holds samples from 10:00 of the 4th on. Billing the 5th collects the 4th with it, for the hour before
    # midnight; that does not make the first ten hours of the 4th any better known.
    c = Cluster(minutes=38 * 60, every=300)
    c.node("n1")
    c.gpu("n1")
    assert run(tmp_path, c, period="2025-03-05").node_cost == 144
    with pytest.raises(DataError, match=r"oldest sample"):
        run(tmp_path, c, period="2025-03-04")
