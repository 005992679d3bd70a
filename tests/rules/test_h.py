"""Rules H: who holds a device, and whose the memory is that no process explains."""

from decimal import Decimal
from pathlib import Path

import pytest
from clusters import A100_40, Charges, Cluster, exclusive, forty, money, prices, run, sliced

TWO = prices("12.00", gpus=2)
"""A box with two cards, 6.00 each."""


def paid_by_device(rows: list[dict[str, object]]) -> dict[tuple[object, object], object]:
    """Who paid for which card, with the sums."""
    sums: dict[tuple[object, object], Decimal] = {}
    for row in rows:
        key = (row["team"], row["gpu_uuid"])
        sums[key] = sums.get(key, Decimal(0)) + Decimal(str(row["cost"]))
    return {key: cost for key, cost in sums.items() if cost}


def two_cards(**pods: str) -> Cluster:
    """Node n1 with GPU-0 and GPU-1, idle, each with the pod that its rows name: `GPU_1="apps/a"`."""
    c = Cluster()
    c.node("n1")
    for uuid in ("GPU-0", "GPU-1"):
        name = pods.get(uuid.replace("-", "_"))
        c.gpu("n1", uuid, pods=[name] if name else [])
    return c


def test_h1_a_pod_holds_what_was_allocated_to_it_though_it_runs_nothing(tmp_path: Path) -> None:
    # Named by the card's rows: all 6.00, never used.
    c = exclusive(0)
    c.hole("gpu_process", (0, 60))
    assert run(tmp_path, c).charges == money({("red", "idle"): "6.00"})


def test_h1_a_request_on_the_node_is_evidence_where_no_label_is(tmp_path: Path) -> None:
    c = two_cards()
    c.pod("apps/a", team="red", node="n1")
    assert paid_by_device(run(tmp_path, c, TWO).rows) == {("red", "GPU-0"): 6, ("platform", "GPU-1"): 6}


def test_h1_a_label_is_better_evidence_than_a_request(tmp_path: Path) -> None:
    # The request alone would be given GPU-0.
    c = two_cards(GPU_1="apps/a")
    c.pod("apps/a", team="red", node="n1")
    assert paid_by_device(run(tmp_path, c, TWO).rows) == {("platform", "GPU-0"): 6, ("red", "GPU-1"): 6}


def test_h1_a_request_on_another_node_holds_nothing_here(tmp_path: Path) -> None:
    c = two_cards()
    c.node("n2")
    c.gpu("n2", "GPU-2")
    c.gpu("n2", "GPU-3")
    c.pod("apps/a", team="red", node="n2", request=2)
    assert paid_by_device(run(tmp_path, c, TWO).rows) == {
        ("platform", "GPU-0"): 6, ("platform", "GPU-1"): 6, ("red", "GPU-2"): 6, ("red", "GPU-3"): 6,
    }  # fmt: skip


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize(
    ("done", "red", "nobody"),
    [
        (30, "3.00", "3.00"),
        (32, "3.50", "2.50"),  # a window counts if it held at any sample of it
    ],
)
def test_h1_a_pod_holds_until_it_has_come_to_its_end_whatever_the_exporter_names(
    tmp_path: Path, phase: str, done: float, red: str, nobody: str
) -> None:
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1", done=done, phase=phase)
    c.gpu("n1", pods=["apps/train"])
    result = run(tmp_path, c)
    assert result.charges == money({("red", "idle"): red, ("platform", "unallocated"): nobody})
    assert "apps/train" in result.subjects("finished-but-named")


def test_h1_a_pod_that_is_no_longer_listed_holds_no_longer(tmp_path: Path) -> None:
    # Deleted at 10:30, while kube-state-metrics goes on listing others. The exporter's rows stay.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1", at=(0, 30))
    c.pod("apps/web", node="n1", request=0)
    c.gpu("n1", pods=["apps/train"])
    assert run(tmp_path, c).charges == money({("red", "idle"): "3.00", ("platform", "unallocated"): "3.00"})


def test_h1_while_kube_state_metrics_is_silent_the_exporter_is_believed(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", pods=["apps/train"])
    c.hole("kube", (30, 60))
    assert run(tmp_path, c).charges == money({("red", "idle"): "6.00"})


def test_h1_while_kube_state_metrics_is_silent_a_request_stands(tmp_path: Path) -> None:
    c = two_cards()
    c.pod("apps/a", team="red", node="n1")
    c.hole("kube", (30, 60))
    assert run(tmp_path, c, TWO).charges == money({("red", "idle"): "6.00", ("platform", "unallocated"): "6.00"})


def test_h1_a_pod_that_waits_for_a_node_holds_nothing(tmp_path: Path) -> None:
    c = two_cards()
    c.pod("apps/a", team="red", node="")
    assert run(tmp_path, c, TWO).charges == money({("platform", "unallocated"): "12.00"})


@pytest.mark.parametrize(
    ("asked", "init", "held"),
    [
        ({"nvidia_com_gpu/one": 1, "nvidia_com_gpu/two": 1}, 0, 2),  # the containers' sum
        ({"nvidia_com_gpu/one": 1, "nvidia_com_gpu/two": 1}, 1, 2),
        (1, 3, 3),  # the largest init container
        (1, {"nvidia_com_gpu/one": 2, "nvidia_com_gpu/two": 2}, 2),  # which run one after another
    ],
)
def test_h2_a_request_is_the_larger_of_containers_and_largest_init_container(
    tmp_path: Path, asked: float, init: float, held: int
) -> None:
    # Four cards of 6.00
    c = Cluster()
    c.node("n1")
    for i in range(4):
        c.gpu("n1", f"GPU-{i}")
    c.pod("apps/a", team="red", node="n1", request=asked, init=init)
    result = run(tmp_path, c, prices("24.00", gpus=4))
    assert result.charges.get(("red", "idle"), 0) == held * 6


def test_h2_a_request_goes_first_to_the_devices_where_the_pod_has_processes(tmp_path: Path) -> None:
    # apps/a comes first by name and would be given GPU-0; but its process runs on GPU-1, and that of apps/b on GPU-0.
    c = Cluster()
    c.node("n1")
    for uuid, team in (("GPU-1", "red"), ("GPU-0", "blue")):
        c.pod(f"apps/{team}", team=team, node="n1")
        c.gpu("n1", uuid, used=20)
        c.process("n1", f"apps/{team}", 20, uuid)
    assert paid_by_device(run(tmp_path, c, TWO).rows) == {("blue", "GPU-0"): 6, ("red", "GPU-1"): 6}


def test_h2_all_pods_processes_come_before_any_pods_guess(tmp_path: Path) -> None:
    # apps/a has no process and takes what is left, though it comes first by name.
    c = Cluster()
    c.node("n1")
    c.pod("apps/a", team="red", node="n1")
    c.pod("apps/b", team="blue", node="n1")
    c.gpu("n1", "GPU-0", used=20)
    c.gpu("n1", "GPU-1")
    c.process("n1", "apps/b", 20, "GPU-0")
    assert paid_by_device(run(tmp_path, c, TWO).rows) == {("blue", "GPU-0"): 6, ("red", "GPU-1"): 6}


def test_h2_a_process_beyond_the_request_makes_no_holder(tmp_path: Path) -> None:
    # red asked for one card and uses both: it holds GPU-0 and is a guest on GPU-1, which blue was given.
    c = Cluster()
    c.node("n1")
    c.pod("apps/red", team="red", node="n1")
    c.pod("apps/zero", team="blue", node="n1")
    for uuid in ("GPU-0", "GPU-1"):
        c.gpu("n1", uuid, used=20)
        c.process("n1", "apps/red", 20, uuid)
    result = run(tmp_path, c, TWO)
    assert result.charges == money({("red", "used"): "3.00", ("red", "idle"): "4.50", ("blue", "idle"): "4.50"})
    assert set(result.subjects("unrequested-use")) == {"apps/red on n1/GPU-1"}


def test_h2_slots_held_by_label_count_against_the_request(tmp_path: Path) -> None:
    # apps/a asked for two and is named on GPU-1: it gets one more. Of three cards one is left.
    c = two_cards(GPU_1="apps/a")
    c.gpu("n1", "GPU-2")
    c.pod("apps/a", team="red", node="n1", request=2)
    result = run(tmp_path, c, prices("18.00", gpus=3))
    assert paid_by_device(result.rows) == {("red", "GPU-0"): 6, ("red", "GPU-1"): 6, ("platform", "GPU-2"): 6}


def test_h2_what_is_left_of_a_request_goes_to_devices_of_its_profile(tmp_path: Path) -> None:
    # red asked for a 1g.5gb (1/8 of 12.00), blue for a 3g.20gb (4/8): not the first device, but their kind.
    c = Cluster()
    c.node("n1")
    for instance, profile, size in (("1", "3g.20gb", 19.5), ("2", "1g.5gb", 4.75)):
        c.gpu("n1", model=A100_40, instance=instance, profile=profile, size=size)
    c.pod("apps/a", team="red", node="n1", request={"nvidia_com_mig_1g_5gb": 1})
    c.pod("apps/b", team="blue", node="n1", request={"nvidia_com_mig_3g_20gb": 1})
    assert run(tmp_path, c, forty("12.00")).charges == money(
        {("red", "idle"): "1.50", ("blue", "idle"): "6.00", ("platform", "unpartitioned"): "4.50"}
    )


def test_h2_on_a_shared_node_the_device_with_most_slots_free_is_taken(tmp_path: Path) -> None:
    # Two slots a card. apps/a is named on GPU-0; apps/b goes to GPU-1 with two free, apps/c to GPU-0, a tie by UUID.
    # A slot is half of 6.00.
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    c.gpu("n1", "GPU-0", pods={"apps/a": ["0"]})
    c.gpu("n1", "GPU-1")
    for name, team in (("a", "red"), ("b", "blue"), ("c", "green")):
        c.pod(f"apps/{name}", team=team, node="n1")
    assert paid_by_device(run(tmp_path, c, TWO).rows) == {
        ("red", "GPU-0"): 3,
        ("green", "GPU-0"): 3,
        ("blue", "GPU-1"): 3,
        ("platform", "GPU-1"): 3,
    }


def explained(process: float, used: float) -> Cluster:
    """red's card with so much in use, and its process with so much of it."""
    c = exclusive(used)
    c.hole("gpu_process", (0, 60))
    c.process("n1", "apps/train", process)
    return c


def test_h3_a_little_memory_that_no_process_explains_is_no_ones(tmp_path: Path) -> None:
    # Up to 2 % of 80 GiB, 1.6: 20 of 21.5 are used, 1.50 of 6.00.
    assert run(tmp_path, explained(20, 21.5)).charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


def test_h3_on_a_small_device_512_mib_are_a_little(tmp_path: Path) -> None:
    # 2 % of 16 GiB would be 0.32. 4 of 4.5 GiB are used: 6.00 x 4/16.
    c = explained(4, 4.5)
    c.hole("DCGM", (0, 60))
    c.gpu("n1", used=4.5, size=16, pods=["apps/train"])
    assert run(tmp_path, c).charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})


def test_h3_more_counts_whole_as_the_only_pods(tmp_path: Path) -> None:
    # 4 GiB beyond the process's 20: 24 of 80 of 6.00.
    result = run(tmp_path, explained(20, 24))
    assert result.charges == money({("red", "used"): "1.80", ("red", "idle"): "4.20"})
    assert result.estimated == {}


def test_h3_between_several_it_is_divided_by_slots_of_those_without_process_data(tmp_path: Path) -> None:
    # 40 GiB in use, red's process has 10. The other 30 are blue's, with two slots, and green's, with one, who have
    # no processes that anyone sees: 20 and 10, estimated. 6.00 x 10/80, 20/80, 10/80; 3.00 are idle, in quarters.
    c = sliced({"red": 1, "blue": 2, "green": 1}, {"red": 10}, replicas=4)
    c.overwrite("DCGM_FI_DEV_FB_USED", 40 * 1024, (0, 60))
    c.overwrite("DCGM_FI_DEV_FB_FREE", 40 * 1024, (0, 60))
    result = run(tmp_path, c)
    assert result.charges == money(
        {
            ("red", "used"): "0.75",
            ("blue", "used"): "1.50",
            ("green", "used"): "0.75",
            ("red", "idle"): "0.75",
            ("blue", "idle"): "1.50",
            ("green", "idle"): "0.75",
        }
    )
    assert result.estimated == money({("blue", "used"): "1.50", ("green", "used"): "0.75"})
    assert "n1/GPU-0" in result.subjects("no-process-data")


def test_h3_what_nobody_explains_is_the_platforms_without_a_pod(tmp_path: Path) -> None:
    # Both have processes, 10 GiB each, and 20 more are in use: 20/80 of 6.00.
    c = sliced({"red": 1, "blue": 1}, {"red": 10, "blue": 10}, replicas=2)
    c.overwrite("DCGM_FI_DEV_FB_USED", 40 * 1024, (0, 60))
    c.overwrite("DCGM_FI_DEV_FB_FREE", 40 * 1024, (0, 60))
    result = run(tmp_path, c)
    assert result.charges == money(
        {
            ("red", "used"): "0.75",
            ("red", "idle"): "1.50",
            ("blue", "used"): "0.75",
            ("blue", "idle"): "1.50",
            ("platform", "used"): "1.50",
        }
    )
    assert [row["pod"] for row in result.rows if row["team"] == "platform"] == [""]
    assert "n1/GPU-0" in result.subjects("unattributed-memory")
    assert result.estimated == {}


def test_h3_pod_rows_that_are_all_zero_are_no_process_data(tmp_path: Path) -> None:
    # dcgm-exporter without hostPID: 0 for every pod beside a device with 40 GiB in use. Halves, estimated.
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    pods = {"apps/red": ["0"], "apps/blue": ["1"]}
    for pod in pods:
        c.pod(pod, team=pod.removeprefix("apps/"), node="n1")
    c.gpu("n1", used=40, pods=pods, own=dict.fromkeys(pods, 0))
    result = run(tmp_path, c)
    assert result.charges == money({(t, k): "1.50" for t in ("red", "blue") for k in ("used", "idle")})
    assert result.estimated == money({(t, "used"): "1.50" for t in ("red", "blue")})


def test_h4_a_guest_pays_for_its_memory_and_is_reported(tmp_path: Path) -> None:
    # red holds the card with 20 of 80 GiB, blue's pod uses 8 of it: 6.00 x 20/80 and x 8/80.
    c = exclusive(28)
    c.hole("gpu_process", (0, 60))
    c.process("n1", "apps/train", 20)
    c.pod("apps/guest", team="blue", node="n1", request=0)
    c.process("n1", "apps/guest", 8)
    result = run(tmp_path, c)
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "3.90", ("blue", "used"): "0.60"})
    assert result.subjects("unrequested-use") == {"apps/guest on n1/GPU-0": 12}


def slots(c: Cluster, folder: Path, **node: str) -> Charges:
    """What the pods of idle cards pay; all cards of the node cost 12.00 together."""
    c.node("n1", labels=node)
    return run(folder, c, prices("12.00", gpus=None)).charges


def test_h5_slots_are_the_most_distinct_rows_at_one_sample(tmp_path: Path) -> None:
    # Of four slots red has two at every sample, blue two numbers in the hour but one at a time.
    c = Cluster()
    c.pod("apps/red", team="red", node="n1", request=2)
    c.pod("apps/blue", team="blue", node="n1")
    c.gpu("n1", pods={"apps/red": ["0", "1"], "apps/blue": ["2"]}, at=(0, 32))
    c.gpu("n1", pods={"apps/red": ["0", "1"], "apps/blue": ["3"]}, at=(32, 60))
    assert slots(c, tmp_path, label_nvidia_com_gpu_replicas="4") == money(
        {("red", "idle"): "6.00", ("blue", "idle"): "3.00", ("platform", "unallocated"): "3.00"}
    )


def test_h5_without_slot_rows_the_request_is_spread_over_the_devices_held(tmp_path: Path) -> None:
    # red asked for four slots and is named on two cards of four slots each: two on each, half of 12.00.
    c = Cluster()
    c.pod("apps/red", team="red", node="n1", request={"nvidia_com_gpu_shared": 4})
    for uuid in ("GPU-0", "GPU-1"):
        c.gpu("n1", uuid, pods=["apps/red"])
    assert slots(c, tmp_path, label_nvidia_com_gpu_replicas="4") == money(
        {("red", "idle"): "6.00", ("platform", "unallocated"): "6.00"}
    )


def test_h5_without_both_a_holder_has_one_slot(tmp_path: Path) -> None:
    c = Cluster()
    c.pod("apps/red", team="red", node="n1", request=0)
    c.gpu("n1", pods=["apps/red"])
    assert slots(c, tmp_path, label_nvidia_com_gpu_replicas="4") == money(
        {("red", "idle"): "3.00", ("platform", "unallocated"): "9.00"}
    )


def test_h5_a_device_has_never_fewer_slots_than_are_held(tmp_path: Path) -> None:
    # The label says two, three are held: thirds.
    c = Cluster()
    teams = ("blue", "green", "red")
    for team in teams:
        c.pod(f"apps/{team}", team=team, node="n1")
    c.gpu("n1", pods={f"apps/{team}": [str(i)] for i, team in enumerate(teams)})
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    assert run(tmp_path, c, prices("36.00")).charges == money({(team, "idle"): "12.00" for team in teams})


def test_h5_an_unshared_device_has_one_slot(tmp_path: Path) -> None:
    # The node's whole cards are in four slots, its MIG instance is not: red holds all of 1/8 of 12.00.
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "4"})
    c.pod("apps/red", team="red", node="n1", request={"nvidia_com_mig_1g_5gb": 1})
    c.gpu("n1", model=A100_40, instance="1", profile="1g.5gb", size=4.75, pods=["apps/red"])
    assert run(tmp_path, c, forty("12.00")).charges == money(
        {("red", "idle"): "1.50", ("platform", "unpartitioned"): "10.50"}
    )


def test_h5_a_shared_mig_instance_has_the_replicas_of_its_resource(tmp_path: Path) -> None:
    # Two of three slots of 1/8 of 36.00 are red's: 3.00 of 4.50.
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_mig_1g_5gb_replicas": "3"})
    c.pod("apps/red", team="red", node="n1", request={"nvidia_com_mig_1g_5gb_shared": 2})
    c.gpu("n1", model=A100_40, instance="1", profile="1g.5gb", size=4.75, pods=["apps/red"])
    assert run(tmp_path, c, forty("36.00")).charges == money(
        {("red", "idle"): "3.00", ("platform", "unallocated"): "1.50", ("platform", "unpartitioned"): "31.50"}
    )


def test_h2_an_instance_id_that_is_used_again_keeps_its_former_profile_in_former_windows(tmp_path: Path) -> None:
    # Until 10:30 red holds instance 1, a 3g.20gb as it asked for, and another one, 2, is free: 4/8 of 6.00 each. Then
    # instance 1 is a 2g.10gb, of nobody, and three quarters of the card are left over.
    c = Cluster()
    c.node("n1")
    c.pod("apps/red", team="red", node="n1", request={"nvidia_com_mig_3g_20gb": 1}, at=(0, 30))
    c.pod("apps/web", node="n1", request=0)
    for instance, profile, size, pods, at in (
        ("1", "3g.20gb", 19.5, ["apps/red"], (0, 30)),
        ("2", "3g.20gb", 19.5, [], (0, 30)),
        ("1", "2g.10gb", 9.5, [], (30, 60)),
    ):
        c.gpu("n1", model=A100_40, instance=instance, profile=profile, size=size, pods=pods, at=at)
    assert run(tmp_path, c, forty("12.00")).charges == money(
        {
            ("red", "idle"): "3.00",
            ("platform", "unallocated"): "4.50",  # 4/8 and 2/8 of 6.00
            ("platform", "unpartitioned"): "4.50",
        }
    )


def test_h5_the_replicas_label_counts_from_when_it_is_seen(tmp_path: Path) -> None:
    # Two slots until 10:30, four from then on; red holds one: half of 6.00, then a quarter.
    c = Cluster()
    for replicas, at in (("2", (0, 30)), ("4", (30, 60))):
        c.node("n1", labels={"label_nvidia_com_gpu_replicas": replicas}, at=at)
    c.pod("apps/red", team="red", node="n1")
    c.gpu("n1", pods={"apps/red": ["0"]})
    assert run(tmp_path, c, prices("12.00")).charges == money(
        {("red", "idle"): "4.50", ("platform", "unallocated"): "7.50"}
    )


def test_h2_a_request_that_ends_sets_its_device_free_for_the_next_pod(tmp_path: Path) -> None:
    # One card; blue's pod was bound while red's still ran, and comes to hold it when red's has ended, at 10:30.
    c = Cluster()
    c.node("n1")
    c.pod("apps/a", team="red", node="n1", done=30)
    c.pod("apps/b", team="blue", node="n1")
    c.gpu("n1")
    assert run(tmp_path, c).charges == money({("red", "idle"): "3.00", ("blue", "idle"): "3.00"})
