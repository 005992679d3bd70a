"""What the doctor says of clusters in all states of health, from a file and from real servers."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import BOX, HOUR, LATER, START, Cluster, exclusive, prices, sliced, span, write
from servers import free_port, prometheus, victoria_metrics

from chargeback import config as configuration
from chargeback import doctor, pipeline
from chargeback.doctor import Findings, as_json, as_table
from chargeback.doctor.findings import Note
from chargeback.errors import SourceUnreachable
from chargeback.period import Period, parse_period

PIDS = {
    "name": "pids",
    "process_memory": {
        "metric": "gpu_process_memory_used_bytes",
        "unit": "bytes",
        "labels": {"node": "Hostname", "gpu": "UUID", "pid": "pid"},
    },
}
"""A mapping of an exporter that never names pods."""


def prepared(path: Path, period: str = HOUR, now: datetime = LATER) -> tuple[pipeline.Job, Period]:
    """What a run would work on."""
    config, origin = configuration.load(path)
    moment = round(now.timestamp() * 1000)
    chosen = parse_period(period, config.timezone, config.window, moment)
    return pipeline.prepare(config, origin, path.parent, moment), chosen


def examined(path: Path, period: str = HOUR, now: datetime = LATER) -> Findings:
    """A configuration with one cluster, examined; and never is anything written."""
    job, chosen = prepared(path, period, now)
    (cluster,) = job.config.all_clusters()
    before = sorted(path.parent.rglob("*"))
    found = doctor.examine(job, cluster, pipeline.open_source(cluster, job.config), chosen)
    assert sorted(path.parent.rglob("*")) == before
    check_text(found)
    return found


def check_text(found: Findings) -> None:
    """Every note can be read, in lines that a terminal of 100 columns shows, and comes back from JSON."""
    table = as_table([found])
    wide = [line for line in table.splitlines() if len(line) > 100]
    assert all(max(map(len, line.split())) > 70 for line in wide)  # a flag or a path, which stays whole
    for note in (*found.blocking, *found.warnings, *found.hints):
        assert f"- {note.code}:" in table
    plain = json.loads(as_json([found]))
    assert plain["ready"] == found.ready == (not found.blocking)
    assert [n["code"] for n in plain["clusters"][0]["warnings"]] == [n.code for n in found.warnings]


def codes(notes: Sequence[Note]) -> set[str]:
    return {n.code for n in notes}


def one(notes: Sequence[Note], code: str) -> Note:
    (note,) = [n for n in notes if n.code == code]
    return note


def exit_code(path: Path, *, as_json: bool = False, period: str = HOUR, now: datetime = LATER) -> int:
    return doctor.doctor_command(*prepared(path, period, now), as_json)


def shares(found: Findings) -> dict[str, tuple[int, int]]:
    return {s.what: (s.have, s.of) for s in found.shares}


# A file


def test_a_healthy_cluster_can_be_billed(tmp_path: Path) -> None:
    c = exclusive()
    c.namespace("apps", team="red")
    path = write(tmp_path, c)
    found = examined(path)
    assert found.blocking == ()
    assert found.warnings == ()
    assert (found.server.kind, found.server.oldest, found.server.held_days) == (
        "openmetrics",
        "2025-03-04T10:00:00Z",
        60,
    )
    assert (found.looked.start, found.looked.end) == ("2025-03-04T10:00:00Z", "2025-03-04T11:00:00Z")
    assert {e.name: (e.nodes, e.gpus, e.series) for e in found.exporters} == {
        "dcgm-exporter": (1, 1, 2),
        "process": (1, 1, 1),
    }
    assert {s.exporter: (s.seconds, s.nodes, s.others) for s in found.scrapes} == {
        name: (30, 1, {}) for name in ("dcgm-exporter", "process", "kube-state-metrics")
    }
    assert (found.memory_by_pod.how, found.memory_by_pod.exporters) == ("exact", ("process",))
    assert found.memory_by_pod.devices == {"measured": 1}
    assert set(shares(found).values()) == {(1, 1), (0, 1)}  # no region: the book asks for none
    assert shares(found)["nodes with a region"] == (0, 1)
    assert exit_code(path) == 0


def test_what_is_healthy_can_be_billed_in_truth_and_what_is_not_cannot(tmp_path: Path) -> None:
    job, period = prepared(write(tmp_path, exclusive()))
    pipeline.collect(job, period)
    pipeline.report(job, period)
    found = examined(tmp_path / "chargeback.yaml")
    assert found.ready
    assert found.history.period_collected == 1


def test_rows_that_copy_the_device_are_told_with_their_numbers(tmp_path: Path) -> None:
    c = sliced({"red": 1, "blue": 1, "green": 1}, {"red": 5, "blue": 4, "green": 1}, replicas=4)
    c._series.pop("gpu_process_memory_used_bytes")
    found = examined(write(tmp_path, c))
    assert found.ready
    (rows,) = found.repeated
    assert (rows.device, rows.pods, rows.rows, rows.percent) == ("n1/GPU-0", 3, 3, 300)
    said = one(found.hints, "device-level-duplicates").message
    assert said.startswith("three pods show 300 % of one GPU (n1/GPU-0): these rows cannot be added")
    assert (found.memory_by_pod.how, found.memory_by_pod.devices) == ("estimated", {"slots": 1})
    change = one(found.warnings, "no-process-data").change
    for part in ("4.8.2", "KUBERNETES_VIRTUAL_GPUS=true", "hostPID: true"):
        assert part in change


def test_pods_that_follow_each_other_are_no_copies(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1")
    for name, at in (("a", (0, 32)), ("b", (32, 60))):
        c.pod(f"apps/{name}", team="red", node="n1", at=at)
        c.gpu("n1", used=10, pods=[f"apps/{name}"], at=at)
    found = examined(write(tmp_path, c))
    assert found.repeated == ()
    assert found.memory_by_pod.devices == {"one-pod": 1}
    assert found.memory_by_pod.how == "exact"


def test_rows_by_pod_of_a_newer_exporter_are_measured(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    pods = {"apps/a": ["0"], "apps/b": ["1"]}
    for pod in pods:
        c.pod(pod, team="red", node="n1")
    c.gpu("n1", used=30, pods=pods, own={"apps/a": 10, "apps/b": 20})
    found = examined(write(tmp_path, c))
    assert (found.memory_by_pod.how, found.memory_by_pod.exporters) == ("exact", ("dcgm-exporter",))
    assert found.repeated == ()


def test_rows_by_pod_without_host_processes_are_no_data(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    pods = {"apps/a": ["0"], "apps/b": ["1"]}
    for pod in pods:
        c.pod(pod, team="red", node="n1")
    c.gpu("n1", used=30, pods=pods, own={"apps/a": 0, "apps/b": 0})
    found = examined(write(tmp_path, c))
    assert (found.memory_by_pod.how, found.memory_by_pod.devices) == ("estimated", {"slots": 1})
    note = one(found.warnings, "no-process-data")
    assert "not idle" in note.message
    assert "hostPID: true" in note.change


def test_processes_without_pods_cannot_tell_sharing_pods_apart(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": "2"})
    for pod in ("apps/a", "apps/b"):
        c.pod(pod, team="red", node="n1")
    c.gpu("n1", used=30, pods={"apps/a": ["0"], "apps/b": ["1"]})
    c.process("n1", "", 10, pid="1")
    c.process("n1", "", 20, pid="2")
    found = examined(write(tmp_path, c, exporters=["dcgm-exporter", PIDS]))
    assert (found.memory_by_pod.how, found.memory_by_pod.devices) == ("impossible", {"pid-only": 1})
    assert "pids shows processes without pods" in found.memory_by_pod.why
    assert "KUBERNETES_VIRTUAL_GPUS=true" in one(found.warnings, "no-process-data").change
    can_name = examined(write(tmp_path / "named", c))
    assert "platform team" in one(can_name.warnings, "unattributed-memory").message


def test_renamed_labels_are_counted_series_by_series(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1")
    for pod in ("apps/a", "apps/b"):
        c.pod(pod, team="red", node="n1")
    c.gpu("n1", "GPU-0", used=10, pods=["apps/a"], exported=True)
    c.gpu("n1", "GPU-1", used=10, pods=["apps/b"])
    c.gpu("n1", "GPU-2", used=0, exported=True)
    found = examined(write(tmp_path, c, prices(gpus=3)))
    of = {h.exporter: (h.series, h.renamed, h.plain, h.none) for h in found.honouring}
    assert of == {"dcgm-exporter": (6, 2, 2, 2), "kube-state-metrics": (2, 0, 2, 0)}
    note = one(found.hints, "label-honouring")
    assert "both are read" in note.message
    assert "honorLabels: true" in note.change
    assert found.memory_by_pod.devices == {"one-pod": 2, "free": 1}


def test_labels_that_are_not_shown_are_told_with_the_flag(tmp_path: Path) -> None:
    c = exclusive()
    c._series.pop("kube_pod_labels")
    c.series("kube_pod_labels", 1, {"namespace": "apps", "pod": "train", "uid": "uid-of-apps-train", "label_app": "x"})
    found = examined(write(tmp_path, c, dimensions={"project": "cost-project"}))
    assert found.ready
    assert shares(found)["pods with a team"] == (0, 1)
    assert "apps/train" in one(found.warnings, "unowned").message
    notes = [n for n in found.warnings if n.code == "no-labels"]
    assert {m for n in notes for m in re.findall("label_[a-z_]+", n.message)} == {"label_team", "label_cost_project"}
    assert (
        "--metric-labels-allowlist=pods=[cost-project,team],namespaces=[team,cost-project],nodes=[" in notes[0].change
    )
    c._series.pop("kube_pod_labels")
    assert "shows no kube_pod_labels" in str(examined(write(tmp_path / "none", c)).warnings)


def test_the_flag_names_the_labels_of_the_nodes_cloud(tmp_path: Path) -> None:
    c = Cluster()
    c.series("kube_node_info", 1, {"node": "n1", "provider_id": "gce://project/zone/name"})
    c.series("kube_node_labels", 1, {"node": "n1"})
    c.gpu("n1", used=0)
    found = examined(write(tmp_path, c))
    change = one(found.warnings, "no-node-labels").change
    assert "cloud.google.com/gke-spot" in change
    assert "node.kubernetes.io/instance-type" in change
    assert "eks.amazonaws.com" not in change
    assert (
        "instance type is not known at 2025-03-04T10:55:00Z (1 node: n1)"
        in one(found.blocking, "missing-price").message
    )


def test_a_missing_price_blocks_with_its_key(tmp_path: Path) -> None:
    c = exclusive()
    c.node("n2", "crate", region="eu-1")
    c.gpu("n2", "GPU-9", used=0)
    path = write(tmp_path, c)
    found = examined(path)
    note = one(found.blocking, "missing-price")
    assert "crate in eu-1, on-demand" in note.message
    assert "{instance_type: crate, region: eu-1, purchase_option: on-demand, per_hour:" in note.change
    assert [(m.instance_type, m.region, m.nodes) for m in found.missing_prices] == [("crate", "eu-1", ("n2",))]
    assert shares(found)["nodes with a price"] == shares(found)["GPUs with a price"] == (1, 2)
    assert exit_code(path) == 5
    zero = write(tmp_path, c, pricing={"books": ["prices.yaml"], "missing": "zero"})
    assert exit_code(zero) == 0
    assert "missing-price" in codes(examined(zero).warnings)


def test_a_price_that_begins_within_the_period_blocks_where_nodes_were_there_before(tmp_path: Path) -> None:
    begins = {"instance_type": BOX, "per_hour": "6.00", "from": "2025-03-04T12:00:00Z"}
    whole = examined(write(tmp_path, exclusive(minutes=180), prices(prices=[begins])), span(0, 180))
    assert "at 2025-03-04T10:00:00Z" in one(whole.blocking, "missing-price").message
    c = exclusive(minutes=180)
    c.hole("", (0, 120))
    late = examined(write(tmp_path / "late", c, prices(prices=[begins]), since="2025-03-04T12:00:00Z"), span(0, 180))
    assert late.ready


def test_a_coarse_scrape_is_told(tmp_path: Path) -> None:
    c = Cluster(every=120)
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", used=20, pods=["apps/train"])
    found = examined(write(tmp_path, c))
    note = one(found.warnings, "coarse-scrape")
    assert "dcgm-exporter is scraped every 120 s on 1 node (n1)" in note.message
    assert "leave no trace" in note.message


def test_nodes_that_are_scraped_otherwise_are_named(tmp_path: Path) -> None:
    c = exclusive()
    for i, every in ((2, 30), (3, 15)):
        other = Cluster(every=every)
        other.node(f"n{i}")
        other.gpu(f"n{i}", f"GPU-{i}")
        c.add(other)
    found = examined(write(tmp_path, c))
    assert {s.exporter: (s.seconds, s.nodes, s.others) for s in found.scrapes}["dcgm-exporter"] == (30, 3, {"n3": 15})


def test_gpus_that_do_not_report_are_counted(tmp_path: Path) -> None:
    c = exclusive()
    c.node("n2")
    found = examined(write(tmp_path, c, prices(gpus=2)))
    assert {(g.node, g.reports, g.has) for g in found.gpu_counts} == {("n1", 1, 2), ("n2", 0, 2)}
    assert "3 GPUs of 2 nodes did not report" in one(found.warnings, "gpu-missing").message


def test_series_that_are_there_twice_name_the_label_that_differs(tmp_path: Path) -> None:
    c = exclusive().seen_by(prometheus_replica="a").add(exclusive().seen_by(prometheus_replica="b"))
    found = examined(write(tmp_path, c))
    assert found.replicas.differ_in == ("prometheus_replica",)
    assert found.replicas.doubled_series == 6
    assert found.repeated == ()
    note = one(found.warnings, "replica-duplicates")
    assert note.change.startswith("source.replica_label: prometheus_replica")
    source = {"openmetrics": "metrics.om", "replica_label": "prometheus_replica"}
    known = examined(write(tmp_path / "known", c, source=source))
    assert known.replicas.values == ("a", "b")
    assert (known.replicas.doubled_series, known.repeated) == (0, ())
    assert "replica-duplicates" not in codes(known.warnings)
    wrong = examined(write(tmp_path / "wrong", exclusive(), source={**source, "replica_label": "nothing"}))
    assert "which no series has" in one(wrong.warnings, "replica-duplicates").message


def test_a_second_scrape_of_an_exporter_is_no_replica(tmp_path: Path) -> None:
    c = exclusive().seen_by(job="dcgm").add(exclusive().seen_by(job="gpus"))
    note = one(examined(write(tmp_path, c)).warnings, "replica-duplicates")
    assert "two jobs" in note.change


def test_an_exporters_restart_is_no_replica(tmp_path: Path) -> None:
    c = Cluster()
    c.node("n1")
    c.gpu("n1", used=0, at=(0, 32), labels={"instance": "10.0.0.1:9400"})
    c.gpu("n1", used=0, at=(32, 60), labels={"instance": "10.0.0.2:9400"})
    assert examined(write(tmp_path, c)).replicas.doubled_series == 0


def test_several_clusters_in_one_source_are_told(tmp_path: Path) -> None:
    other = Cluster()
    other.node("n2")
    other.gpu("n2", "GPU-9")
    c = exclusive().seen_by(cluster="east").add(other.seen_by(cluster="west"))
    assert "cluster_label: cluster" in one(examined(write(tmp_path, c)).warnings, "several-clusters").change


def test_an_exporters_own_pod_that_holds_gpus_is_told(tmp_path: Path) -> None:
    c = exclusive()
    c.pod("monitoring/gpu-watch", node="n1", request=0)
    c.gpu("n1", "GPU-1", used=0, pods=["monitoring/gpu-watch"])
    note = one(examined(write(tmp_path, c, prices(gpus=2))).warnings, "unrequested-use")
    assert "monitoring/gpu-watch" in note.message
    assert "system_pods" in note.change


def test_a_node_that_kubernetes_does_not_know_is_told(tmp_path: Path) -> None:
    c = exclusive()
    c.gpu("dcgm-x7", "GPU-9", used=0)
    found = examined(write(tmp_path, c))
    assert "dcgm-x7" in one(found.warnings, "unknown-node").message
    assert not found.ready


def test_a_period_before_the_oldest_sample_blocks_and_the_one_that_works_is_named(tmp_path: Path) -> None:
    found = examined(write(tmp_path, exclusive()), span(-24 * 60, 60))
    note = one(found.blocking, "retention-too-short")
    assert "data exists only from 2025-03-04T10:00:00Z on" in note.message
    assert "--period 2025-03-04T10:00:00Z/2025-03-04T11:00:00Z works" in note.change
    since = examined(write(tmp_path / "since", exclusive(), since="2025-03-04T00:05:00Z"), span(-24 * 60, 60))
    assert "retention-too-short" in codes(since.blocking)  # ten hours are over max_gap
    for name, enough in (("exact", "2025-03-04T10:00:00Z"), ("day", "2025-03-04")):
        assert examined(write(tmp_path / name, exclusive(), since=enough), span(-24 * 60, 60)).ready


def test_a_period_without_a_gpu_shows_what_is_there_at_another_time(tmp_path: Path) -> None:
    found = examined(write(tmp_path, exclusive(), since="2025-03-01"), "2025-03-02", START + timedelta(minutes=60))
    assert codes(found.blocking) == {"no-gpu", "retention-too-short"}
    assert not found.looked.in_period
    assert [e.name for e in found.exporters] == ["dcgm-exporter", "process"]


@pytest.mark.parametrize("text", ["# EOF\n", "# TYPE up gauge\nup 1 1741082400\n# EOF\n"], ids=["empty", "other"])
def test_an_empty_source_blocks_and_says_what_was_asked_for(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    found = examined(path)
    assert codes(found.blocking) == {"no-gpu", "no-samples"}
    assert "DCGM_FI_DEV_FB" in one(found.blocking, "no-gpu").change
    assert found.exporters == ()
    assert exit_code(path) == 5


def test_without_kube_state_metrics_what_lacks_is_told(tmp_path: Path) -> None:
    c = Cluster()
    c.gpu("n1", used=20, pods=["apps/train"])
    c.process("n1", "apps/train", 20)
    found = examined(write(tmp_path, c))
    assert {"no-node-labels", "no-labels", "unowned"} <= codes(found.warnings)
    named = write(
        tmp_path / "named", c, prices(prices=[{"node": "n1", "per_hour": "6.00"}]),
        ownership={"rules": [{"match": {"namespace": "apps"}, "team": "red"}]},
    )  # fmt: skip
    assert examined(named).ready


def test_an_open_period_is_a_draft(tmp_path: Path) -> None:
    found = examined(write(tmp_path, exclusive()), "2025-03-04", START + timedelta(minutes=58))
    assert "draft" in codes(found.warnings)
    assert found.looked.end <= "2025-03-04T11:00:00Z"


def test_names_from_outside_do_not_steer_the_terminal(tmp_path: Path) -> None:
    c = exclusive()
    c.pod("apps/\u001b[31mred", node="n1")
    c.process("n1", "apps/\u001b[31mred", 5)
    assert "\u001b" not in as_table([examined(write(tmp_path, c))])


# The store


def test_days_and_months_that_are_missing(tmp_path: Path) -> None:
    c = Cluster(minutes=60)
    c.node("n1")
    c.gpu("n1", used=0)
    path = write(tmp_path, c, since="2025-01-30")
    job, period = prepared(path)
    pipeline.collect(job, period)
    for name in ("2025-01", "2025-02-draft"):
        folder = job.store.root / "reports" / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    found = examined(path, now=START + timedelta(days=35))
    h = found.history
    assert (h.since, h.collected_days) == ("2025-01-30T00:00:00Z", 1)
    assert h.days_lost == ("2025-01-30/2025-03-03",)
    assert h.days_never_collected == ("2025-01-30/2025-03-03", "2025-03-05/2025-04-07")
    assert (h.months_reported, h.months_as_draft, h.months_never_reported) == (("2025-01",), ("2025-02",), ("2025-03",))
    texts = [n.message for n in found.warnings if n.code == "not-collected"]
    assert any("33 days lost for good" in t for t in texts)
    assert any("34 days never collected" in t for t in texts)
    assert "2025-02, 2025-03" in one(found.warnings, "not-reported").message


def test_a_period_that_only_the_store_has_is_judged_from_it(tmp_path: Path) -> None:
    path = write(tmp_path, exclusive())
    job, period = prepared(path)
    pipeline.collect(job, period)
    (tmp_path / "metrics.om").write_text("# EOF\n")
    found = examined(path)
    assert found.ready
    assert found.looked.place == "store"
    assert "other-configuration" not in codes(found.warnings)
    assert found.memory_by_pod.devices == {"measured": 1}
    assert shares(found)["pods with a team"] == (1, 1)
    write(tmp_path, "# EOF\n", prices(prices=[{"instance_type": "other", "per_hour": "1"}]))
    assert "missing-price" in codes(examined(path).blocking)


def test_what_is_wrong_with_the_store_blocks(tmp_path: Path) -> None:
    path = write(tmp_path, exclusive())
    job, period = prepared(path)
    pipeline.collect(job, period)
    write(tmp_path, exclusive(), window="10m")
    assert examined(path).ready  # the source has it still: it is collected anew
    write(tmp_path, "# EOF\n", window="10m")
    assert "other-window" in codes(examined(path).blocking)
    write(tmp_path, exclusive())
    (job.store.usage("test", period.days()[0]) / "partition.json").write_text("{")
    assert "unreadable" in codes(examined(path).blocking)


def test_a_day_that_was_collected_before_it_was_over_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, exclusive())
    early, period = prepared(path, now=START + timedelta(minutes=60))
    pipeline.collect(early, period)
    found = examined(path)
    assert "2025-03-04 was collected before it was over" in str(found.warnings)
    assert found.ready


# JSON, and what is printed


def test_json_is_the_same_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, sliced({"red": 1, "blue": 2}, {"red": 5, "blue": 4}, replicas=4))
    texts = []
    for _ in range(2):
        assert exit_code(path, as_json=True) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    found: dict[str, Any] = json.loads(texts[0])
    assert found["ready"] is True
    assert found["clusters"][0]["repeated"][0]["percent"] == 300
    assert texts[0] == json.dumps(found, indent=1, sort_keys=True) + "\n"


def test_of_several_clusters_one_that_blocks_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, exclusive())
    (tmp_path / "other.om").write_text("# EOF\n")
    clusters = [{"name": n, "source": {"openmetrics": f}} for n, f in (("a", "metrics.om"), ("b", "other.om"))]
    path = write(tmp_path, exclusive(), cluster=None, source=None, clusters=clusters)
    assert exit_code(path) == 5
    out = capsys.readouterr().out
    assert re.search("Verdict: a, .* can be billed now", out)
    assert re.search("Verdict: b, .* cannot be billed now", out)


# Real servers


@contextmanager
def served(kind: str, c: Cluster) -> Iterator[str]:
    with (prometheus if kind == "prometheus" else victoria_metrics)(c.text()) as url:
        yield url


@pytest.mark.parametrize("kind", ["prometheus", "victoriametrics"])
def test_a_server_and_a_file_give_the_same_findings_and_no_secret(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    c = sliced({"red": 1, "blue": 1, "green": 1}, {"red": 5, "blue": 4}, replicas=4)
    c.gpu("n1", "GPU-1", used=1, exported=True, pods=["apps/red"])
    book = prices(gpus=4)
    local = json.loads(as_json([examined(write(tmp_path, c, book))]))["clusters"][0]
    (tmp_path / "token").write_text("canary-of-a-token")
    with served(kind, c) as url:
        source = {
            "prometheus": {
                "url": url.replace("//", "//canary-user:canary-password@"),
                "headers": {"X-Scope-OrgID": "canary-of-a-header"},
            }
        }
        path = write(tmp_path, c, book, source=source)
        asked = json.loads(as_json([examined(path)]))["clusters"][0]
        assert exit_code(path) == exit_code(path, as_json=True) == 0
        token = {"prometheus": {"url": url, "bearer_token_file": "token"}}
        assert exit_code(write(tmp_path, c, book, source=token)) == 0
        assert asked["server"]["kind"] == kind
        assert asked["server"]["address"] == url
    printed = capsys.readouterr()
    assert "canary" not in printed.out + printed.err
    assert "Verdict" in printed.out
    for found in (local, asked):
        found["server"] |= dict.fromkeys(("kind", "version", "address"))
    assert asked == local


@pytest.mark.parametrize("kind", ["prometheus", "victoriametrics"])
def test_a_server_without_anything_blocks(kind: str, tmp_path: Path) -> None:
    c = Cluster()
    c.series("up", 1, {"job": "node"})
    with served(kind, c) as url:
        found = examined(write(tmp_path, c, source={"prometheus": {"url": url}}))
    assert codes(found.blocking) == {"no-gpu", "no-samples"}


def test_a_server_that_cannot_be_reached_is_told_without_a_secret(tmp_path: Path) -> None:
    url = f"http://canary-user:canary-password@127.0.0.1:{free_port()}"
    path = write(tmp_path, exclusive(), source={"prometheus": {"url": url, "headers": {"X-Key": "canary-key"}}})
    with pytest.raises(SourceUnreachable) as e:
        exit_code(path)
    assert e.value.exit_code == 4
    assert "canary" not in e.value.message + e.value.hint


def test_it_asks_for_hours_not_for_months(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the period, raw samples and windows of a series are asked for no more than a day."""
    c = Cluster(minutes=3 * 24 * 60, every=300)
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", used=20, pods=["apps/train"])
    path = write(tmp_path, c)
    job, period = prepared(path, span(0, 3 * 24 * 60))
    (cluster,) = job.config.all_clusters()
    source = pipeline.open_source(cluster, job.config)
    spans = []
    windows = source.windows

    def spied(metric: str, start: int, end: int, window: int, **more: Any) -> Any:
        spans.append((end - start) / 3_600_000)
        return windows(metric, start, end, window, **more)

    monkeypatch.setattr(source, "windows", spied)
    assert doctor.examine(job, cluster, source, period).ready
    assert max(spans) <= 26
    assert np.median(spans) <= 1
