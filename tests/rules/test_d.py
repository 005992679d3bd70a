"""Rules D: what a device is, which part of its GPU a MIG instance is, and what its capacity is."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from clusters import A100_40, A100_80, Cluster, Number, exclusive, forty, money, prices, run, sliced

from chargeback.errors import ConfigError

Device = tuple[str, str]


def by_device(rows: list[dict[str, Any]]) -> dict[Device, Decimal]:
    """What each device cost, by (UUID, instance)."""
    sums: dict[Device, Decimal] = {}
    for row in rows:
        key = (row["gpu_uuid"], row["gpu_instance_id"])
        sums[key] = sums.get(key, Decimal(0)) + row["cost"]
    return sums


def partitioned(*instances: tuple[str, str, float], model: str = A100_40, uuid: str = "GPU-0") -> Cluster:
    """Node n1 with one card in idle instances: (id, profile, GiB) each."""
    c = Cluster()
    c.node("n1")
    for number, profile, size in instances:
        c.gpu("n1", uuid, model=model, instance=number, profile=profile, size=size)
    return c


def test_d1_each_mig_instance_is_a_device_of_its_gpu(tmp_path: Path) -> None:
    # Two cards of 12.00 an hour each, both with instances 1 and 2: four devices. 3g.20gb is 4/8, 2g.10gb 2/8.
    c = partitioned(("1", "3g.20gb", 19.5), ("2", "2g.10gb", 9.5))
    c.add(partitioned(("1", "3g.20gb", 19.5), ("2", "2g.10gb", 9.5), uuid="GPU-1"))
    rows = run(tmp_path, c, forty("24.00", gpus=2)).rows
    assert by_device(rows) == {
        ("GPU-0", "1"): 6,
        ("GPU-0", "2"): 3,
        ("GPU-0", ""): 3,
        ("GPU-1", "1"): 6,
        ("GPU-1", "2"): 3,
        ("GPU-1", ""): 3,
    }
    assert {row["kind"] for row in rows if not row["gpu_instance_id"]} == {"unpartitioned"}


def test_d1_pods_that_share_a_gpu_share_one_device(tmp_path: Path) -> None:
    result = run(tmp_path, sliced({"red": 1, "blue": 1}, {"red": 20, "blue": 20}, replicas=2))
    assert by_device(result.rows) == {("GPU-0", ""): 6}
    assert {row["sharing"] for row in result.rows} == {"time-slicing"}


def test_d1_one_uuid_and_instance_on_two_nodes_are_two_devices(tmp_path: Path) -> None:
    # A card that was moved is another device on its new node: each node pays for its own hour.
    c = partitioned(("1", "7g.40gb", 39))
    c.node("n2")
    c.gpu("n2", "GPU-0", model=A100_40, instance="1", profile="7g.40gb", size=39)
    assert {(row["node"], row["cost"]) for row in run(tmp_path, c, forty()).rows} == {("n1", 6), ("n2", 6)}


def test_d1_a_cards_own_row_beside_its_instances_is_no_second_device(tmp_path: Path) -> None:
    # 1g.5gb is 1/8 of 12.00; the card's row adds nothing.
    c = partitioned(("1", "1g.5gb", 4.75))
    c.gpu("n1", model=A100_40, size=40)
    result = run(tmp_path, c, forty("12.00"))
    assert result.charges == money({("platform", "unallocated"): "1.50", ("platform", "unpartitioned"): "10.50"})


@pytest.mark.parametrize(
    ("weight", "instance_3g", "instance_1g", "left"),
    [
        ("memory", "42.00", "10.50", "31.50"),  # 4/8 and 1/8 of 84.00
        ("compute", "36.00", "12.00", "36.00"),  # 3/7 and 1/7
        ("max", "42.00", "12.00", "30.00"),  # the larger of 4/8 and 3/7, of 1/8 and 1/7
    ],
)
def test_d2_an_instance_is_its_slices_of_the_card(
    tmp_path: Path, weight: str, instance_3g: str, instance_1g: str, left: str
) -> None:
    c = partitioned(("1", "3g.20gb", 19.5), ("2", "1g.5gb", 4.75))
    result = run(tmp_path, c, forty("84.00"), mig={"weight": weight})
    assert by_device(result.rows) == {
        ("GPU-0", "1"): Decimal(instance_3g),
        ("GPU-0", "2"): Decimal(instance_1g),
        ("GPU-0", ""): Decimal(left),
    }
    assert result.charges["platform", "unpartitioned"] == Decimal(left)


@pytest.mark.parametrize(("model", "part"), [(A100_80, "1.50"), (A100_40, "3.00")])
def test_d2_one_profile_is_another_part_of_another_card(tmp_path: Path, model: str, part: str) -> None:
    # 1g.10gb is 1/8 of 80 GB and 2/8 of 40 GB; the node costs 12.00.
    result = run(tmp_path, partitioned(("1", "1g.10gb", 9.5), model=model), prices("12.00", model=model))
    assert result.charges["platform", "unallocated"] == Decimal(part)


def test_d2_a_variant_counts_as_its_base(tmp_path: Path) -> None:
    # 1g.5gb+me is 1/8 of 12.00.
    result = run(tmp_path, partitioned(("1", "1g.5gb+me", 4.75)), forty("12.00"))
    assert result.charges["platform", "unallocated"] == Decimal("1.50")
    assert "unknown-mig-profile" not in result.problems


def test_d2_a_profile_that_no_table_has_goes_by_its_memory_and_is_reported(tmp_path: Path) -> None:
    # 10 of 40 GiB: 1/4 of 12.00.
    result = run(tmp_path, partitioned(("1", "5g.10gb", 10)), forty("12.00"))
    assert result.charges["platform", "unallocated"] == Decimal("3.00")
    assert "unknown-mig-profile" in result.problems


def test_d2_parts_that_exceed_the_card_are_scaled_to_it(tmp_path: Path) -> None:
    # By the larger of both, 3g.20gb is 4/8 and 4g.20gb 4/7, 15/14 together: 7/15 and 8/15 of 18.00.
    c = partitioned(("1", "3g.20gb", 19.5), ("2", "4g.20gb", 19.5))
    result = run(tmp_path, c, forty("18.00"), mig={"weight": "max"})
    assert by_device(result.rows) == {("GPU-0", "1"): Decimal("8.40"), ("GPU-0", "2"): Decimal("9.60")}
    assert result.charges == money({("platform", "unallocated"): "18.00"})


def test_d2_an_unknown_weight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mig\.weight"):
        run(tmp_path, partitioned(("1", "3g.20gb", 19.5)), forty(), mig={"weight": "size"})


def test_d2_another_layout_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    # Until 10:30 one 3g.20gb of red (4/8 of 6.00 for the half hour), then a 2g.10gb of blue (2/8) beside an 1g.5gb
    # (1/8): what is missing while its GPU reports others is gone and costs nothing.
    c = Cluster()
    c.node("n1")
    c.pod("apps/a", team="red", node="n1", request=0)
    c.pod("apps/b", team="blue", node="n1", request=0)
    c.gpu("n1", instance="1", profile="3g.20gb", size=19.5, pods=["apps/a"], at=(0, 30), model=A100_40)
    c.gpu("n1", instance="3", profile="2g.10gb", size=9.5, pods=["apps/b"], at=(30, 60), model=A100_40)
    c.gpu("n1", instance="9", profile="1g.5gb", size=4.75, at=(30, 60), model=A100_40)
    assert run(tmp_path, c, forty("12.00")).charges == money(
        {
            ("red", "idle"): "3.00",
            ("blue", "idle"): "1.50",
            ("platform", "unallocated"): "0.75",
            ("platform", "unpartitioned"): "6.75",  # 4/8, then 5/8, of 6.00
        }
    )


def test_d2_an_instance_missing_from_a_report_of_its_gpu_is_gone(tmp_path: Path) -> None:
    # The 2g.10gb is there until 10:30 and the 3g.20gb all the time: 4/8 of 12.00, and 2/8 of 6.00.
    c = partitioned(("1", "3g.20gb", 19.5))
    c.gpu("n1", model=A100_40, instance="3", profile="2g.10gb", size=9.5, at=(0, 30))
    result = run(tmp_path, c, forty("12.00"))
    assert by_device(result.rows) == {
        ("GPU-0", "1"): 6,
        ("GPU-0", "3"): Decimal("1.50"),
        ("GPU-0", ""): Decimal("4.50"),
    }
    assert result.estimated == {}


def test_d2_a_layout_stands_while_nothing_is_reported(tmp_path: Path) -> None:
    # The card is silent from 10:30, Kubernetes shows the node: red's 4/8 is carried to the end.
    c = Cluster()
    c.node("n1")
    c.pod("apps/a", team="red", node="n1", request=0)
    c.gpu("n1", model=A100_40, instance="1", profile="3g.20gb", size=19.5, pods=["apps/a"], at=(0, 30))
    result = run(tmp_path, c, forty("12.00"))
    assert result.charges == money({("red", "idle"): "6.00", ("platform", "unpartitioned"): "6.00"})
    assert result.estimated == money({("red", "idle"): "3.00"})


def with_memory(**memory: Any) -> Cluster:
    """red's GPU, its process with 20 GiB, and what the exporter says of the device."""
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", pods=["apps/train"], **{"used": 20, **memory})
    c.process("n1", "apps/train", 20)
    return c


@pytest.mark.parametrize(
    ("memory", "used"),
    [
        ({"size": 80}, "9.00"),  # used 20 + free 60
        ({"size": 60, "reserved": 20}, "12.00"),  # reserved memory is in neither
        ({"free": 30, "total": 90, "reserved": 10}, "9.00"),  # total less reserved comes first
        ({"size": 48, "total": 48}, "15.00"),
        ({"size": None}, "18.00"),  # the book's memory of the model, 40
    ],
)
def test_d4_capacity_is_total_less_reserved_else_used_and_free_else_the_books(
    tmp_path: Path, memory: dict[str, Any], used: str
) -> None:
    # 20 GiB of it, of 36.00 an hour
    result = run(tmp_path, with_memory(**memory), prices("36.00", gib=40))
    assert result.charges["red", "used"] == Decimal(used)
    assert ("capacity-from-book" in result.problems) == (memory == {"size": None})


def test_d4_a_mig_instances_capacity_is_its_own(tmp_path: Path) -> None:
    # 5 of 20 GiB of an instance that is half the card: 6.00 x 1/4.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1", request={"nvidia_com_mig_3g_20gb": 1})
    c.gpu("n1", model=A100_40, instance="1", profile="3g.20gb", used=5, size=20, pods=["apps/train"])
    c.process("n1", "apps/train", 5, instance="1")
    assert run(tmp_path, c, forty("12.00")).charges == money(
        {("red", "used"): "1.50", ("red", "idle"): "4.50", ("platform", "unpartitioned"): "6.00"}
    )


def every_other(one: float, other: float) -> Number:
    """One value at each full minute, another at each half."""
    return lambda minute: one if minute == int(minute) else other


def test_d4_values_in_a_window_are_means_of_its_samples(tmp_path: Path) -> None:
    # 10 and 30 GiB in turn are 20 of 80 on average, not 30: 6.00 x 1/4.
    result = run(tmp_path, exclusive(every_other(10, 30)))
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


def test_d4_capacity_is_a_mean_too(tmp_path: Path) -> None:
    # Free is 40 and 80 in turn: 20 of 80 GiB on average.
    result = run(tmp_path, with_memory(free=every_other(40, 80)))
    assert result.charges["red", "used"] == Decimal("1.50")
