"""Rules C: how long a node costs money, at which price, and among which GPUs it is divided."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from clusters import BOX, START, Cluster, Result, exclusive, money, prices, run, span

from chargeback.errors import DataError

A_WHOLE_HOUR = Decimal("6.00")


def by_node(result: Result) -> dict[str, Decimal]:
    """What each node cost."""
    sums: dict[str, Decimal] = {}
    for row in result.rows:
        sums[row["node"]] = sums.get(row["node"], Decimal(0)) + row["cost"]
    return sums


def test_c1_a_node_is_paid_from_its_first_sample_to_its_last_and_one_interval(tmp_path: Path) -> None:
    # Samples from 10:07:30 to 10:52:00, each for 30 s: 45 minutes of 6.00 an hour.
    c = Cluster()
    c.node("n1", at=(7.5, 52.5))
    c.gpu("n1", at=(7.5, 52.5))
    result = run(tmp_path, c)
    assert result.node_cost == Decimal("4.50")
    assert sum(row["gpu_hours"] for row in result.rows) == pytest.approx(0.75)


def test_c1_the_latest_of_all_its_samples_ends_a_nodes_life(tmp_path: Path) -> None:
    # The GPU reports until 10:30, Kubernetes shows the node until 10:45.
    c = Cluster()
    c.node("n1", at=(10, 45))
    c.gpu("n1", at=(0, 30))
    assert run(tmp_path, c).node_cost == Decimal("4.50")


def away(first: tuple[float, float], second: tuple[float, float], one: str = "", two: str = "") -> Cluster:
    """A node with samples in two stretches, under two provider ids."""
    c = Cluster(minutes=240)
    for at, provider_id in ((first, one), (second, two)):
        c.node("n1", at=at, provider_id=provider_id)
        c.gpu("n1", at=at)
    return c


@pytest.mark.parametrize(
    ("again", "one", "two", "cost"),
    [
        (119.5, "", "", "24.00"),  # an hour without samples, exactly max_gap: alive all four hours
        (120, "", "", "18.00"),  # half a minute more: away from 11:00 to 12:00
        (180, "aws:///a/i-1", "aws:///a/i-1", "24.00"),  # the same machine
        (180, "aws:///a/i-1", "aws:///a/i-2", "12.00"),  # another one under its name: two hours are not paid
        (180, "", "", "12.00"),  # nothing is known, so it is another one
    ],
)
def test_c1_a_gap_is_bridged_up_to_max_gap_or_on_the_same_machine(
    tmp_path: Path, again: float, one: str, two: str, cost: str
) -> None:
    result = run(tmp_path, away((0, 60), (again, 240), one, two), period=span(0, 240))
    assert result.node_cost == Decimal(cost)


def test_c1_samples_up_to_max_gap_before_and_after_the_period_count_as_evidence(tmp_path: Path) -> None:
    # Last seen at 10:09:30, again at 11:05: the hour from 10:15 is wholly within its life.
    c = Cluster(minutes=180)
    for at in ((0, 10), (65, 80)):
        c.node("n1", at=at)
        c.gpu("n1", at=at)
    assert run(tmp_path, c, period=span(15, 75), max_gap="1h").node_cost == A_WHOLE_HOUR


def test_c1_samples_farther_away_are_no_evidence(tmp_path: Path) -> None:
    # With 15 minutes nothing before 10:15 is looked at; the node begins at 10:50: 40 minutes of the hour to 11:30.
    c = Cluster(minutes=180)
    for at in ((0, 10), (50, 100)):
        c.node("n1", at=at)
        c.gpu("n1", at=at)
    assert run(tmp_path, c, period=span(30, 90), max_gap="15m").node_cost == Decimal("4.00")


def test_c1_a_node_whose_type_has_gpus_is_paid_though_it_reports_none(tmp_path: Path) -> None:
    # n2 is a box as well, and silent; n3 has a type without GPUs, n4 one that the book does not know.
    c = exclusive()
    c.node("n2")
    c.node("n3", "cpu-box")
    c.node("n4", "unknown")
    book = prices(
        instances={BOX: {"gpus": 1, "gpu_memory_gib": 80}, "cpu-box": {"gpus": 0}},
        prices=[{"instance_type": kind, "per_hour": "6.00"} for kind in (BOX, "cpu-box")],
    )
    assert run(tmp_path, c, book).charges == money(
        {("red", "used"): "1.50", ("red", "idle"): "4.50", ("platform", "unobserved"): "6.00"}
    )


def test_c2_the_most_specific_price_in_force_wins(tmp_path: Path) -> None:
    entries = [
        {"instance_type": BOX, "per_hour": "12.00"},
        {"instance_type": BOX, "purchase_option": "spot", "per_hour": "24.00"},
        {"instance_type": BOX, "region": "east", "per_hour": "36.00"},
        {"instance_type": BOX, "region": "east", "purchase_option": "spot", "per_hour": "48.00"},
        {"instance_type": BOX, "region": "west", "per_hour": "60.00"},
        {"node": "named", "per_hour": "72.00"},
        {"node": "twice", "per_hour": "84.00"},
        {"node": "twice", "purchase_option": "spot", "per_hour": "96.00"},
    ]
    spot = {"label_karpenter_sh_capacity_type": "spot"}
    c = Cluster()
    for name, region, labels in (
        ("plain", "", {}),
        ("plain-spot", "", spot),
        ("north-spot", "north", spot),
        ("east", "east", {}),
        ("east-spot", "east", spot),
        ("west-spot", "west", spot),
        ("named", "east", spot),
        ("twice", "east", spot),
    ):
        c.node(name, region=region, labels=labels)
        c.gpu(name, f"GPU-{name}")
    assert by_node(run(tmp_path, c, prices(prices=list(reversed(entries))))) == {
        "plain": 12,  # its type
        "plain-spot": 24,  # at equal rank one that names the option beats one that names none
        "north-spot": 24,  # no entry for its region
        "east": 36,  # type and region
        "east-spot": 48,
        "west-spot": 60,  # type and region beat type and option
        "named": 72,  # the node beats all
        "twice": 96,
    }


def test_c2_the_price_at_the_windows_start_holds_for_the_window(tmp_path: Path) -> None:
    # The price doubles at 10:32: up to 10:35 the old one, 35 minutes of 6.00; then 25 of 12.00: 3.50 + 5.00.
    change = START + timedelta(minutes=32)
    book = prices(
        prices=[
            {"instance_type": BOX, "per_hour": "6.00", "to": change},
            {"instance_type": BOX, "per_hour": "12.00", "from": change},
        ]
    )
    assert run(tmp_path, exclusive(0), book).charges == money({("red", "idle"): "8.50"})


def unpriced() -> Cluster:
    """n1 has a price; n2, n3 and n4 have none."""
    c = exclusive()
    c.node("n2", "big-box", region="east")
    c.node("n3", BOX, region="east", labels={"label_karpenter_sh_capacity_type": "spot"})
    c.node("n4", "")
    for name in ("n2", "n3", "n4"):
        c.gpu(name, f"GPU-{name}")
    return c


PRICED = prices(prices=[{"instance_type": BOX, "purchase_option": "on-demand", "per_hour": "6.00"}])


def test_c2_a_missing_price_stops_the_run_and_every_missing_key_is_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, unpriced(), PRICED)
    for what in ("big-box in east, on-demand", "box in east, spot", "n4"):
        assert what in caught.value.message
    assert not (tmp_path / "store" / "reports").exists()


def test_c2_a_missing_price_is_zero_only_where_that_was_chosen_and_is_flagged(tmp_path: Path) -> None:
    result = run(tmp_path, unpriced(), PRICED, pricing={"books": ["prices.yaml"], "missing": "zero"})
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})
    assert len(result.subjects("missing-price")) == 3
    assert {row["node"] for row in result.rows} == {"n1", "n2", "n3", "n4"}


@pytest.mark.parametrize(
    ("per_hour", "cost"),
    [
        ("0.000000006", "0.000000000"),  # half a nano-unit a window: to the even 0
        ("0.000000018", "0.000000024"),  # one and a half: to the even 2, twelve times
        ("0.000000030", "0.000000024"),  # two and a half: to the even 2
        ("0.000000031", "0.000000036"),  # 2.58: to 3
        ("21.957642", "21.957642000"),  # 1.8298035 a window
        ("1.00", "0.999999996"),  # 83333333.33 nano-units a window
    ],
)
def test_c3_a_windows_cost_is_rounded_half_even_to_a_nano_unit(tmp_path: Path, per_hour: str, cost: str) -> None:
    assert run(tmp_path, exclusive(), prices(per_hour)).node_cost == Decimal(cost)


def test_c3_a_window_costs_its_alive_seconds(tmp_path: Path) -> None:
    # Samples of 10:00:00 and 10:00:30, each for 30 s of 36.00 an hour.
    c = Cluster()
    c.node("n1", at=(0, 1))
    c.gpu("n1", at=(0, 1))
    assert run(tmp_path, c, prices("36.00")).node_cost == Decimal("0.60")


def cards(count: int, **node: str) -> Cluster:
    """A node on which some GPUs report, all free."""
    c = Cluster()
    c.node("n1", labels=node)
    for i in range(count):
        c.gpu("n1", f"GPU-{i}")
    return c


def test_c5_a_node_is_divided_by_the_books_number_of_gpus(tmp_path: Path) -> None:
    # Of the book's four, three report (the label's five do not count): 3.00 each, and 3.00 that nobody saw.
    result = run(tmp_path, cards(3, label_nvidia_com_gpu_count="5"), prices("12.00", gpus=4))
    assert result.charges == money({("platform", "unallocated"): "9.00", ("platform", "unobserved"): "3.00"})
    assert "gpu-missing" in result.problems


def test_c5_without_the_book_the_nodes_label_says_how_many(tmp_path: Path) -> None:
    # Two by the label, one reports.
    result = run(tmp_path, cards(1, label_nvidia_com_gpu_count="2"), prices("12.00", gpus=None))
    assert result.charges == money({("platform", "unallocated"): "6.00", ("platform", "unobserved"): "6.00"})


def test_c5_without_both_those_seen_count(tmp_path: Path) -> None:
    result = run(tmp_path, cards(2), prices("12.00", gpus=None))
    assert result.charges == money({("platform", "unallocated"): "12.00"})
    assert {(row["gpu_uuid"], row["cost"]) for row in result.rows} == {("GPU-0", 6), ("GPU-1", 6)}


def test_c5_never_fewer_than_are_seen_at_once(tmp_path: Path) -> None:
    # The book says one, three report: 12.00 each of 36.00, and it is said.
    result = run(tmp_path, cards(3), prices("36.00", gpus=1))
    assert {(row["gpu_uuid"], row["cost"]) for row in result.rows} == {("GPU-0", 12), ("GPU-1", 12), ("GPU-2", 12)}
    assert "n1" in result.subjects("gpu-count")


def test_c5_a_fraction_of_a_gpu_counts_as_one(tmp_path: Path) -> None:
    result = run(tmp_path, exclusive(), prices("6.00", gpus=0.25))
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


def swapped() -> Cluster:
    """GPU-0, which red holds, reports until 10:30; from then on GPU-1, which blue holds, does."""
    c = Cluster()
    c.node("n1")
    c.pod("apps/a", team="red", node="n1")
    c.pod("apps/b", team="blue", node="n1")
    c.gpu("n1", "GPU-0", pods=["apps/a"], at=(0, 30))
    c.gpu("n1", "GPU-1", pods=["apps/b"], at=(30, 60))
    return c


def test_c5_a_card_that_was_replaced_gives_its_room_to_the_new_one(tmp_path: Path) -> None:
    # Room for one: half an hour of the whole node each, nothing carried, nothing unobserved.
    result = run(tmp_path, swapped(), prices("6.00", gpus=1))
    assert result.charges == money({("red", "idle"): "3.00", ("blue", "idle"): "3.00"})
    assert result.estimated == {}


def test_c5_a_silent_card_carries_on_while_there_is_room(tmp_path: Path) -> None:
    # Room for two at 3.00 an hour each: red's card is measured for 30 minutes and carried for 30; blue's place was
    # unobserved at first.
    result = run(tmp_path, swapped(), prices("6.00", gpus=2))
    assert result.charges == money(
        {("red", "idle"): "3.00", ("blue", "idle"): "1.50", ("platform", "unobserved"): "1.50"}
    )
    assert result.estimated == money({("red", "idle"): "1.50"})


def test_c1_a_life_goes_on_over_midnight(tmp_path: Path) -> None:
    # From 22:00 to 02:00 without a sample between 23:40 and 00:20: four hours of 6.00.
    c = Cluster(minutes=240, start=START + timedelta(hours=12))
    c.node("n1")
    c.gpu("n1")
    c.hole("", (100, 140))
    assert run(tmp_path, c, period=span(0, 240, c.start)).node_cost == 24


@pytest.mark.parametrize("name", ["monitoring-pod", "localhost"])
def test_c1_an_exporter_that_does_not_know_its_nodes_name_is_found_by_its_pod(tmp_path: Path, name: str) -> None:
    # The card's rows carry the exporter's pod in the place of the node, or say nothing but `localhost` of it.
    c = Cluster()
    c.node("n1")
    c.pod("monitoring/monitoring-pod", node="n1", request=0)
    own = {"Hostname": name, "namespace": "monitoring", "pod": "monitoring-pod"}
    c.gpu("n1", labels={**own, "exported_namespace": "apps", "exported_pod": "train"})
    result = run(tmp_path, c)
    assert {row["node"] for row in result.rows} == {"n1"}
    assert result.node_cost == A_WHOLE_HOUR
