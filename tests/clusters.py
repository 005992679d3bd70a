"""A small made-up cluster: what a Prometheus would hold of it, and what the program bills for it.

A test says in a few lines what is there, runs the program on it, and compares the charges with amounts worked out by
hand::

    c = Cluster()                                             # an hour from 10:00 UTC, a scrape every 30 s
    c.node("n1")                                              # instance type `box`, which costs 6.00 an hour
    c.pod("apps/train", team="red", node="n1")                # asks for one GPU
    c.gpu("n1", used=20, pods=["apps/train"])                 # GPU-0 of 80 GiB, 20 in use, the label names the pod
    c.process("n1", "apps/train", 20)                         # a process of it with 20 GiB
    assert run(tmp_path, c).charges == money({("red", "used"): "1.50", ("red", "idle"): "4.50"})

Minutes count from the cluster's start, memory is in GiB. `at=(10, 30)` is the stretch from minute 10 up to, not
including, minute 30. Wherever a number is asked for, a function of the minute will do.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import yaml

from chargeback import config as configuration
from chargeback import pipeline
from chargeback.period import parse_period
from chargeback.sources import Source

START = datetime(2025, 3, 4, 10, tzinfo=UTC)
"""A full hour, in the past wherever the tests run."""
GIB = 2.0**30
MIB_OF_GIB = 1024.0
LATER = START + timedelta(days=60)
"""When a run takes place that is not said to be at another time: all is over."""
BOX = "box"
"""The instance type of a node that is not said to be another."""
A100_80, A100_40 = "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"

Number = float | Callable[[float], float]
"""A value, or a function from the minute to it."""
Stretch = tuple[float, float] | None
"""From one minute up to another; None is the cluster's whole time."""
Pods = Sequence[str] | Mapping[str, Sequence[str]]
"""NAMESPACE/NAME of each pod, or these with the slots (`vgpu`) that each has."""
Charges = dict[tuple[str, str], Decimal]


def money(amounts: Mapping[tuple[str, str], str]) -> Charges:
    """Amounts by (team, kind) as exact decimals, to compare `Result.charges` with."""
    return {key: Decimal(text) for key, text in amounts.items()}


def instant(minute: float = 0, start: datetime = START) -> str:
    """The time of a minute as `2025-03-04T10:30:00Z`."""
    return (start + timedelta(minutes=minute)).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(first: float, last: float, start: datetime = START) -> str:
    """The period from one minute to another, as `--period` takes it."""
    return f"{instant(first, start)}/{instant(last, start)}"


HOUR = span(0, 60)
"""The period that a `Cluster()` fills."""


class Cluster:
    """Samples by metric and series, and the short words that make them."""

    def __init__(self, minutes: float = 60, every: float = 30, start: datetime = START) -> None:
        """`every`: seconds from one scrape to the next, of all that is not said to be scraped otherwise."""
        self.minutes, self.every, self.start = minutes, every, start
        self._series: dict[str, dict[tuple[tuple[str, str], ...], dict[int, float]]] = {}

    # What any series is made of

    def series(
        self,
        metric: str,
        value: Number,
        labels: Mapping[str, str],
        at: Stretch = None,
        *,
        every: float | None = None,
        offset: float = 0,
    ) -> None:
        """Samples of one series, `every` seconds, the first `offset` seconds into the stretch."""
        first, last = at if at is not None else (0, self.minutes)
        step = round((every or self.every) * 1000)
        held = self._series.setdefault(metric, {}).setdefault(tuple(sorted(labels.items())), {})
        for ms in range(round((first * 60 + offset) * 1000), round(last * 60_000), step):
            held[ms] = value(ms / 60_000) if callable(value) else value

    def hole(self, metrics: str, at: tuple[float, float], **labels: str) -> None:
        """Takes away all samples of a stretch, of metrics whose names begin so, where the labels are these."""
        for metric, series in self._series.items():
            if metric.startswith(metrics):
                for key, held in series.items():
                    if labels.items() <= dict(key).items():
                        for ms in [ms for ms in held if at[0] * 60_000 <= ms < at[1] * 60_000]:
                            del held[ms]

    def overwrite(self, metric: str, value: Number, at: tuple[float, float], **labels: str) -> None:
        """Gives another value to the samples of a stretch of a metric, where the labels are these."""
        for key, held in self._series[metric].items():
            if labels.items() <= dict(key).items():
                for ms in held:
                    if at[0] * 60_000 <= ms < at[1] * 60_000:
                        held[ms] = _now(value, ms / 60_000)

    def seen_by(self, **labels: str) -> "Cluster":
        """The same samples with further labels, as `replica="a"`."""
        other = Cluster(self.minutes, self.every, self.start)
        for metric, series in self._series.items():
            extra = labels.items()
            other._series[metric] = {tuple(sorted((*key, *extra))): dict(held) for key, held in series.items()}
        return other

    def add(self, other: "Cluster") -> "Cluster":
        """Takes in the samples of another one that began at the same time."""
        for metric, series in other._series.items():
            for key, held in series.items():
                self._series.setdefault(metric, {}).setdefault(key, {}).update(held)
        return self

    def text(self) -> str:
        """All samples as the OpenMetrics text that promtool reads."""
        base = round(self.start.timestamp() * 1000)
        lines = []
        for metric, series in sorted(self._series.items()):
            lines.append(f"# TYPE {metric} gauge")
            for key, held in sorted(series.items()):
                inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in key)
                for ms, value in sorted(held.items()):
                    when = base + ms
                    lines.append(f"{metric}{{{inside}}} {value!r} {when // 1000}.{when % 1000:03d}")
        return "\n".join([*lines, "# EOF", ""])

    # Kubernetes objects, as kube-state-metrics shows them

    def node(
        self,
        name: str,
        kind: str = BOX,
        *,
        region: str = "",
        provider_id: str = "",
        at: Stretch = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A node of an instance type; `labels` are further ones, as `label_nvidia_com_gpu_count`."""
        facts = {"label_node_kubernetes_io_instance_type": kind, "label_topology_kubernetes_io_region": region}
        kept = {n: v for n, v in (facts | dict(labels or {})).items() if v}
        self.series("kube_node_info", 1, {"node": name, "provider_id": provider_id}, at)
        self.series("kube_node_labels", 1, {"node": name, **kept}, at)

    def pod(
        self,
        name: str,
        *,
        node: str = "",
        team: str = "",
        uid: str | None = None,
        request: Mapping[str, float] | float = 1,
        init: Mapping[str, float] | float = 0,
        at: Stretch = None,
        done: float | None = None,
        phase: str = "Succeeded",
        owner: tuple[str, str] = ("<none>", "<none>"),
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A pod NAMESPACE/NAME bound to a node, with what it asks for: GPUs, or amounts by resource.

        From minute `done` on it has come to its end in `phase`, and stays listed. Containers of a request are given
        apart as `nvidia_com_gpu/side`. `labels` are further ones, as `label_tier`.
        """
        me = _ids(name) | {"uid": _uid(name) if uid is None else uid}
        first, last = at if at is not None else (0.0, self.minutes)
        end = last if done is None else done
        kind, by = owner
        self.series("kube_pod_info", 1, {**me, "node": node, "created_by_kind": kind, "created_by_name": by}, at)
        kept = {n: v for n, v in ({"label_team": team} | dict(labels or {})).items() if v}
        self.series("kube_pod_labels", 1, {**me, **kept}, at)
        for metric, asked in (
            ("kube_pod_container_resource_requests", request),
            ("kube_pod_init_container_resource_requests", init),
        ):
            amounts = asked if isinstance(asked, Mapping) else {"nvidia_com_gpu": asked}
            for what, amount in amounts.items():
                resource, _, container = what.partition("/")
                if amount:
                    about = {"container": container or "main", "resource": resource, "unit": "integer"}
                    self.series(metric, amount, {**me, "node": node, **about}, at)
        for name_, begins, ends in (("Running", first, end), (phase, end, last)):
            for minutes, value in (((first, begins), 0), ((begins, ends), 1), ((ends, last), 0)):
                if minutes[0] < minutes[1]:
                    self.series("kube_pod_status_phase", value, {**me, "phase": name_}, minutes)

    def namespace(self, name: str, at: Stretch = None, **labels: str) -> None:
        """A namespace with its labels, as `team="red"`."""
        self.series("kube_namespace_labels", 1, {"namespace": name, **{f"label_{n}": v for n, v in labels.items()}}, at)

    # GPUs, as dcgm-exporter shows them

    def gpu(
        self,
        node: str,
        uuid: str = "GPU-0",
        *,
        used: Number | None = 0,
        size: float | None = 80,
        free: Number | None = None,
        reserved: float | None = None,
        total: float | None = None,
        pods: Pods = (),
        own: Mapping[str, Number] | None = None,
        model: str = A100_80,
        instance: str = "",
        profile: str = "",
        exported: bool = False,
        at: Stretch = None,
        offset: float = 0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A GPU or a MIG instance (`instance`, `profile`) with `used` GiB of `size` in use.

        What is left of `size` is free, unless `free` says how much is. With `pods` each series is repeated for every
        pod, and for every slot of it, with the device's value. With `own` (GiB by pod) a row without a pod stands
        beside rows by pod with what each pod uses itself. `exported` writes the workload as `exported_pod`, as a scrape
        without honorLabels does; `pod` is the exporter's then. `None` leaves a metric out.
        """
        card = {"UUID": uuid, "gpu": "0", "device": "nvidia0", "modelName": model, "Hostname": node}
        card |= {n: v for n, v in (("GPU_I_ID", instance), ("GPU_I_PROFILE", profile)) if v} | dict(labels or {})
        if free is None and size is not None:
            free = _left(size, used or 0)
        given = {"USED": used, "FREE": free, "RESERVED": reserved, "TOTAL": total}
        values = {name: _mib(value) for name, value in given.items() if value is not None}
        mine = {"namespace": "monitoring", "pod": f"dcgm-exporter-{node}", "container": "exporter"} if exported else {}

        def rows(names: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
            prefix = "exported_" if exported else ""
            ids = [(_ids(pod) | {"container": "main"}, slot) for pod, slot in names]
            return [
                {**card, **mine, **{prefix + k: v for k, v in who.items()}, **({"vgpu": slot} if slot else {})}
                for who, slot in ids
            ]

        copies = rows(_slots(pods)) or [{**card, **mine}]
        for name, value in values.items():
            for labels_ in copies if own is None or name != "USED" else [{**card, **mine}]:
                self.series(f"DCGM_FI_DEV_FB_{name}", value, labels_, at, offset=offset)
        slots = dict(_by_pod(pods))
        for pod, value in (own or {}).items():
            for labels_ in rows((pod, slot) for slot in slots.get(pod, [""])):
                self.series("DCGM_FI_DEV_FB_USED", _mib(value), labels_, at, offset=offset)

    def process(
        self,
        node: str,
        pod: str,
        gib: Number,
        uuid: str = "GPU-0",
        *,
        pid: str = "100",
        uid: str | None = None,
        instance: str = "",
        at: Stretch = None,
        every: float | None = None,
        offset: float = 0,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A process of a pod ("": of none) with memory, as an in-house exporter shows it."""
        who = {**_ids(pod), "pod_uid": _uid(pod) if uid is None else uid} if pod else {}
        where = {"Hostname": node, "UUID": uuid, "pid": pid} | ({"GPU_I_ID": instance} if instance else {})
        known = {**where, **{n: v for n, v in who.items() if v}, **(labels or {})}
        self.series("gpu_process_memory_used_bytes", _times(gib, GIB), known, at, every=every, offset=offset)


def exclusive(used: Number = 20, *, minutes: float = 60) -> Cluster:
    """Node n1 with GPU-0 of 80 GiB, held by apps/train of red, whose process has `used` GiB."""
    c = Cluster(minutes)
    c.node("n1")
    c.pod("apps/train", team="red", node="n1")
    c.gpu("n1", used=used, pods=["apps/train"])
    c.process("n1", "apps/train", used)
    return c


def sliced(held: Mapping[str, int], used: Mapping[str, Number], *, replicas: int, minutes: float = 60) -> Cluster:
    """Node n1 with a time-sliced GPU-0 of 80 GiB in `replicas` slots.

    `held` says how many of them the pod apps/TEAM holds, and `used` how many GiB its process has; a team that is in
    `used` alone is a guest. All that the device has in use is used by these.
    """
    c = Cluster(minutes)
    c.node("n1", labels={"label_nvidia_com_gpu_replicas": str(replicas)})
    slots = iter(range(100))
    pods = {f"apps/{team}": [str(next(slots)) for _ in range(number)] for team, number in held.items()}
    c.gpu("n1", used=lambda minute: sum(_now(gib, minute) for gib in used.values()), pods=pods)
    for team in sorted({*held, *used}):
        c.pod(f"apps/{team}", team=team, node="n1", request=held.get(team, 0))
    for team, gib in used.items():
        c.process("n1", f"apps/{team}", gib)
    return c


def _ids(pod: str) -> dict[str, str]:
    """namespace and pod labels of NAMESPACE/NAME."""
    namespace, _, name = pod.partition("/")
    return {"namespace": namespace, "pod": name}


def _uid(pod: str) -> str:
    """The uid of a pod that is not given one."""
    return f"uid-of-{pod.replace('/', '-')}"


def _now(value: Number, minute: float) -> float:
    """A number at a minute."""
    return value(minute) if callable(value) else value


def _times(value: Number, factor: float) -> Number:
    """A value in another unit."""
    return lambda minute: _now(value, minute) * factor


def _left(whole: float, part: Number) -> Number:
    """What a part leaves of the whole."""
    return lambda minute: whole - _now(part, minute)


def _mib(gib: Number) -> Number:
    """GiB as the MiB that dcgm-exporter writes."""
    return _times(gib, MIB_OF_GIB)


def _by_pod(pods: Pods) -> list[tuple[str, Sequence[str]]]:
    """Each pod and its slots; one without a name where none are given."""
    return list(pods.items()) if isinstance(pods, Mapping) else [(pod, [""]) for pod in pods]


def _slots(pods: Pods) -> list[tuple[str, str]]:
    """Each pod and slot that a row stands for."""
    return [(pod, slot) for pod, slots in _by_pod(pods) for slot in slots]


def _escaped(value: str) -> str:
    """A label's value as OpenMetrics writes it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def prices(
    per_hour: str = "6.00", *, gpus: float | None = 1, model: str = A100_80, gib: float = 80, **more: Any
) -> dict[str, Any]:
    """A price book in which a `box` with some GPUs costs so much; `more` are further keys, or others in their place.

    With `gpus=None` the book does not know what a `box` has.
    """
    known = {} if gpus is None else {BOX: {"gpus": gpus, "gpu_model": model, "gpu_memory_gib": gib}}
    book = {
        "currency": "USD",
        "source": "a test",
        "as_of": "2025-01-01",
        "instances": known,
        "prices": [{"instance_type": BOX, "per_hour": per_hour}],
    }
    return book | more


def as_yaml(data: Mapping[str, Any]) -> str:
    """A mapping as YAML, every value written out: the program reads no aliases."""
    return yaml.dump(dict(data), Dumper=_Plain, sort_keys=False)


class _Plain(yaml.SafeDumper):
    """Writes a value again where it comes again."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def forty(per_hour: str = "6.00", gpus: float = 1) -> dict[str, Any]:
    """The same for a `box` with A100 of 40 GB."""
    return prices(per_hour, gpus=gpus, model=A100_40, gib=40)


@dataclass(frozen=True)
class Result:
    """What a run left behind. `charges` and `estimated` are sums of `cost` by (team, kind), nothing left out but 0."""

    charges: Charges
    estimated: Charges
    manifest: dict[str, Any]
    problems: set[str]
    rows: list[dict[str, Any]]
    """The allocations, row by row."""
    lines: list[dict[str, str]]
    """finance.csv, row by row."""
    store: Path
    folder: Path
    """The report's folder."""

    @property
    def node_cost(self) -> Decimal:
        """What the nodes cost, as the manifest says."""
        return Decimal(self.manifest["node_cost"])

    @property
    def invoices(self) -> dict[str, Decimal]:
        """Each team's invoice total."""
        return {team: Decimal(amount) for team, amount in self.manifest["teams"].items()}

    def subjects(self, code: str) -> dict[str, int]:
        """What a problem was found with, and how often."""
        return {p["subject"]: p["count"] for p in self.manifest["problems"] if p["code"] == code}


def write(folder: Path, cluster: Cluster | str, book: Mapping[str, Any] | None = None, /, **settings: Any) -> Path:
    """metrics.om, prices.yaml and chargeback.yaml in a folder; the configuration's path.

    `settings` are keys of the configuration, in place of the plainest ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = cluster if isinstance(cluster, str) else cluster.text()
    (folder / "metrics.om").write_text(text, encoding="utf-8")
    (folder / "prices.yaml").write_text(as_yaml(book or prices()), encoding="utf-8")
    plain: dict[str, Any] = {
        "cluster": "test",
        "store": "store",
        "source": {"openmetrics": "metrics.om"},
        "pricing": {"books": ["prices.yaml"]},
    }
    path = folder / "chargeback.yaml"
    kept = {key: value for key, value in (plain | settings).items() if value is not None}
    path.write_text(as_yaml(kept), encoding="utf-8")
    return path


def run(
    folder: Path,
    cluster: Cluster | str,
    book: Mapping[str, Any] | None = None,
    /,
    *,
    period: str = HOUR,
    now: datetime = LATER,
    collect: bool = True,
    opened: Callable[..., Source] = pipeline.open_source,
    **settings: Any,
) -> Result:
    """Collects and bills a period of the cluster at the time `now`; raises what the program raises.

    Without `collect`, from what was collected before. `opened` gives another source.
    """
    path = write(folder, cluster, book, **settings)
    config, origin = configuration.load(path)
    moment = round(now.timestamp() * 1000)
    chosen = parse_period(period, config.timezone, config.window, moment)
    job = pipeline.prepare(config, origin, folder, moment)
    if collect:
        pipeline.collect(job, chosen, opened)
    _, report = pipeline.report(job, chosen)
    return read(config.store, report)


def read(store: Path, report: Path) -> Result:
    """What lies in a store and a report's folder."""
    found = ds.dataset(store / "allocations", format="parquet", partitioning=None)
    rows: list[dict[str, Any]] = found.to_table().to_pylist()
    charges, estimated = (_summed(r for r in rows if r["estimated"] or every) for every in (True, False))
    manifest: dict[str, Any] = json.loads((report / "manifest.json").read_text(encoding="utf-8"))
    with (report / "finance.csv").open(newline="", encoding="utf-8") as f:
        lines = list(csv.DictReader(f))
    codes = {p["code"] for p in manifest["problems"]}
    return Result(charges, estimated, manifest, codes, rows, lines, store, report)


def _summed(rows: Iterable[dict[str, Any]]) -> Charges:
    """Sums of `cost` by (team, kind), without those that are 0."""
    sums: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in rows:
        sums[row["team"], row["kind"]] += row["cost"]
    return {key: cost for key, cost in sorted(sums.items()) if cost}
