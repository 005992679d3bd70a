"""Rules G: what is charged for while data is missing."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from clusters import A100_40, BOX, START, Cluster, exclusive, forty, money, prices, run, sliced, span

TWELVE = prices("12.00")
"""A box whose windows of 5 minutes cost 1.00 each."""
MIDNIGHT = datetime(2025, 3, 5, tzinfo=UTC)


def silent(first: float, last: float = 60, used: float = 20) -> Cluster:
    """red's card with 20 of 80 GiB in use, about which nothing is reported for a while."""
    c = exclusive(used)
    c.hole("DCGM", (first, last))
    c.hole("gpu", (first, last))
    return c


def test_g1_a_silent_window_carries_the_last_shares_forward_and_is_estimated(tmp_path: Path) -> None:
    # Four windows of 1.00 without a report among twelve.
    result = run(tmp_path, silent(20, 40), TWELVE)
    assert result.charges == money({("red", "used"): "3.00", ("red", "idle"): "9.00"})
    assert result.estimated == money({("red", "used"): "1.00", ("red", "idle"): "3.00"})
    assert "n1" in result.subjects("scrape-gap")


def test_g1_it_is_the_last_window_that_is_carried_not_a_mean(tmp_path: Path) -> None:
    # 40 of 80 GiB in the window before the gap, 20 before that and after it: 4 windows of 0.25, 5 of 0.50, 3 of 0.25.
    c = exclusive(lambda minute: 40 if 20 <= minute < 25 else 20)
    c.hole("DCGM", (25, 45))
    c.hole("gpu", (25, 45))
    assert run(tmp_path, c, TWELVE).charges == money({("red", "used"): "4.25", ("red", "idle"): "7.75"})


def test_g1_after_max_gap_the_cost_is_unobserved(tmp_path: Path) -> None:
    # Last reported is the window that ends at 10:30. With 15 minutes those ending up to 10:45 are carried, 3; the
    # last three are nobody's.
    result = run(tmp_path, silent(30), TWELVE, max_gap="15m")
    assert result.charges == money(
        {("red", "used"): "2.25", ("red", "idle"): "6.75", ("platform", "unobserved"): "3.00"}
    )
    assert result.estimated == money({("red", "used"): "0.75", ("red", "idle"): "2.25"})


def test_g1_max_gap_that_ends_inside_a_window_does_not_reach_it(tmp_path: Path) -> None:
    # 14 minutes: the window that ends at 10:45 is 15 after 10:30. Two are carried.
    result = run(tmp_path, silent(30), TWELVE, max_gap="14m")
    assert result.charges["platform", "unobserved"] == 4
    assert sum(result.estimated.values()) == 2


def test_g1_before_its_first_report_a_device_is_unobserved(tmp_path: Path) -> None:
    # The node is there from 10:00, its card reports from 10:20.
    result = run(tmp_path, silent(0, 20), TWELVE)
    assert result.charges == money(
        {("red", "used"): "2.00", ("red", "idle"): "6.00", ("platform", "unobserved"): "4.00"}
    )
    assert result.estimated == {}


def test_g1_teams_are_those_of_the_window_that_is_filled(tmp_path: Path) -> None:
    # The pod changes hands at 10:40, in the middle of the gap: two of the four carried windows are blue's.
    c = silent(30, 50, used=0)
    c.hole("kube_pod_labels", (40, 60))
    c.series(
        "kube_pod_labels",
        1,
        {"namespace": "apps", "pod": "train", "uid": "uid-of-apps-train", "label_team": "blue"},
        (40, 60),
    )
    result = run(tmp_path, c, TWELVE)
    assert result.charges == money({("red", "idle"): "8.00", ("blue", "idle"): "4.00"})
    assert result.estimated == money({("red", "idle"): "2.00", ("blue", "idle"): "2.00"})


def test_g1_prices_are_those_of_the_window_that_is_filled(tmp_path: Path) -> None:
    # From 10:40 a window costs 2.00: two carried at 1.00 and two at 2.00, in all 8 x 1.00 + 4 x 2.00.
    change = START + timedelta(minutes=40)
    book = prices(
        prices=[
            {"instance_type": BOX, "per_hour": "12.00", "to": change},
            {"instance_type": BOX, "per_hour": "24.00", "from": change},
        ]
    )
    result = run(tmp_path, silent(30, 50, used=0), book)
    assert result.charges == money({("red", "idle"): "16.00"})
    assert result.estimated == money({("red", "idle"): "6.00"})


def test_g1_a_pod_that_is_gone_by_then_is_left_out(tmp_path: Path) -> None:
    # Two slots; the card is silent from 10:30 to 10:50, and red's pod ends at 10:40. Until then, 8 windows: red 20 and
    # blue 10 of 80 GiB, and half each of the other 50. In the two windows after, carried without red, blue pays 0.125
    # and half of the other 0.875. From 10:50 it is reported that blue is alone: the same.
    c = sliced({"red": 1, "blue": 1}, {"red": 20, "blue": 10}, replicas=2)
    c.hole("DCGM", (30, 60))
    c.hole("gpu", (30, 60))
    c.hole("kube_pod", (40, 60), pod="red")
    c.gpu("n1", used=10, pods={"apps/blue": ["1"]}, at=(50, 60))
    c.process("n1", "apps/blue", 10, at=(50, 60))
    result = run(tmp_path, c, TWELVE)
    # red: 8 x 0.25 and 8 x 0.3125; blue: 12 x 0.125, 8 x 0.3125 + 4 x 0.4375; and 4 x 0.4375 are nobody's
    assert result.charges == money(
        {
            ("red", "used"): "2.00",
            ("red", "idle"): "2.50",
            ("blue", "used"): "1.50",
            ("blue", "idle"): "4.25",
            ("platform", "unallocated"): "1.75",
        }
    )
    # carried are four windows: red in two of them, blue in all, and half of the rest in two
    assert result.estimated == money(
        {
            ("red", "used"): "0.50",
            ("red", "idle"): "0.625",
            ("blue", "used"): "0.50",
            ("blue", "idle"): "1.50",
            ("platform", "unallocated"): "0.875",
        }
    )


def test_g1_the_layouts_unpartitioned_part_stays_what_it_is(tmp_path: Path) -> None:
    # A 3g.20gb of red is half the card. Silent from 10:30; with 15 minutes red's half is carried for 3 windows and
    # unobserved for 3. The other half is unpartitioned to the end, and measured.
    c = Cluster()
    c.node("n1")
    c.pod("apps/a", team="red", node="n1", request=0)
    c.gpu("n1", model=A100_40, instance="1", profile="3g.20gb", size=19.5, pods=["apps/a"], at=(0, 30))
    result = run(tmp_path, c, forty("12.00"), max_gap="15m")
    assert result.charges == money(
        {("red", "idle"): "4.50", ("platform", "unobserved"): "1.50", ("platform", "unpartitioned"): "6.00"}
    )
    assert result.estimated == money({("red", "idle"): "1.50"})


def test_g1_what_was_reported_before_the_period_is_carried_into_it(tmp_path: Path) -> None:
    # The period begins at 10:30, the last report was at 10:25.
    result = run(tmp_path, silent(25, 45), TWELVE, period=span(30, 60))
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})
    assert result.estimated == money({("red", "used"): "0.75", ("red", "idle"): "2.25"})


def test_g1_nothing_is_carried_into_another_life_of_the_node(tmp_path: Path) -> None:
    # Away from 10:20 for 40 minutes, with 15 as max_gap, and back without a report until 11:05: another node.
    c = exclusive(20, minutes=80)
    c.hole("", (20, 60))
    c.hole("DCGM", (60, 65))
    c.hole("gpu", (60, 65))
    result = run(tmp_path, c, TWELVE, period=span(0, 80), max_gap="15m")
    # 4 + 3 windows with a report, and one before the first of its life
    assert result.charges == money(
        {("red", "used"): "1.75", ("red", "idle"): "5.25", ("platform", "unobserved"): "1.00"}
    )
    assert result.estimated == {}


def two_users(stop: float, after: float) -> Cluster:
    """red with 20 and blue with 10 GiB on one card in two slots; from minute `stop` no process is seen any more, and
    `after` GiB are in use."""
    c = sliced({"red": 1, "blue": 1}, {"red": 20, "blue": 10}, replicas=2)
    c.hole("gpu_process", (stop, 60))
    c.overwrite("DCGM_FI_DEV_FB_USED", after * 1024, (stop, 60))
    c.overwrite("DCGM_FI_DEV_FB_FREE", (80 - after) * 1024, (stop, 60))
    return c


SHARES = {("red", "used"): "3.00", ("blue", "used"): "1.50", ("red", "idle"): "3.75", ("blue", "idle"): "3.75"}
"""12.00: 20 and 10 of 80 GiB, and half each of the other 50."""


def test_g2_when_a_nodes_process_series_stop_their_last_values_stand_in(tmp_path: Path) -> None:
    # From 10:30 on nothing but the device is seen: all that is estimated, idle too.
    result = run(tmp_path, two_users(30, 30), TWELVE)
    assert result.charges == money(SHARES)
    assert result.estimated == money(
        {("red", "used"): "1.50", ("blue", "used"): "0.75", ("red", "idle"): "1.875", ("blue", "idle"): "1.875"}
    )
    assert "n1" in result.subjects("process-exporter-silent")


def test_g2_for_at_most_max_gap(tmp_path: Path) -> None:
    # 15 minutes as above; then, for 3 windows, 15 GiB each by slots (H3): 3 x 15/80 and the idle is measured again.
    result = run(tmp_path, two_users(30, 30), TWELVE, max_gap="15m")
    # red: 9 x 0.25 + 3 x 0.1875; blue: 9 x 0.125 + 3 x 0.1875; idle 12 x 0.3125 each
    assert result.charges == money(
        {("red", "used"): "2.8125", ("blue", "used"): "1.6875", ("red", "idle"): "3.75", ("blue", "idle"): "3.75"}
    )
    assert result.estimated == money(
        {
            ("red", "used"): "1.3125",  # 3 x 0.25 + 3 x 0.1875
            ("blue", "used"): "0.9375",
            ("red", "idle"): "0.9375",  # 3 x 0.3125
            ("blue", "idle"): "0.9375",
        }
    )


def test_g2_half_of_what_was_explained_is_enough(tmp_path: Path) -> None:
    # 15 GiB of 30 are still in use.
    assert run(tmp_path, two_users(30, 15), TWELVE).charges == money(SHARES)


def test_g2_when_the_memory_is_given_back_the_processes_have_ended(tmp_path: Path) -> None:
    # 1 GiB is left: from 10:30 on both hold a card that nobody uses. 6 x 0.25, 6 x 0.125, halves of the rest.
    result = run(tmp_path, two_users(30, 1), TWELVE)
    assert result.charges == money(
        {("red", "used"): "1.50", ("blue", "used"): "0.75", ("red", "idle"): "4.875", ("blue", "idle"): "4.875"}
    )
    assert result.estimated == {}


def test_g2_while_any_process_of_the_node_is_seen_the_exporter_is_not_silent(tmp_path: Path) -> None:
    # Only red's process has stopped; blue's goes on. red's 20 GiB are its own by slots (H3), and its idle is measured.
    c = sliced({"red": 1, "blue": 1}, {"red": 20, "blue": 10}, replicas=2)
    c.hole("gpu_process", (30, 60), pod="red")
    result = run(tmp_path, c, TWELVE)
    assert result.charges == money(SHARES)
    assert result.estimated == money({("red", "used"): "1.50"})


def test_g2_a_pod_that_has_ended_does_not_stand_in(tmp_path: Path) -> None:
    # blue's pod ends at 10:40, ten minutes into the silence; red is alone then and has what is in use (H3).
    c = two_users(30, 30)
    c.hole("kube_pod", (40, 60), pod="blue")
    result = run(tmp_path, c, TWELVE)
    assert result.charges["blue", "used"] == money({("", ""): "1.00"})["", ""]  # 8 windows of 10 of 80
    assert result.charges["red", "used"] == money({("", ""): "3.50"})["", ""]  # 8 of 20 of 80, 4 of 30 of 80


def test_g3_idle_beside_an_estimated_used_charge_is_measured(tmp_path: Path) -> None:
    # No process at all: 30 GiB in halves by slots (H3). 12.00 x 15/80 each, estimated; 7.50 in halves, measured.
    result = run(tmp_path, two_users(0, 30), TWELVE)
    assert result.charges == money(
        {("red", "used"): "2.25", ("blue", "used"): "2.25", ("red", "idle"): "3.75", ("blue", "idle"): "3.75"}
    )
    assert result.estimated == money({("red", "used"): "2.25", ("blue", "used"): "2.25"})


def test_g3_what_is_estimated_is_told_on_the_invoice_line_and_in_the_manifest(tmp_path: Path) -> None:
    # 4 of 12 windows are carried.
    result = run(tmp_path, silent(20, 40), TWELVE)
    assert {line["estimated_share"] for line in result.lines} == {"0.333333"}
    assert result.manifest["estimated_share"] == 0.333333
    assert result.manifest["observed_share"] == 0.666667


def around_midnight() -> Cluster:
    """red's card with 20 of 80 GiB in use, from 23:00 on for two hours."""
    c = Cluster(minutes=120, start=MIDNIGHT - timedelta(hours=1))
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", used=20, pods=["apps/train"])
    c.process("n1", "apps/train", 20)
    return c


def test_g1_shares_are_carried_from_one_day_into_the_next(tmp_path: Path) -> None:
    # Silent from 23:45 to 00:15: six windows of 1.00, three of them after midnight.
    c = around_midnight()
    c.hole("DCGM", (45, 75))
    c.hole("gpu", (45, 75))
    result = run(tmp_path, c, TWELVE, period=span(0, 120, c.start))
    assert result.charges == money({("red", "used"): "6.00", ("red", "idle"): "18.00"})
    assert result.estimated == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


def test_g1_a_day_by_itself_carries_what_the_day_before_reported(tmp_path: Path) -> None:
    # The period begins at midnight, in the middle of the gap.
    c = around_midnight()
    c.hole("DCGM", (45, 75))
    c.hole("gpu", (45, 75))
    result = run(tmp_path, c, TWELVE, period=span(60, 120, c.start))
    assert result.charges == money({("red", "used"): "3.00", ("red", "idle"): "9.00"})
    assert result.estimated == money({("red", "used"): "0.75", ("red", "idle"): "2.25"})


def test_g1_the_layout_of_the_day_before_stands_after_max_gap(tmp_path: Path) -> None:
    # A 3g.20gb, half the card, was last reported at 23:30; with 15 minutes it is unobserved from 23:45 on, and the
    # other half unpartitioned, also after midnight.
    c = Cluster(minutes=120, start=MIDNIGHT - timedelta(hours=1))
    c.node("n1")
    c.gpu("n1", model=A100_40, instance="1", profile="3g.20gb", size=19.5, at=(0, 30))
    book = forty("12.00")
    result = run(tmp_path, c, book, period=span(0, 120, c.start), max_gap="15m")
    # 9 windows of 0.50 reported or carried, 15 not; 24 of 0.50 unpartitioned
    assert result.charges == money(
        {
            ("platform", "unallocated"): "4.50",
            ("platform", "unobserved"): "7.50",
            ("platform", "unpartitioned"): "12.00",
        }
    )


def test_g2_processes_that_stopped_the_day_before_stand_in_too(tmp_path: Path) -> None:
    # Two pods on one card; their processes are not seen from 23:50 on, for 30 minutes they stand in.
    c = Cluster(minutes=120, start=MIDNIGHT - timedelta(hours=1))
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    c.gpu("n1", used=30, pods={"apps/red": ["0"], "apps/blue": ["1"]})
    for team, gib in (("red", 20), ("blue", 10)):
        c.pod(f"apps/{team}", team=team, node="n1")
        c.process("n1", f"apps/{team}", gib, at=(0, 50))
    result = run(tmp_path, c, TWELVE, period=span(60, 120, c.start), max_gap="30m")
    # from 00:00 to 00:20, 4 windows: 0.25 and 0.125; then 8 by slots: 15 of 80 GiB each
    assert result.charges == money(
        {("red", "used"): "2.50", ("blue", "used"): "2.00", ("red", "idle"): "3.75", ("blue", "idle"): "3.75"}
    )
    assert result.estimated == money(
        {("red", "used"): "2.50", ("blue", "used"): "2.00", ("red", "idle"): "1.25", ("blue", "idle"): "1.25"}
    )
