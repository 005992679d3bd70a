"""Rules S: how a device's cost is divided among those who use and hold it."""

from pathlib import Path

import pytest
from clusters import Cluster, exclusive, money, prices, run, sliced

from chargeback.errors import ConfigError

TWELVE = prices("12.00")


def shared() -> Cluster:
    """A card of 80 GiB in four slots, all day the same.

    red holds two slots and uses 10 GiB, blue holds one and uses nothing, green is a guest with 10 GiB; the fourth
    slot is nobody's.
    """
    return sliced({"red": 2, "blue": 1}, {"red": 10, "green": 10}, replicas=4)


USED = {("red", "used"): "1.50", ("green", "used"): "1.50"}
"""12.00 x 10/80 each; 9.00 are left."""
BY_REQUEST = {("red", "used"): "6.00", ("blue", "used"): "3.00", ("platform", "unallocated"): "3.00"}
"""12.00 by slots, 2, 1 and 1 of 4."""
BY_THE_LARGER = {("red", "used"): "6.00", ("blue", "used"): "3.00", ("green", "used"): "1.50"}
"""red's 2/4 of slots, blue's 1/4 of slots, green's 1/8 of memory; 1.50 are left."""


@pytest.mark.parametrize(
    ("basis", "idle", "charges"),
    [
        # the 9.00 that are left by slots: 2, 1 and 1 of 4
        (
            "memory",
            "holders",
            USED | {("red", "idle"): "4.50", ("blue", "idle"): "2.25", ("platform", "unallocated"): "2.25"},
        ),
        # by memory, half and half: 6.00 each, as if the whole were divided by memory
        ("memory", "consumers", USED | {("red", "idle"): "4.50", ("green", "idle"): "4.50"}),
        ("memory", "platform", USED | {("platform", "idle"): "9.00"}),
        ("request", "holders", BY_REQUEST),
        ("request", "consumers", BY_REQUEST),
        ("request", "platform", BY_REQUEST),
        # the 1.50 that are left, likewise
        (
            "max",
            "holders",
            BY_THE_LARGER | {("red", "idle"): "0.75", ("blue", "idle"): "0.375", ("platform", "unallocated"): "0.375"},
        ),
        ("max", "consumers", BY_THE_LARGER | {("red", "idle"): "0.75", ("green", "idle"): "0.75"}),
        ("max", "platform", BY_THE_LARGER | {("platform", "idle"): "1.50"}),
    ],
)
def test_s1_s2_s3_every_basis_with_every_way_of_idle(
    tmp_path: Path, basis: str, idle: str, charges: dict[tuple[str, str], str]
) -> None:
    result = run(tmp_path, shared(), TWELVE, allocation={"basis": basis, "idle": idle})
    assert result.charges == money(charges)
    assert result.estimated == {}


@pytest.mark.parametrize("gib", [0, 1, 20, 79.5, 80])
def test_s1_used_is_the_part_of_memory(tmp_path: Path, gib: float) -> None:
    # 12.00 x gib / 80, all of it for the only holder one way or the other
    result = run(tmp_path, exclusive(gib), TWELVE)
    used = {("red", "used"): f"{12 * gib / 80:.9f}", ("red", "idle"): f"{12 - 12 * gib / 80:.9f}"}
    assert result.charges == {key: cost for key, cost in money(used).items() if cost}


def test_s2_without_settings_idle_is_owed_by_the_holders(tmp_path: Path) -> None:
    one = run(tmp_path / "one", shared(), TWELVE)
    other = run(tmp_path / "other", shared(), TWELVE, allocation={"basis": "memory", "idle": "holders"})
    assert one.charges == other.charges


def test_s2_a_pod_that_alone_holds_a_gpu_pays_for_all_of_it(tmp_path: Path) -> None:
    result = run(tmp_path, exclusive(20))
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


def test_s2_a_holder_that_does_nothing_does_not_ride_free(tmp_path: Path) -> None:
    # red uses 40 of 80 GiB, blue nothing; 3.00 of 6.00 are left, halves.
    result = run(tmp_path, sliced({"red": 1, "blue": 1}, {"red": 40}, replicas=2))
    assert result.charges == money({("red", "used"): "3.00", ("red", "idle"): "1.50", ("blue", "idle"): "1.50"})


@pytest.mark.parametrize("idle", ["holders", "consumers"])
def test_s2_on_a_device_without_a_holder_idle_goes_by_memory(tmp_path: Path, idle: str) -> None:
    # Two guests with 30 and 10 GiB: three quarters and one of the 6.00 that are left of 12.00.
    result = run(tmp_path, sliced({}, {"red": 30, "blue": 10}, replicas=4), TWELVE, allocation={"idle": idle})
    assert result.charges == money(
        {("red", "used"): "4.50", ("blue", "used"): "1.50", ("red", "idle"): "4.50", ("blue", "idle"): "1.50"}
    )


def test_s2_consumers_without_any_memory_share_by_slots_held(tmp_path: Path) -> None:
    # Three slots of four are held: 8.00 and 4.00 of 12.00, and nothing is unallocated.
    result = run(tmp_path, sliced({"red": 2, "blue": 1}, {}, replicas=4), TWELVE, allocation={"idle": "consumers"})
    assert {key: round(cost, 6) for key, cost in result.charges.items()} == money(
        {("red", "idle"): "8.00", ("blue", "idle"): "4.00"}
    )


def test_s2_platform_idle_is_the_platforms_even_where_one_pod_holds_all(tmp_path: Path) -> None:
    result = run(tmp_path, exclusive(20), allocation={"idle": "platform"})
    assert result.charges == money({("red", "used"): "1.50", ("platform", "idle"): "4.50"})
    assert [row["pod"] for row in result.rows if row["team"] == "platform"] == [""]


def test_s3_by_request_a_guest_pays_nothing(tmp_path: Path) -> None:
    # The only pod there uses half the memory and holds nothing.
    result = run(tmp_path, sliced({}, {"green": 40}, replicas=2), allocation={"basis": "request"})
    assert result.charges == money({("platform", "unallocated"): "6.00"})


def test_s3_max_is_scaled_where_the_larger_parts_exceed_one(tmp_path: Path) -> None:
    # red: 60 of 80 GiB and 1 of 4 slots; blue: nothing and 2 of 4. 3/4 and 1/2 are 5/4: 3/5 and 2/5 of 12.00.
    result = run(tmp_path, sliced({"red": 1, "blue": 2}, {"red": 60}, replicas=4), TWELVE, allocation={"basis": "max"})
    assert {key: round(cost, 6) for key, cost in result.charges.items()} == money(
        {("red", "used"): "7.20", ("blue", "used"): "4.80"}
    )


def test_s3_max_takes_memory_for_one_and_slots_for_another(tmp_path: Path) -> None:
    # red: 20 of 80 GiB beats none of its slots, 1 of 8; blue: 2 of 8 slots beat 10 GiB. 3.00 each of 12.00; the other
    # 6.00 by slots held: 1, 2 and 5 of 8.
    result = run(
        tmp_path, sliced({"red": 1, "blue": 2}, {"red": 20, "blue": 10}, replicas=8), TWELVE,
        allocation={"basis": "max"},
    )  # fmt: skip
    assert result.charges == money(
        {
            ("red", "used"): "3.00",
            ("blue", "used"): "3.00",
            ("red", "idle"): "0.75",
            ("blue", "idle"): "1.50",
            ("platform", "unallocated"): "3.75",
        }
    )


@pytest.mark.parametrize("basis", ["memory", "request", "max"])
@pytest.mark.parametrize("idle", ["holders", "consumers", "platform"])
def test_s4_a_device_without_consumer_or_holder_is_unallocated(tmp_path: Path, basis: str, idle: str) -> None:
    c = Cluster()
    c.node("n1")
    c.gpu("n1")
    result = run(tmp_path, c, allocation={"basis": basis, "idle": idle})
    assert result.charges == money({("platform", "unallocated"): "6.00"})


def test_s5_compute_activity_changes_no_charge(tmp_path: Path) -> None:
    c = exclusive(20)
    c.series("DCGM_FI_DEV_GPU_UTIL", 97, {"UUID": "GPU-0", "Hostname": "n1"})
    result = run(tmp_path, c)
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


@pytest.mark.parametrize("allocation", [{"basis": "compute"}, {"idle": "nobody"}, {"shared": "equal"}])
def test_s_an_unknown_policy_is_refused(tmp_path: Path, allocation: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=rf"allocation\.{next(iter(allocation))}"):
        run(tmp_path, exclusive(20), allocation=allocation)
