"""Rules M: whose memory it was."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, Result, exclusive, money, prices, run, sliced

NOTHING_USED = {("red", "idle"): "6.00"}
A_QUARTER = {("red", "used"): "1.50", ("red", "idle"): "4.50"}
"""20 of 80 GiB of a node of 6.00 an hour."""
NOT_A_NUMBER = math.nan


def test_m1_a_process_that_lived_for_half_the_window_counts_half(tmp_path: Path) -> None:
    # 20 GiB for the first half of a window of 0.50 are 10 of 80: 0.0625.
    half = lambda minute: 20 if minute < 2.5 else 0  # noqa: E731
    c = exclusive(half)
    c.hole("gpu_process", (2.5, 60))
    assert run(tmp_path, c).charges == money({("red", "used"): "0.0625", ("red", "idle"): "5.9375"})


def test_m1_the_memory_of_a_pods_processes_is_added_up(tmp_path: Path) -> None:
    # 12 and 8 GiB
    c = exclusive(20)
    c.hole("gpu_process", (0, 60))
    c.process("n1", "apps/train", 12, pid="1")
    c.process("n1", "apps/train", 8, pid="2")
    assert run(tmp_path, c).charges == money(A_QUARTER)


def test_m1_a_lost_scrape_takes_nothing_away(tmp_path: Path) -> None:
    # Three scrapes of ten are lost in one window, all but one in another.
    c = exclusive(20)
    c.hole("", (11, 12.5))
    c.hole("", (31, 35))
    result = run(tmp_path, c)
    assert result.charges == money(A_QUARTER)
    assert result.estimated == {}


@pytest.mark.parametrize("every", [7, 45, 70, 299])
def test_m1_an_interval_that_does_not_divide_the_window_does_no_harm(tmp_path: Path, every: float) -> None:
    c = Cluster(every=every)
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", used=20, pods=["apps/train"])
    c.process("n1", "apps/train", 20)
    charges = run(tmp_path, c).charges
    assert charges["red", "used"] * 3 == charges["red", "idle"]


def test_m1_processes_that_are_seen_less_often_than_the_device_weigh_as_long(tmp_path: Path) -> None:
    # Once a minute beside a device that is scraped twice.
    c = exclusive(20)
    c.hole("gpu_process", (0, 60))
    c.process("n1", "apps/train", 20, every=60)
    assert run(tmp_path, c).charges == money(A_QUARTER)


def test_m1_a_device_that_only_processes_show_stands_on_the_fullest_of_their_series(tmp_path: Path) -> None:
    # No row of the device at all: the book gives it 80 GiB. red has 20 for the hour; blue, a guest, 40 in one scrape
    # of two, which is 20: 6.00 x 1/4 each. The other half is red's, who asked for the card.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.pod("apps/guest", team="blue", node="n1", request=0)
    c.process("n1", "apps/train", 20)
    for minute in range(60):
        c.process("n1", "apps/guest", 40, at=(minute, minute + 0.5))
    assert run(tmp_path, c, scrape_interval="30s").charges == money(
        {("red", "used"): "1.50", ("blue", "used"): "1.50", ("red", "idle"): "3.00"}
    )


def three_pods(*, processes: bool) -> Cluster:
    """A card in three slots, 30 of 80 GiB in use, whose value is repeated for each of three pods."""
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "3"})
    pods = {f"apps/{team}": [str(slot)] for slot, team in enumerate(("blue", "green", "red"))}
    c.gpu("n1", used=30, pods=pods)
    for pod in pods:
        c.pod(pod, team=pod.removeprefix("apps/"), node="n1")
        if processes:
            c.process("n1", pod, 10)
    return c


def test_m2_a_value_repeated_for_three_pods_is_read_once(tmp_path: Path) -> None:
    # 36.00: each pod has 10 of 80 GiB, 4.50, and owes a third of the other 22.50. Were the rows added up, the device
    # would have 240 GiB, 90 of them in use.
    result = run(tmp_path, three_pods(processes=True), prices("36.00"))
    assert result.charges == money(
        {(team, kind): cost for team in ("blue", "green", "red") for kind, cost in (("used", "4.50"), ("idle", "7.50"))}
    )
    assert "device-level-duplicates" in result.problems


def test_m2_a_value_repeated_for_three_pods_is_theirs_together_not_each_ones(tmp_path: Path) -> None:
    # The same without processes: the 30 GiB are divided by slots, and that is estimated.
    result = run(tmp_path, three_pods(processes=False), prices("36.00"))
    teams = ("blue", "green", "red")
    assert result.charges == money({(t, k): c for t in teams for k, c in (("used", "4.50"), ("idle", "7.50"))})
    assert result.estimated == money({(t, "used"): "4.50" for t in teams})


def test_m2_a_pods_own_sum_repeated_for_its_slots_and_containers_is_read_once(tmp_path: Path) -> None:
    # Beside a bare row of the device (30 GiB) red's 20 stand in two rows, one a slot, and blue's 10 in one.
    # 36.00 x 20/80 and x 10/80; the other 22.50 by slots, 2 and 1 of 3.
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "3"})
    c.pod("apps/a", team="red", node="n1", request=2)
    c.pod("apps/b", team="blue", node="n1")
    c.gpu("n1", used=30, pods={"apps/a": ["0", "1"], "apps/b": ["2"]}, own={"apps/a": 20, "apps/b": 10})
    assert run(tmp_path, c, prices("36.00")).charges == money(
        {("red", "used"): "9.00", ("red", "idle"): "15.00", ("blue", "used"): "4.50", ("blue", "idle"): "7.50"}
    )


def test_m2_the_last_pods_row_that_flaps_is_one_device(tmp_path: Path) -> None:
    # Without virtual GPUs only one pod's name is on the row, in turn: the device is there once in each scrape.
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    for pod, team, first in (("apps/a", "red", 0.0), ("apps/b", "blue", 0.5)):
        c.pod(pod, team=team, node="n1")
        for minute in range(60):
            c.gpu("n1", used=20, pods=[pod], at=(minute + first, minute + first + 0.5))
        c.process("n1", pod, 10)
    # 10 of 80 GiB each, and half of what is left
    assert run(tmp_path, c).charges == money(
        {(t, k): a for t in ("red", "blue") for k, a in (("used", "0.75"), ("idle", "2.25"))}
    )


BLANKS = {
    "negative": -1.0,
    "NaN": NOT_A_NUMBER,
    "the first 32-bit blank": 2147483632.0,
    "the last 32-bit blank": 2147483647.0,
    "a 64-bit blank": 9223372036854775794.0,
    "NVML's N/A in MiB": 17592186044415.0,
    "over four times the device": 4 * 80 * 1024 + 1.0,
}


def blank(value: float, first: float, last: float) -> Cluster:
    """red's GPU with 20 of 80 GiB in use, which the exporter gives as `value` for a while; no processes."""
    c = exclusive(20)
    c.hole("gpu_process", (0, 60))
    c.overwrite("DCGM_FI_DEV_FB_USED", value, (first, last))
    return c


@pytest.mark.parametrize("value", BLANKS.values(), ids=BLANKS)
def test_m3_a_blank_stands_for_the_last_good_value(tmp_path: Path, value: float) -> None:
    # Ten samples from 10:21 to 10:26 say nothing: it stays a quarter of 6.00.
    result = run(tmp_path, blank(value, 21, 26))
    assert result.charges == money(A_QUARTER)
    assert result.subjects("blank-value") == {"n1/GPU-0": 10}


def test_m3_a_full_device_is_no_blank(tmp_path: Path) -> None:
    result = run(tmp_path, exclusive(80))
    assert result.charges == money({("red", "used"): "6.00"})
    assert "blank-value" not in result.problems


@pytest.mark.parametrize("value", BLANKS.values(), ids=BLANKS)
def test_m3_without_a_good_value_before_it_a_blank_stands_for_nothing(tmp_path: Path, value: float) -> None:
    # The first two windows of 0.50 have none: ten windows of a quarter, 1.25.
    result = run(tmp_path, blank(value, 0, 10))
    assert result.charges == money({("red", "used"): "1.25", ("red", "idle"): "4.75"})


def test_m3_a_good_value_stands_in_for_at_most_max_gap(tmp_path: Path) -> None:
    # Blank from 10:20 to 10:40 with 15 minutes: 10:19:30 stands up to 10:34:30. One window has nothing: 11 quarters.
    result = run(tmp_path, blank(-1, 20, 40), max_gap="15m")
    assert result.charges == money({("red", "used"): "1.375", ("red", "idle"): "4.625"})


@pytest.mark.parametrize("value", [-1.0, NOT_A_NUMBER, 2.0**64 - 1, 4 * 80 * 2.0**30 + 2**20], ids=str)
def test_m3_a_processs_blank_stands_for_its_last_good_value(tmp_path: Path, value: float) -> None:
    # Of two pods with data: were a value lost, memory would be left that nobody explains.
    c = sliced({"red": 1, "blue": 1}, {"red": 20, "blue": 20}, replicas=2)
    c.overwrite("gpu_process_memory_used_bytes", value, (21, 26), pod="red")
    result = run(tmp_path, c)
    # 20 of 80 GiB each, and half of the other 3.00
    assert result.charges == money({(t, k): "1.50" for t in ("red", "blue") for k in ("used", "idle")})
    assert "blank-value" in result.problems


def test_m4_more_memory_than_the_device_has_is_scaled_to_it_and_reported(tmp_path: Path) -> None:
    # 90 and 30 GiB on 80: three quarters and one of 6.00, and nothing idle.
    c = sliced({"red": 1, "blue": 1}, {"red": 90, "blue": 30}, replicas=2)
    c.hole("DCGM", (0, 60))
    c.gpu("n1", used=78, pods={"apps/red": ["0"], "apps/blue": ["1"]})
    result = run(tmp_path, c)
    assert result.charges == money({("red", "used"): "4.50", ("blue", "used"): "1.50"})
    assert "n1/GPU-0" in result.subjects("memory-over-capacity")


def told_twice() -> Cluster:
    """Two pods of which two exporters say different things: 10 and 10 GiB, and 15 and 5."""
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    for team, gib in (("red", 15), ("blue", 5)):
        c.pod(f"apps/{team}", team=team, node="n1")
        c.process("n1", f"apps/{team}", gib)
    c.gpu("n1", used=20, pods={"apps/red": ["0"], "apps/blue": ["1"]}, own={"apps/red": 10, "apps/blue": 10})
    return c


@pytest.mark.parametrize(
    ("exporters", "red", "blue"),
    [
        ("auto", "1.125", "0.375"),  # 15 and 5 of 80 GiB of 6.00: the process exporter speaks for processes
        (["process", "dcgm-exporter"], "1.125", "0.375"),
        (["dcgm-exporter", "process"], "0.75", "0.75"),  # 10 each
        (["dcgm-exporter"], "0.75", "0.75"),
    ],
)
def test_m5_one_exporter_speaks_for_processes_and_two_never_add_up(
    tmp_path: Path, exporters: Any, red: str, blue: str
) -> None:
    charges = run(tmp_path, told_twice(), exporters=exporters).charges
    assert (charges["red", "used"], charges["blue", "used"]) == (Decimal(red), Decimal(blue))
    assert sum(charges.values()) == 6


OTHER = {
    "name": "other",
    "device_memory": {
        "used": {"metric": "other_used", "unit": "GiB"},
        "free": {"metric": "other_free", "unit": "GiB"},
        "labels": {"node": "host", "gpu": "uuid"},
    },
}


@pytest.mark.parametrize(
    ("exporters", "used"),
    [(["dcgm-exporter", OTHER], "1.50"), ([OTHER, "dcgm-exporter"], "3.00")],
    ids=["dcgm-exporter first", "other first"],
)
def test_m5_one_exporter_speaks_for_a_devices_own_memory(tmp_path: Path, exporters: Any, used: str) -> None:
    # One says 20 of 80 GiB, the other 40 of 80; there are no processes, and red holds the card alone.
    c = exclusive(20)
    c.hole("gpu_process", (0, 60))
    for metric in ("other_used", "other_free"):
        c.series(metric, 40, {"host": "n1", "uuid": "GPU-0"})
    assert run(tmp_path, c, exporters=exporters).charges["red", "used"] == Decimal(used)


def test_m5_where_the_first_exporter_is_silent_the_next_one_speaks(tmp_path: Path) -> None:
    # dcgm-exporter's 20 GiB up to 10:30, then the other's 40: 6 windows of 0.50 x 1/4, then 6 of 1/2.
    c = exclusive(20)
    c.hole("gpu_process", (0, 60))
    c.hole("DCGM", (30, 60))
    for metric in ("other_used", "other_free"):
        c.series(metric, 40, {"host": "n1", "uuid": "GPU-0"})
    result = run(tmp_path, c, exporters=["dcgm-exporter", OTHER])
    assert result.charges["red", "used"] == Decimal("2.25")
    assert result.estimated == {}


def test_m5_gpus_are_known_by_uuid_not_by_index(tmp_path: Path) -> None:
    # After a reboot at 10:30 the two cards have changed numbers. red's is GPU-0 all the same.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    for uuid, pods in (("GPU-0", ["apps/train"]), ("GPU-1", [])):
        for at, index in (((0, 30), uuid[-1]), ((30, 60), str(1 - int(uuid[-1])))):
            c.gpu(
                "n1", uuid, used=20 if pods else 0, pods=pods, at=at, labels={"gpu": index, "device": f"nvidia{index}"}
            )
    c.process("n1", "apps/train", 20)
    # 12.00 for two: a quarter of red's 6.00
    result = run(tmp_path, c, prices("12.00", gpus=2))
    assert result.charges == money(A_QUARTER | {("platform", "unallocated"): "6.00"})


def test_m6_a_name_that_is_used_again_is_another_pod(tmp_path: Path) -> None:
    # apps/train is red's until 10:30 and blue's from then on, under another uid; the device row has no uid.
    c = Cluster()
    c.node("n1")
    c.pod("apps/train", team="red", node="n1", uid="one", at=(0, 30))
    c.pod("apps/train", team="blue", node="n1", uid="two", at=(30, 60))
    c.gpu("n1", used=20, pods=["apps/train"])
    c.process("n1", "apps/train", 20, uid="one", at=(0, 30))
    c.process("n1", "apps/train", 20, uid="two", at=(30, 60))
    result = run(tmp_path, c)
    assert result.charges == money(
        {(team, kind): cost for team in ("red", "blue") for kind, cost in (("used", "0.75"), ("idle", "2.25"))}
    )
    assert {row["pod_uid"] for row in result.rows} == {"one", "two"}


def test_m6_without_uids_a_pod_is_its_namespace_and_name(tmp_path: Path) -> None:
    c = exclusive(20)
    c.hole("gpu_process", (0, 60))
    c.process("n1", "apps/train", 20, uid="")
    assert run(tmp_path, c).charges == money(A_QUARTER)


def with_a_host_process(gib: float) -> Cluster:
    """red's GPU, its process with 20 GiB, and one of no pod."""
    c = exclusive(20)
    c.hole("DCGM", (0, 60))
    c.gpu("n1", used=20 + gib, pods=["apps/train"])
    c.process("n1", "", gib, pid="1")
    return c


def test_m6_memory_of_a_process_without_a_pod_is_the_platforms(tmp_path: Path) -> None:
    # 8 of 80 GiB: 0.60 of 6.00; red owes what is left.
    result = run(tmp_path, with_a_host_process(8))
    assert result.charges == money({("red", "used"): "1.50", ("red", "idle"): "3.90", ("platform", "used"): "0.60"})
    assert [row["pod"] for row in result.rows if row["team"] == "platform"] == [""]


BY_PID = {
    "name": "pids",
    "process_memory": {
        "metric": "gpu_process_memory_used_bytes",
        "unit": "bytes",
        "labels": {"node": "Hostname", "gpu": "UUID", "pid": "pid"},
    },
}


def test_m6_memory_of_an_exporter_that_never_names_pods_is_unexplained(tmp_path: Path) -> None:
    # All 28 GiB count as the only pod's there (H3): 6.00 x 28/80.
    result = run(tmp_path, with_a_host_process(8), exporters=["dcgm-exporter", BY_PID])
    assert result.charges == money({("red", "used"): "2.10", ("red", "idle"): "3.90"})


def test_m6_rows_of_a_pod_that_has_ended_explain_nothing_and_are_reported(tmp_path: Path) -> None:
    # blue's pod, a guest, has ended at 10:30, its row stays. Up to then it pays 20 of 80 GiB of 3.00. Its memory,
    # if it is in use, is nobody's after that: red, alone on the card, has 40 of 80.
    c = exclusive(20)
    c.hole("DCGM", (0, 60))
    c.gpu("n1", used=40, pods=["apps/train"])
    c.pod("apps/guest", team="blue", node="n1", request=0, done=30)
    c.process("n1", "apps/guest", 20)
    result = run(tmp_path, c)
    assert result.charges == money({("red", "used"): "2.25", ("red", "idle"): "3.00", ("blue", "used"): "0.75"})
    assert result.subjects("stale-pod") == {"apps/guest": 6}


def test_m6_system_pods_explain_nothing_hold_nothing_and_pay_nothing(tmp_path: Path) -> None:
    # The MPS server has 10 GiB in its name, and asks for a card: two pods share what nobody else explains.
    c = sliced({"red": 1, "blue": 1}, {}, replicas=2)
    c.hole("DCGM", (0, 60))
    c.gpu("n1", used=40, pods={"apps/red": ["0"], "apps/blue": ["1"], "gpu/nvidia-mps-server": ["2"]})
    c.pod("gpu/nvidia-mps-server", team="system", node="n1")
    c.process("n1", "gpu/nvidia-mps-server", 40)
    result = run(tmp_path, c)
    # 20 of 80 GiB each by slots, and half of the other 3.00
    assert result.charges == money({(t, k): "1.50" for t in ("red", "blue") for k in ("used", "idle")})
    assert result.estimated == money({(t, "used"): "1.50" for t in ("red", "blue")})


def test_m6_system_pods_are_those_that_the_configuration_names(tmp_path: Path) -> None:
    # With apps/train among them nobody holds the card, and nobody explains the 20 GiB: the platform's.
    result = run(tmp_path, exclusive(20), system_pods=["apps/tr*"])
    assert {team for team, _ in result.charges} == {"platform"}


def replicas() -> tuple[Cluster, Cluster]:
    """red's GPU as two replicas see it: one with 20 of 80 GiB in use, the other, 11 s later, with 40."""
    one, two = Cluster(), Cluster()
    for c, used, offset in ((one, 20, 0), (two, 40, 11)):
        c.node("n1")
        c.pod("apps/train", team="red", node="n1")
        c.gpu("n1", used=used, pods=["apps/train"], offset=offset)
        c.process("n1", "apps/train", used, offset=offset)
    return one, two


def seen_by_both(one: Cluster, two: Cluster, folder: Path) -> Result:
    both = one.seen_by(replica="a").add(two.seen_by(replica="b"))
    source = {"openmetrics": "metrics.om", "replica_label": "replica"}
    return run(folder, both, source=source)


def test_m7_of_two_replicas_one_is_read_ties_by_name(tmp_path: Path) -> None:
    result = seen_by_both(*replicas(), tmp_path)
    assert result.charges == money(A_QUARTER)
    assert "replica-duplicates" in result.problems


def test_m7_window_by_window_the_replica_with_most_device_samples_is_read(tmp_path: Path) -> None:
    # One was down from 10:20 to 10:25 and lost a scrape at 10:31: two windows of a half, ten of a quarter.
    one, two = replicas()
    one.hole("", (20, 25))
    one.hole("", (31, 31.5))
    # 10 x 0.125 + 2 x 0.25
    assert seen_by_both(one, two, tmp_path).charges == money({("red", "used"): "1.75", ("red", "idle"): "4.25"})


def test_m7_node_by_node(tmp_path: Path) -> None:
    # The first replica does not reach the second node at all: there the other one is read.
    one, two = replicas()
    for c, used in ((one, 20), (two, 40)):
        c.node("n2")
        c.pod("apps/more", team="blue", node="n2")
        c.gpu("n2", "GPU-1", used=used, pods=["apps/more"])
    one.hole("DCGM", (0, 60), Hostname="n2")
    charges = seen_by_both(one, two, tmp_path).charges
    assert charges == money(A_QUARTER | {("blue", "used"): "3.00", ("blue", "idle"): "3.00"})


def test_m7_of_kube_state_metrics_all_replicas_are_read_together(tmp_path: Path) -> None:
    # One replica scrapes it up to 10:30, the other from then on; the one that is read for the card is one throughout.
    one, two = replicas()
    one.hole("kube", (30, 60))
    two.hole("kube", (0, 30))
    two.hole("DCGM", (0, 60))
    assert seen_by_both(one, two, tmp_path).charges == money(A_QUARTER)
