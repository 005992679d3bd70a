"""Rules W: which window a sample belongs to, where a period begins and ends, how far apart scrapes are."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from clusters import BOX, START, Cluster, money, prices, run, span

from chargeback.errors import ConfigError
from chargeback.period import parse_period

FIVE_MINUTES = 300_000
LATER = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def test_w1_a_sample_on_a_window_edge_counts_once_in_the_window_that_it_opens(tmp_path: Path) -> None:
    # The last sample of 20 GiB is that of 10:30:00. A window costs 6.00 / 12 = 0.50.
    # Six windows of 20 of 80 GiB: 6 x 0.125 = 0.75; then 1 sample of 10, 2 GiB: 0.50 x 2 / 80 = 0.0125.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", used=lambda minute: 20 if minute <= 30 else 0, pods=["apps/train"])
    c.process("n1", "apps/train", 20, at=(0, 30.1))
    assert run(tmp_path, c).charges == money({("red", "used"): "0.7625", ("red", "idle"): "5.2375"})


def relabelled(last_red: float, first_blue: float, offset: float = 0) -> Cluster:
    """A pod that holds a GPU for the hour and changes hands."""
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", node="n1")
    c.gpu("n1", pods=["apps/train"])
    c.hole("kube_pod_labels", (0, 60))
    who = {"namespace": "apps", "pod": "train", "uid": "uid-of-apps-train"}
    c.series("kube_pod_labels", 1, {**who, "label_team": "red"}, (0, last_red))
    c.series("kube_pod_labels", 1, {**who, "label_team": "blue"}, (first_blue, 60), offset=offset)
    return c


def test_w1_a_window_ends_before_the_sample_on_its_end(tmp_path: Path) -> None:
    # Blue's label is first seen at 10:30:00, which is in the window from 10:30: half an hour each.
    assert run(tmp_path, relabelled(30, 30)).charges == money({("red", "idle"): "3.00", ("blue", "idle"): "3.00"})


def test_w1_a_sample_a_millisecond_before_the_edge_is_in_the_window_before(tmp_path: Path) -> None:
    # Blue's label is first seen at 10:29:59.999, in the window from 10:25: red has 5 windows of 0.50, blue 7.
    c = relabelled(29.6, 25, offset=299.999)
    assert run(tmp_path, c).charges == money({("red", "idle"): "2.50", ("blue", "idle"): "3.50"})


@pytest.mark.parametrize("window", ["7m", "2h", "0s", "25m"])
def test_w1_a_window_that_does_not_divide_an_hour_is_refused(tmp_path: Path, window: str) -> None:
    with pytest.raises(ConfigError, match=r"window must divide 1 h"):
        run(tmp_path, relabelled(30, 30), window=window)


@pytest.mark.parametrize("window", ["1m", "15m", "1h"])
def test_w1_the_length_of_a_window_changes_nothing_for_steady_use(tmp_path: Path, window: str) -> None:
    # 20 of 80 GiB for the hour: 6.00 x 1/4.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", used=20, pods=["apps/train"])
    c.process("n1", "apps/train", 20)
    assert run(tmp_path, c, window=window).charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


def long(start: datetime, hours: float) -> Cluster:
    """An idle GPU for some days, scraped every 5 minutes."""
    c = Cluster(minutes=hours * 60, every=300, start=start)
    c.node("n1")
    c.gpu("n1")
    return c


@pytest.mark.parametrize(
    ("day", "before", "hours", "cost"),
    [
        ("2025-03-29", datetime(2025, 3, 28, 12, tzinfo=UTC), 24, "144.00"),
        ("2025-03-30", datetime(2025, 3, 29, 12, tzinfo=UTC), 23, "138.00"),  # clocks go forward
        ("2025-10-26", datetime(2025, 10, 25, 12, tzinfo=UTC), 25, "150.00"),  # and back
    ],
)
def test_w2_a_day_runs_from_local_midnight_to_local_midnight(
    tmp_path: Path, day: str, before: datetime, hours: int, cost: str
) -> None:
    # hours x 6.00; the node lives for two days around that day
    result = run(
        tmp_path, long(before, 48), period=day, timezone="Europe/Berlin", now=before + timedelta(days=9)
    )  # fmt: skip
    assert result.node_cost == Decimal(cost) == hours * 6
    assert sum(row["gpu_hours"] for row in result.rows) == pytest.approx(hours)


@pytest.mark.parametrize(
    ("month", "zone", "hours"),
    [
        ("2025-03", "UTC", 31 * 24),
        ("2025-03", "Europe/Berlin", 31 * 24 - 1),
        ("2025-10", "Europe/Berlin", 31 * 24 + 1),
        ("2024-02", "Asia/Kolkata", 29 * 24),
    ],
)
def test_w2_a_month_with_a_change_of_clocks_has_an_hour_more_or_less(month: str, zone: str, hours: int) -> None:
    period = parse_period(month, zone, FIVE_MINUTES, LATER)
    assert period.end - period.start == hours * 3_600_000


def test_w2_months_follow_one_another_without_a_gap_or_an_overlap() -> None:
    march, april = (parse_period(m, "Europe/Berlin", FIVE_MINUTES, LATER) for m in ("2025-03", "2025-04"))
    assert march.end == april.start


def test_w2_without_a_period_the_last_complete_local_month_is_meant() -> None:
    # 23:30 UTC on 31 March is 1 April in Berlin already.
    now = round(datetime(2025, 3, 31, 23, 30, tzinfo=UTC).timestamp() * 1000)
    assert parse_period(None, "Europe/Berlin", FIVE_MINUTES, now).name == "2025-03"
    assert parse_period(None, "UTC", FIVE_MINUTES, now).name == "2025-02"


def test_w2_what_happens_at_the_periods_end_is_not_in_it(tmp_path: Path) -> None:
    # The cluster lives for three hours; the one in the middle costs 6.00, and the price of the next one is not its.
    c = Cluster(minutes=180)
    c.node("n1")
    c.gpu("n1")
    dear = [
        {"instance_type": BOX, "per_hour": "6.00", "to": START + timedelta(hours=2)},
        {"instance_type": BOX, "per_hour": "600.00", "from": START + timedelta(hours=2)},
    ]
    result = run(tmp_path, c, prices(prices=dear), period=span(60, 120))
    assert result.charges == money({("platform", "unallocated"): "6.00"})


def test_w2_a_zone_whose_offset_is_no_multiple_of_the_window_is_refused(tmp_path: Path) -> None:
    # Kolkata is 5 h 30 min ahead: its midnight lies in the middle of an hourly window.
    with pytest.raises(ConfigError, match=r"Asia/Kolkata.*W2"):
        run(tmp_path, long(START, 48), period="2025-03-05", timezone="Asia/Kolkata", window="1h")


def test_w2_allocations_are_by_utc_hour_and_cut_at_the_periods_edges(tmp_path: Path) -> None:
    # The day in Kolkata is 18:30 to 18:30 UTC: half an hour of 3.00 at either end, 23 whole ones of 6.00 between.
    result = run(tmp_path, long(START, 48), period="2025-03-05", timezone="Asia/Kolkata")
    rows = sorted(result.rows, key=lambda row: row["start"])
    assert rows[0]["start"] == datetime(2025, 3, 4, 18, 30, tzinfo=UTC)
    assert rows[-1]["end"] == datetime(2025, 3, 5, 18, 30, tzinfo=UTC)
    assert [row["cost"] for row in rows] == [Decimal(3), *[Decimal(6)] * 23, Decimal(3)]
    assert all(row["start"].replace(minute=0) + timedelta(hours=1) >= row["end"] for row in rows)


def test_w3_the_most_frequent_distance_between_samples_is_the_interval(tmp_path: Path) -> None:
    # Processes are seen once a minute, the device twice: 5 samples of 60 s in 10 of 30 s are the whole window.
    # So red has 20 of 80 GiB and blue 10, and nothing is left that no process explains.
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    c.pod("apps/a", team="red", node="n1")
    c.pod("apps/b", team="blue", node="n1")
    c.gpu("n1", used=30, pods={"apps/a": ["0"], "apps/b": ["1"]})
    c.process("n1", "apps/a", 20, every=60)
    c.process("n1", "apps/b", 10, every=60)
    # 6.00 x 20/80 and x 10/80; the rest, 3.75, in halves
    assert run(tmp_path, c).charges == money(
        {("red", "used"): "1.50", ("red", "idle"): "1.875", ("blue", "used"): "0.75", ("blue", "idle"): "1.875"}
    )


def ends_at_half_past(every: float) -> Cluster:
    """A node whose samples end before 10:30."""
    c = Cluster(every=every)
    c.node("n1", at=(0, 30))
    c.gpu("n1", at=(0, 30))
    return c


def test_w3_lost_scrapes_do_not_change_the_interval(tmp_path: Path) -> None:
    # Scraped once a minute, with a few lost: the last sample, of 10:29, stands for a minute. Half an hour is 3.00.
    c = ends_at_half_past(60)
    for minute in (3, 11, 12, 20):
        c.hole("", (minute, minute + 0.1))
    assert run(tmp_path, c).node_cost == Decimal("3.00")


def test_w3_a_configured_interval_counts_instead(tmp_path: Path) -> None:
    # The last sample, of 10:29:30, stands for 60 s: 30.5 minutes of 6.00 an hour.
    assert run(tmp_path, ends_at_half_past(30), scrape_interval="60s").node_cost == Decimal("3.05")


def test_w3_a_configured_interval_holds_where_there_is_a_single_sample(tmp_path: Path) -> None:
    # One sample, of 10:00:00, for 60 s of 6.00 an hour.
    c = Cluster()
    c.node("n1", at=(0, 0.5))
    c.gpu("n1", at=(0, 0.5))
    assert run(tmp_path, c, scrape_interval="60s").node_cost == Decimal("0.10")


def test_w3_a_bare_date_in_a_book_or_rule_is_a_local_midnight(tmp_path: Path) -> None:
    # Kiritimati is 14 h ahead: its 5 March begins at 10:00 UTC on the 4th. Half an hour at 6.00 for red, then one
    # at 12.00 for blue.
    c = Cluster(start=START - timedelta(minutes=30))
    c.node("n1")
    c.pod("apps/train", node="n1")
    c.gpu("n1", pods=["apps/train"])
    day = date(2025, 3, 5)
    book = prices(
        prices=[
            {"instance_type": BOX, "per_hour": "6.00", "to": day},
            {"instance_type": BOX, "per_hour": "12.00", "from": day},
        ]
    )
    rules = [
        {"match": {"namespace": "apps"}, "team": "red", "to": day},
        {"match": {"namespace": "apps"}, "team": "blue", "from": day},
    ]
    result = run(
        tmp_path, c, book, period=span(-30, 30), timezone="Pacific/Kiritimati", ownership={"rules": rules}
    )  # fmt: skip
    assert result.charges == money({("red", "idle"): "3.00", ("blue", "idle"): "6.00"})
