"""The Kubernetes example: what a cluster would accept, and its own commands run on its own configuration."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "examples" / "kubernetes" / "cronjob.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))
KUBERNETES = ("1.31", "1.37")
"""The oldest release that the example names, and the newest whose schemas are at hand."""
HOUR = timedelta(hours=1)
STEP = 300
"""Seconds between samples: one in each window is enough."""
INSTANCE_TYPE, GPUS, PER_HOUR = "p4d.24xlarge", 8, Decimal("21.957642")
"""What the example's price book knows."""


def ident(document: dict[str, Any]) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {d["metadata"]["name"]: d for d in DOCUMENTS if d["kind"] == kind}


def pod_of(cronjob: str) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind("CronJob")[cronjob]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("document", DOCUMENTS, ids=ident)
def test_kubernetes_accepts_every_document(document: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(document, version, strict=True) == version


@pytest.mark.parametrize("cronjob", of_kind("CronJob"))
def test_the_jobs_run_as_the_image_is_made_to(cronjob: str) -> None:
    """As the image's user, without rights, on a read-only root; and every volume that is mounted exists."""
    pod = pod_of(cronjob)
    (container,) = pod["containers"]
    user = int(re.findall(r"^USER (\d+):\d+$", dockerfile(), re.MULTILINE)[-1])
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert pod["serviceAccountName"] in of_kind("ServiceAccount")
    for volume in pod["volumes"]:
        if "configMap" in volume:
            assert volume["configMap"]["name"] in of_kind("ConfigMap")
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in of_kind("PersistentVolumeClaim")


def test_every_exit_code_but_that_of_an_unreachable_source_ends_a_job() -> None:
    for cronjob in of_kind("CronJob").values():
        rules = cronjob["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
        (fatal,) = [r["onExitCodes"] for r in rules if r["action"] == "FailJob"]
        assert fatal["operator"] == "In"
        assert fatal["values"] == [code for code in range(1, 8) if code != 4]


def test_the_jobs_collect_each_night_and_bill_the_month(tmp_path: Path) -> None:
    """A node of 8 GPUs, one of which reports, held by one pod from before the last month on: red pays an eighth of it.

    The platform team pays the seven that never report.
    """
    cluster = Cluster(tmp_path)
    before = datetime.now(UTC)
    first_of_last_month = month_start(month_start(before) - HOUR)
    write_samples(cluster.samples, first_of_last_month - timedelta(days=1), before + timedelta(days=1))

    cluster.run("chargeback-collect")
    cluster.run("chargeback-report")

    after = datetime.now(UTC)  # midnight may have passed
    yesterdays = {f"{now - timedelta(days=1):%F}" for now in (before, after)}
    collected = {p.name.removeprefix("date=") for p in cluster.store.glob("usage/cluster=prod/date=*")}
    assert collected & yesterdays
    (manifest,) = cluster.store.glob("reports/*/manifest.json")
    starts = {month_start(month_start(now) - HOUR) for now in (before, after)}
    (start,) = [s for s in starts if manifest.parent.name.removesuffix("-draft") == f"{s:%Y-%m}"]
    end = month_start(start + timedelta(days=32))
    proof = json.loads(manifest.read_text(encoding="utf-8"))
    assert proof["reconciled"]
    node_cost = PER_HOUR * ((end - start) // HOUR)
    assert Decimal(proof["node_cost"]) == node_cost
    teams = {team: Decimal(amount) for team, amount in proof["teams"].items()}
    assert teams.keys() == {"platform", "red"}
    assert abs(teams["red"] - node_cost / GPUS) < Decimal("0.01")
    assert sum(teams.values()) == Decimal(proof["billed"])
    if before > end + timedelta(days=1):
        assert manifest.parent.name == f"{start:%Y-%m}", "the month is over and whole, so its report is final"


def month_start(moment: datetime) -> datetime:
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text(encoding="utf-8")


class Cluster:
    """What the example's pods see of a cluster, under one folder: their volumes, and the image's program on PATH."""

    def __init__(self, folder: Path) -> None:
        self.samples = folder / "metrics.om"
        self.store = folder / "data"
        self._bin = folder / "bin"
        self._work = folder / "tmp"
        self._volumes = {"config": folder / "etc" / "chargeback", "data": self.store, "tmp": self._work}
        for path in (self._bin, *self._volumes.values()):
            path.mkdir(parents=True)
        program = self._bin / "chargeback"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m chargeback "$@"\n', encoding="utf-8")
        program.chmod(0o755)

    def run(self, cronjob: str) -> None:
        """Runs the CronJob's container: its command and arguments as they are, but for the mounted folders' places."""
        pod = pod_of(cronjob)
        (container,) = pod["containers"]
        places = {m["mountPath"]: self._volumes[m["name"]] for m in container["volumeMounts"] if m["name"] != "tmp"}
        for volume in pod["volumes"]:
            if "configMap" in volume:
                self._mount(of_kind("ConfigMap")[volume["configMap"]["name"]]["data"], self._volumes["config"], places)
        entrypoint = json.loads(re.findall(r"^ENTRYPOINT (.*)$", dockerfile(), re.MULTILINE)[-1])
        command = [moved(word, places) for word in [*container.get("command", entrypoint), *container["args"]]]
        done = subprocess.run(
            command,
            cwd=self._work,
            env={"PATH": f"{self._bin}{os.pathsep}{os.defpath}", "HOME": str(self._work)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert not list(self._work.iterdir()), "nothing is left in /tmp"

    def _mount(self, files: dict[str, str], folder: Path, places: dict[str, Path]) -> None:
        """As kubelet lays a ConfigMap down, files behind two links; the source is our file in place of the server."""
        version = folder / "..2026_11_01"
        if version.exists():
            return
        version.mkdir()
        (folder / "..data").symlink_to(version.name)
        for name, content in files.items():
            text = moved(content, places)
            if name == "chargeback.yaml":
                config = yaml.safe_load(text)
                assert config["source"].pop("prometheus")["url"].startswith("http://")
                config["source"]["openmetrics"] = str(self.samples)
                text = yaml.safe_dump(config)
            (version / name).write_text(text, encoding="utf-8")
            (folder / name).symlink_to(f"..data/{name}")


def moved(text: str, places: dict[str, Path]) -> str:
    """The text with every path at or below a mount point turned into the one here."""
    points = "|".join(re.escape(p) for p in sorted(places, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({points})(?![\w.-])", lambda m: str(places[m[1]]), text)


def write_samples(path: Path, start: datetime, end: datetime) -> None:
    """OpenMetrics text of a node of which one GPU reports, and a pod that holds that and uses 10 of its 40 GiB."""
    gpu = {
        "gpu": "0",
        "UUID": "GPU-0",
        "device": "nvidia0",
        "modelName": "NVIDIA A100-SXM4-40GB",
        "Hostname": "gpu-a",
        "namespace": "research",
        "pod": "train-0",
        "container": "main",
    }
    pod = {"namespace": "research", "pod": "train-0", "uid": "u1"}
    node_labels = {
        "node": "gpu-a",
        "label_node_kubernetes_io_instance_type": INSTANCE_TYPE,
        "label_topology_kubernetes_io_region": "us-east-1",
    }
    request = {**pod, "container": "main", "node": "gpu-a", "resource": "nvidia_com_gpu", "unit": "integer"}
    series: list[tuple[str, dict[str, str], int]] = [
        ("DCGM_FI_DEV_FB_FREE", gpu, 30_000),
        ("DCGM_FI_DEV_FB_RESERVED", gpu, 500),
        ("DCGM_FI_DEV_FB_USED", gpu, 10_240),
        ("kube_node_info", {"node": "gpu-a", "provider_id": ""}, 1),
        ("kube_node_labels", node_labels, 1),
        ("kube_pod_container_resource_requests", request, 1),
        ("kube_pod_info", {**pod, "node": "gpu-a", "created_by_kind": "Job", "created_by_name": "train"}, 1),
        ("kube_pod_labels", {**pod, "label_team": "red"}, 1),
        ("kube_pod_status_phase", {**pod, "phase": "Running"}, 1),
    ]
    first = int(start.timestamp()) // STEP * STEP
    times = range(first, int(end.timestamp()), STEP)
    path.write_text("".join(exposition(series, times)), encoding="utf-8")


def exposition(series: Iterable[tuple[str, dict[str, str], int]], times: range) -> Iterable[str]:
    for metric, labels, value in series:
        braces = ",".join(f'{name}="{text}"' for name, text in labels.items())
        head = f"{metric}{{{braces}}} {value} "
        yield f"# TYPE {metric} gauge\n"
        yield from (f"{head}{t}\n" for t in times)
    yield "# EOF\n"
