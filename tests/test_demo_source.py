"""Facts about the example month that the pages, and other tests, count on."""

import time
import tracemalloc
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from chargeback import config, demo
from chargeback.demo.cluster import END, FIRST, HOUR, LAST, MINUTE, NODES, START, STORY, at, pods
from chargeback.demo.samples import BLANK
from chargeback.sources import Labels, Samples
from chargeback.sources.memory import MemorySource

USED, FREE, RESERVED = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"
ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
PROCESS = "gpu_process_memory_used_bytes"
METRICS = {
    USED, FREE, RESERVED, ACTIVE, PROCESS,
    "kube_pod_info", "kube_pod_status_phase", "kube_pod_container_resource_requests", "kube_pod_labels",
    "kube_namespace_labels", "kube_node_info", "kube_node_labels", "kube_job_owner", "kube_replicaset_owner",
}  # fmt: skip
CAPACITY = {"NVIDIA A100-SXM4-80GB": 81920, "NVIDIA H100 80GB HBM3": 81559, "NVIDIA A10G": 23028, "NVIDIA L4": 23034}
INSTANCE = {"3g.40gb": 40192, "2g.20gb": 19968, "1g.10gb": 9728}


@cache
def _month() -> MemorySource:
    return demo.source()


@cache
def _all(metric: str) -> Samples:
    return _month().samples(metric, FIRST, LAST)


def _device(labels: Labels) -> str:
    return labels["UUID"] + "/" + labels.get("GPU_I_ID", "")


def _of(metric: str, start: int = START, end: int = END, **labels: str) -> Samples:
    return _month().samples(metric, start, end, {name: [value] for name, value in labels.items()})


def _by_device_and_minute(metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64], list[str]]:
    """(device, minute) as one number, its value, and the devices; copies for several pods as they are."""
    found = _all(metric)
    devices = sorted({_device(labels) for labels in _all(USED).labels})
    code = np.array([devices.index(_device(labels)) for labels in found.labels], np.int64)[found.series]
    return code * 10**9 + found.time // MINUTE, found.value, devices


def test_same_seed_same_arrays() -> None:
    again = demo.source()
    for metric in METRICS:
        one, two = _all(metric), again.samples(metric, FIRST, LAST)
        assert one.labels == two.labels
        assert all(np.array_equal(getattr(one, f), getattr(two, f)) for f in ("series", "time", "value"))


def test_another_seed_is_another_month() -> None:
    other = demo.source(8).samples(ACTIVE, FIRST, LAST)
    assert not np.array_equal(other.value, _all(ACTIVE).value)


def test_exactly_the_series_of_a_usual_cluster() -> None:
    assert _month().metrics(FIRST, LAST) == METRICS


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_series_are_sorted_their_times_unique_and_their_labels_too(metric: str) -> None:
    found = _all(metric)
    assert [str(a.dtype) for a in (found.series, found.time, found.value)] == ["int64", "int64", "float64"]
    same = np.diff(found.series) == 0
    assert (np.diff(found.series) >= 0).all()
    assert (np.diff(found.time)[same] > 0).all()
    assert len({tuple(sorted(labels.items())) for labels in found.labels}) == len(found.labels)
    assert all(value for labels in found.labels for value in labels.values())


def test_an_hour_before_and_after_and_no_more() -> None:
    times = [_all(metric).time for metric in METRICS]
    assert FIRST <= min(t.min() for t in times) < FIRST + 2 * MINUTE
    assert LAST - 2 * MINUTE <= max(t.max() for t in times) < LAST
    assert (START - FIRST, LAST - END) == (HOUR, HOUR)


def test_it_is_small_and_quick() -> None:
    assert sum(_all(metric).time.size for metric in METRICS) < 12_000_000
    began = time.perf_counter()
    demo.source()
    assert time.perf_counter() - began < 5
    tracemalloc.start()
    demo.source()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 600 * 2**20


def test_used_free_and_reserved_are_the_card() -> None:
    used, free, reserved = (_all(m) for m in (USED, FREE, RESERVED))
    assert np.array_equal(used.time, free.time)
    assert np.array_equal(used.time, reserved.time)
    capacity = [
        INSTANCE[ls["GPU_I_PROFILE"]] if "GPU_I_PROFILE" in ls else CAPACITY[ls["modelName"]] for ls in used.labels
    ]
    real = used.value != BLANK
    total = used.value + free.value + reserved.value
    assert (total == np.array(capacity)[used.series])[real].all()
    assert (used.value[real] >= 0).all()
    assert (free.value >= 0).all()
    assert (used.value == np.floor(used.value)).all()


def test_copies_say_the_same() -> None:
    key, value, _ = _by_device_and_minute(ACTIVE)
    order = np.argsort(key, kind="stable")
    same = np.diff(key[order]) == 0
    assert same.any()
    assert (np.diff(value[order])[same] == 0).all()


def test_processes_explain_the_devices_memory_up_to_a_context() -> None:
    key, value, _ = _by_device_and_minute(USED)
    device, first = np.unique(key, return_index=True)
    process_key, size, _ = _by_device_and_minute(PROCESS)
    inside = np.isin(process_key, device)  # dcgm-exporter was silent for a while
    explained = np.zeros(device.size)
    np.add.at(explained, np.searchsorted(device, process_key[inside]), size[inside] / 2**20)
    rest = (value[first] - explained)[value[first] != BLANK]
    assert rest.min() > 3
    assert rest.max() <= 320


def test_gpus_are_about_15_percent_active() -> None:
    key, value, _ = _by_device_and_minute(ACTIVE)
    month = (key % 10**9 >= START // MINUTE) & (key % 10**9 < END // MINUTE)
    _, first = np.unique(key[month], return_index=True)
    assert 0.10 < value[month][first].mean() < 0.20


def test_services_are_busier_by_day_than_by_night() -> None:
    found = _of(ACTIVE, Hostname="infer-1")
    hour = found.time // HOUR % 24
    assert found.value[(hour >= 12) & (hour < 18)].mean() > 3 * found.value[(hour >= 1) & (hour < 5)].mean()


def test_windows_hold_five_samples_each() -> None:
    found = _month().windows(USED, START, END, 5 * MINUTE, matchers={"Hostname": ["llm-1"]})
    assert found.count.tolist() == [5] * (31 * 24 * 12)
    assert found.high.max() < 81559


def test_about_20_gpus() -> None:
    gpu_hours = sum(n.gpus * (min(n.end, END) - max(n.start, START)) for n in NODES) / (END - START)
    assert 18 < gpu_hours < 22


def test_the_notebook_holds_a_gpu_for_three_weeks_and_does_nothing() -> None:
    event = STORY["notebook"]
    assert (event.start, event.end) == (at("05 09:40"), at("26 09:40"))
    found = _of(ACTIVE, pod="nb-lena-0")
    assert found.time.size == 21 * 24 * 60
    assert found.value.max() == 0
    assert set(_of(PROCESS, pod="nb-lena-0").value) == {2.0**30}


def test_an_owner_changes_on_the_15th() -> None:
    found = _of("kube_pod_labels", namespace="vision")
    teams = [labels["label_team"] for labels in found.labels]
    assert teams == ["vision", "robotics"]
    assert len({labels["uid"] for labels in found.labels}) == 1
    assert found.time[found.series == 0].max() < at("15 00:00") <= found.time[found.series == 1].min()


def test_a_name_comes_back_with_another_uid() -> None:
    found = _of("kube_pod_info", pod="pretrain-0")
    assert len({labels["uid"] for labels in found.labels}) == 2
    assert len(_of(USED, pod="pretrain-0").labels) == 4


def test_gaps_are_of_the_gpu_exporters_only() -> None:
    short, long = STORY["short-gap"], STORY["long-gap"]
    assert _of(USED, short.start, short.end, Hostname="infer-1").time.size == 0
    assert _of(PROCESS, short.start, short.end, Hostname="infer-1").time.size > 0
    assert _of(USED, long.start, long.end, Hostname="work-1").time.size == 0
    assert _of(PROCESS, long.start, long.end, Hostname="work-1").time.size == 0
    assert _of("kube_node_info", long.start, long.end, node="work-1").time.size == 90
    assert (short.end - short.start, long.end - long.start) == (40 * MINUTE, 3 * HOUR)


def test_a_finished_job_is_still_named() -> None:
    found = _of(USED, at("06 05:00"), at("06 07:30"), Hostname="work-1", namespace="analytics")
    assert found.time.size == 150
    assert _of(PROCESS, at("06 05:00"), at("06 07:30"), namespace="analytics", Hostname="work-1").time.size == 0
    done = _of("kube_pod_status_phase", at("06 05:00"), at("06 07:30"), namespace="analytics", phase="Succeeded")
    assert (done.value == 1).all()
    jobs = _of("kube_job_owner", owner_kind="CronJob", owner_name="embed")
    assert len(jobs.labels) == 31


def test_nobody_holds_two_places_at_once() -> None:
    held = sorted((p.node, place, p.start, p.end) for p in pods(np.random.default_rng(7)) for place in p.places)
    for (node, place, _, end), (next_node, next_place, start, _) in pairwise(held):
        assert (node, place) != (next_node, next_place) or end <= start


def test_the_spot_node_comes_four_times_under_new_names() -> None:
    spot = _of("kube_node_labels", label_karpenter_sh_capacity_type="spot")
    assert {labels["node"] for labels in spot.labels} == {STORY[f"spot-{i}"].node for i in range(1, 5)}
    ended = _of("kube_pod_status_phase", phase="Failed")
    assert len(ended.labels) == 16


def test_the_driver_does_not_answer_three_times() -> None:
    found = _all(USED)
    blank = found.value == BLANK
    assert blank.sum() == 3
    assert {found.labels[i]["gpu"] for i in found.series[blank]} == {"2"}


def test_one_mig_instance_is_nobodys() -> None:
    found = _of(USED, GPU_I_PROFILE="1g.10gb")
    assert ["pod" in labels for labels in found.labels] == [False]


def test_a_process_without_a_pod() -> None:
    found = [labels for labels in _all(PROCESS).labels if "pod" not in labels]
    assert [labels["Hostname"] for labels in found] == ["work-1"]


def test_the_configuration_is_valid_and_relative(tmp_path: Path) -> None:
    texts = demo.config(tmp_path)
    assert [path.name for path in texts] == ["chargeback.yaml", "prices.yaml"]
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    found, _ = config.load(next(iter(texts)))
    assert found.cluster == "example"
    assert str(tmp_path) not in "".join(texts.values())
    prices, _, _ = config.read_yaml(tmp_path / "prices.yaml", "price book")
    assert all(isinstance(entry["per_hour"], str) for entry in prices["prices"])
    assert {n.instance_type for n in NODES} == set(prices["instances"])
