"""One partition of evidence: a span of a cluster's time, from its source to Arrow tables (`schemas`)."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from chargeback import schemas
from chargeback.config import Config, Profile
from chargeback.evidence import gpu, kube
from chargeback.evidence.measure import Measured, measure
from chargeback.evidence.readings import Ints, Slice, rhythm
from chargeback.evidence.replicas import read_one
from chargeback.exporters import metric_names
from chargeback.problems import Problem, Problems
from chargeback.sources import Source

KSM = "kube-state-metrics"


@dataclass(frozen=True)
class Evidence:
    """A partition: its tables by name, and what was wrong with the data."""

    tables: dict[str, pa.Table]
    problems: list[Problem]


def collect(
    source: Source,
    config: Config,
    replica_label: str | None,
    profiles: list[Profile],
    gpu_types: Collection[str],
    start: int,
    end: int,
    share: gpu.NodeShare = gpu.ALL_NODES,
) -> Evidence:
    """Reads `[start, end)` (ms, on window edges) of a cluster, or of a share of its nodes.

    `gpu_types` are instance types with GPUs (C1).
    """
    cut = Slice(source, start, end, config.window, config.max_gap)
    problems = Problems()
    present = source.metrics(start, end)
    wanted = wanted_labels(config)
    known = kube.node_names(cut)
    book = gpu.Directory(known, kube.pod_nodes(cut), config.system_pods, replica_label, share=share)
    totals: dict[int, float] = {}
    readings = []
    for profile in sorted(profiles, key=lambda p: p.device_memory is None):
        if present & set(metric_names(profile)):
            reading = gpu.read(cut, profile, present, book, totals, problems)
            if reading.roles:
                readings.append(reading)
    rows = _Rows(book, config.window)
    intervals = _rhythms(cut, readings, book, rows, config)
    readings, several = read_one(cut, readings, book, intervals)
    if several:
        problems.add(
            "replica-duplicates", book.replica_label or "", "several replicas scraped the same; one was read (M7)",
            count=several, severity="info",
        )  # fmt: skip
    for reading in readings:
        measured = measure(cut, reading, intervals[reading.profile.name])
        rows.measured(reading, measured)
        rows.at_once(measured, cut.window // np.maximum(intervals[reading.profile.name], 1))
        for device, count in measured.copies.items():
            problems.add(
                "device-level-duplicates",
                "/".join(p for p in book.devices.all()[device] if p),
                "rows by pod repeat the device's value and were read once; added up they would exceed the device",
                count=count,
                severity="info",
            )
    candidates = {n for (n,) in book.nodes.all() if n} | {n for n in kube.gpu_typed_nodes(cut, gpu_types) if n in share}
    nodes = kube.read_nodes(cut, candidates)
    rows.nodes(cut, nodes)
    named = {(p[0], p[1]) for p in book.pods.all()}
    rows.kube(kube.read(cut, candidates, named, wanted), nodes)
    return Evidence(rows.tables(), problems.sorted())


def merged(parts: list[Evidence]) -> Evidence:
    """Shares of one partition as one: the same tables that a single reading gives."""
    if len(parts) == 1:
        return parts[0]
    tables = {}
    for name, schema in TABLES.items():
        table = pa.concat_tables([p.tables[name] for p in parts]).combine_chunks()
        if name == "intervals":
            tables[name] = _merged(table)
            continue
        if name not in ("devices", "consumers", "holders"):  # namespaces and pods may be known to several shares
            table = _distinct(table)
        if name == "pods":
            table = _told(table)
        tables[name] = table.sort_by(_order(schema))
    problems = Problems()
    for part in parts:
        problems.extend(part.problems)
    return Evidence(tables, problems.sorted())


def _told(pods: pa.Table) -> pa.Table:
    """Without rows of a share that only heard a pod's name, where another knows its node."""
    keys = list(zip(*(pods[c].to_pylist() for c in ("namespace", "pod", "pod_uid")), strict=True))
    known = {k for k, node in zip(keys, pods["node"].to_pylist(), strict=True) if node}
    keep = [bool(node) or k not in known for k, node in zip(keys, pods["node"].to_pylist(), strict=True)]
    return pods.filter(pa.array(keep, pa.bool_()))


def wanted_labels(config: Config) -> set[str]:
    """The pod and namespace labels that ownership and dimensions read, as kube-state-metrics writes them."""
    names = {config.ownership.team_label, *config.dimensions.values()}
    names |= {n for rule in config.ownership.rules for n in rule.match.labels}
    return {kube.sanitized(n) for n in names}


def _rhythms(
    cut: Slice, readings: list[gpu.Reading], book: gpu.Directory, rows: "_Rows", config: Config
) -> dict[str, np.ndarray]:
    """Stretches and intervals of each exporter; its interval in ms by node code (0 where it has none)."""
    out = {}
    nodes = len(book.nodes.all())
    for reading in readings:
        name = reading.profile.name
        role = next(
            reading.roles[n] for n in ("used", "free", "reserved", "total", "activity", "process") if n in reading.roles
        )
        often: dict[tuple[int, int], int] = {}
        for replica in np.unique(role.replica):
            for metric in sorted(set(role.metric)):
                mine = np.array([m == metric for m in role.metric]) & (role.replica == replica)
                node = np.where(mine, role.node, -1)
                found, (n, distance, count) = rhythm(cut, metric, role.exposed, node, role.names, one_scrape=True)
                rows.stretches(
                    f"{name}/{replica}", [book.nodes.all()[i][0] for i in found.node], found.first, found.last
                )
                rows.distances(name, [book.nodes.all()[i][0] for i in n], distance, count)
                for key, c in zip(zip(n.tolist(), distance.tolist(), strict=True), count.tolist(), strict=True):
                    often[key] = often.get(key, 0) + c
        interval = np.zeros(nodes)
        for (n_, d), _ in sorted(often.items(), key=lambda kv: (kv[1], -kv[0][1])):
            interval[n_] = d
        if config.scrape_interval != "auto":
            interval[:] = config.scrape_interval
        out[name] = interval
    return out


class _Rows:
    """Collects a partition's rows, table by table, as columns."""

    def __init__(self, book: gpu.Directory, window: int) -> None:
        self._book = book
        self._window = window
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in TABLES}

    def _add(self, table: str, **columns: object) -> None:
        schema = TABLES[table]
        arrays = []
        for field in schema:
            value = columns[field.name]
            if field.type == schemas.TIME:
                value = pa.array(np.asarray(value, np.int64), pa.int64()).cast(pa.timestamp("ms")).cast(field.type)
            elif field.type == pa.float64():
                value = pa.array(np.asarray(value, np.float64), from_pandas=True)
            elif not isinstance(value, pa.Array | pa.ChunkedArray):
                value = pa.array(value, field.type)
            arrays.append(value)
        self._parts[table].append(pa.table(arrays, schema=schema))

    def _windows(self, windows: object) -> Ints:
        return np.asarray(windows, np.int64) * self._window

    def _take(self, values: list[str], codes: Ints) -> pa.Array:
        return pa.array([*values, ""], pa.string()).take(pa.array(codes))

    def _device(self, codes: Ints) -> dict[str, object]:
        devices = self._book.devices.all()
        columns = ("node", "gpu_uuid", "gpu_instance_id")
        return {name: self._take([d[i] for d in devices], codes) for i, name in enumerate(columns)}

    def _pod(self, codes: Ints) -> dict[str, object]:
        pods = self._book.pods.all()
        codes = np.where(codes < 0, len(pods), codes)
        return {n: self._take([p[i] for p in pods], codes) for i, n in enumerate(("namespace", "pod", "pod_uid"))}

    def measured(self, reading: gpu.Reading, m: Measured) -> None:
        name, about = reading.profile.name, np.asarray(m.devices["about"], np.int64)
        device = np.asarray(m.devices["device"], np.int64)
        self._add(
            "devices",
            window=self._windows(m.devices["window"]),
            **self._device(device),
            exporter=[name] * device.size,
            **self._about(about),
            samples=m.devices["samples"],
            activity=m.devices["activity"],
            **{f"{r}_mib": m.devices[r] for r in gpu.MEMORY_ROLES},
        )
        consumer = np.asarray(m.consumers["device"], np.int64)
        self._add(
            "consumers",
            window=self._windows(m.consumers["window"]),
            **self._device(consumer),
            exporter=[name] * consumer.size,
            **self._pod(np.asarray(m.consumers["pod"], np.int64)),
            container_sum_mib=m.consumers["sum"],
            samples=m.consumers["samples"],
        )
        holder = np.asarray(m.holders["device"], np.int64)
        self._add(
            "holders",
            window=self._windows(m.holders["window"]),
            **self._device(holder),
            **self._pod(np.asarray(m.holders["pod"], np.int64)),
            slots=m.holders["slots"],
        )
        self._inventory(name, m, device, consumer)

    def _about(self, codes: Ints) -> dict[str, object]:
        known = self._book.about.all()
        codes = np.where(codes < 0, len(known), codes)
        return {n: self._take([k[i] for k in known], codes) for i, n in enumerate(("gpu_model", "mig_profile"))}

    def _inventory(self, name: str, m: Measured, device: Ints, consumer: Ints) -> None:
        code = np.concatenate([device, consumer])
        window = np.concatenate([np.asarray(m.devices["window"]), np.asarray(m.consumers["window"])]).astype(np.int64)
        about = np.concatenate([np.asarray(m.devices["about"], np.int64), np.full(consumer.size, -1)])
        order = np.lexsort((about, window, code))
        code, window, about = code[order], window[order], about[order]
        begins = np.append(True, code[1:] != code[:-1]) if code.size else np.empty(0, bool)
        found = code[begins]
        self._add(
            "inventory",
            **self._device(found),
            exporter=[name] * found.size,
            **self._about(about[np.append(begins[1:], True)] if code.size else about),
            device_rows=np.isin(found, device),
            first=self._windows(window[begins]),
            last=self._windows(window[np.append(begins[1:], True)] if code.size else []),
        )

    def at_once(self, m: Measured, scrapes: np.ndarray) -> None:
        """C5: by node the most GPUs at once. `scrapes`: by node, those of a full window. In a window in which a card
        was replaced, each of the two has a part of them, and together they are one.
        """
        kinds = ("devices", "consumers")
        device, window, samples = (
            np.concatenate([np.asarray(getattr(m, k)[c], np.int64) for k in kinds])
            for c in ("device", "window", "samples")
        )
        if not device.size:
            return
        devices = self._book.devices.all()
        node_names = [n for (n,) in self._book.nodes.all()]
        gpus = {key: i for i, key in enumerate(sorted({d[:2] for d in devices}))}
        gpu = np.array([gpus[d[:2]] for d in devices], np.int64)[device]
        node_of = np.array([node_names.index(g[0]) if g[0] in node_names else -1 for g in gpus], np.int64)
        scenes, at = np.unique(np.stack([window, gpu]), axis=1, return_inverse=True)
        most = np.zeros(scenes.shape[1], np.int64)
        np.maximum.at(most, at.ravel(), samples)
        node = node_of[scenes[1]]
        full = np.maximum(np.append(scrapes, 1)[node], 1)
        part = np.minimum(most, full) / full
        by_node, place = np.unique(np.stack([scenes[0], node]), axis=1, return_inverse=True)
        together = np.maximum(np.rint(np.bincount(place.ravel(), part)).astype(np.int64), 1)
        best: dict[str, int] = {}
        for n, count in zip(by_node[1].tolist(), together.tolist(), strict=True):
            if n >= 0:
                best[node_names[n]] = max(best.get(node_names[n], 0), count)
        self._add("at_once", node=list(best), gpus=list(best.values()))

    def stretches(self, family: str, node: list[str], first: Ints, last: Ints) -> None:
        self._add("nodes", node=node, family=[family] * len(node), first=first, last=last)

    def distances(self, family: str, node: list[str], distance: Ints, count: Ints) -> None:
        self._add("intervals", family=[family] * len(node), node=node, distance_ms=distance, count=count)

    def nodes(self, cut: Slice, nodes: kube.Nodes) -> None:
        for metric, found in nodes.found.items():
            names = sorted({kube.own(ls, "node") for ls in found.labels})
            code = np.array([names.index(kube.own(ls, "node")) for ls in found.labels], np.int64)
            edges, (at, distance, count) = rhythm(cut, metric, found, code, ["node"], one_scrape=False)
            self.stretches(f"{KSM}/{metric}", [names[i] for i in edges.node], edges.first, edges.last)
            self.distances(KSM, [names[i] for i in at], distance, count)

    def kube(self, seen: kube.Kube, nodes: kube.Nodes) -> None:
        w = self._windows
        n = nodes.labels
        self._add(
            "node_labels", node=[r[0] for r in n], labels=[r[1] for r in n],
            first=w([r[2] for r in n]), last=w([r[3] for r in n]),
        )  # fmt: skip
        p = seen.pods
        self._add(
            "pods", **_pod_columns([r[0] for r in p]), node=[r[1] for r in p],
            workload_kind=[r[2][0] for r in p], workload=[r[2][1] for r in p],
            first=w([r[3] for r in p]), last=w([r[4] for r in p]),
        )  # fmt: skip
        ended = sorted(seen.ended.items())
        self._add("ended", **_pod_columns([r[0] for r in ended]), first=w([r[1] for r in ended]))
        q = seen.requests
        self._add(
            "requests", **_pod_columns([r[0] for r in q]), node=[r[1] for r in q], resource=[r[2] for r in q],
            quantity=[r[3] for r in q], first=w([r[4] for r in q]), last=w([r[5] for r in q]),
        )  # fmt: skip
        ls = seen.labels
        self._add(
            "labels", **_pod_columns([r[0] for r in ls]), labels=[r[1] for r in ls],
            first=w([r[2] for r in ls]), last=[r[3] for r in ls],
        )  # fmt: skip
        self._add("reporting", first=w([r[0] for r in seen.reporting]), last=w([r[1] for r in seen.reporting]))

    def tables(self) -> dict[str, pa.Table]:
        """Every table, sorted, so that the same samples give the same bytes."""
        out = {}
        for name, schema in TABLES.items():
            table = pa.concat_tables([schema.empty_table(), *self._parts[name]]).combine_chunks()
            if name == "at_once":
                table = _distinct(table)
            out[name] = table.sort_by(_order(schema)) if name != "intervals" else _merged(table)
        return out


def _distinct(table: pa.Table) -> pa.Table:
    names = table.schema.names
    return table.group_by(names).aggregate([]).select(names).cast(table.schema)


def _order(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(f.name, "ascending") for f in schema if f.type != pa.float64()]


def _merged(intervals: pa.Table) -> pa.Table:
    keys = ["family", "node", "distance_ms"]
    summed = intervals.group_by(keys).aggregate([("count", "sum")]).rename_columns([*keys, "count"])
    return summed.select(schemas.INTERVALS.names).cast(schemas.INTERVALS).sort_by([(k, "ascending") for k in keys])


def _pod_columns(pods: list[kube.Pod]) -> dict[str, object]:
    return {name: [p[i] for p in pods] for i, name in enumerate(("namespace", "pod", "pod_uid"))}


TABLES = {
    "devices": schemas.DEVICES,
    "consumers": schemas.CONSUMERS,
    "holders": schemas.HOLDERS,
    "inventory": schemas.INVENTORY,
    "at_once": schemas.AT_ONCE,
    "nodes": schemas.NODES,
    "node_labels": schemas.NODE_LABELS,
    "intervals": schemas.INTERVALS,
    "pods": schemas.PODS,
    "ended": schemas.ENDED,
    "requests": schemas.REQUESTS,
    "labels": schemas.LABELS,
    "reporting": schemas.REPORTING,
}
