"""The evidence that collecting a day of a made-up cluster would give, without a server."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from chargeback import schemas
from chargeback.evidence.collect import Evidence
from chargeback.ledger import Store
from chargeback.period import DAY, iso

from .fleet import CARD_MIB, KUBE_SCRAPE, MODEL, RESERVED_MIB, SCRAPE, TEAMS, WINDOW, Fleet, node_labels, workload

SAMPLES = WINDOW // SCRAPE
KUBE = "kube-state-metrics"


def write(store: Store, cluster: str, fleet: Fleet, day: int) -> None:
    """Puts the day's partition into a store."""
    meta = {
        "version": "", "cluster": cluster, "asks": "",
        "window_ms": WINDOW, "asked": [iso(day), iso(day + DAY)], "source": {},
        "rows": {}, "samples": 0, "warnings": [], "complete": True, "whole": True, "held_from_ms": day,
    }  # fmt: skip
    store.write_evidence(cluster, day, evidence(fleet, day), meta)


def evidence(fleet: Fleet, day: int) -> Evidence:
    """What is known of a day, in tables sorted as `collect` sorts them."""
    windows = np.arange(day, day + DAY, WINDOW)
    first, last = int(windows[0]), int(windows[-1])
    dice = np.random.default_rng(day // DAY)
    gpus, pods, names = fleet.gpus, fleet.pods, fleet.names
    place = {g.uuid: i for i, g in enumerate(gpus)}
    of = np.array([place[p.gpu.uuid] for p in pods])
    mean = dice.integers(2_000, 25_000, (windows.size, len(pods))) + 0.25
    used = np.stack([np.bincount(of, row, len(gpus)) + 450 for row in mean])
    cards = {"node": [g.node for g in gpus], "gpu_uuid": [g.uuid for g in gpus], "gpu_instance_id": ""}
    on = {"node": [p.gpu.node for p in pods], "gpu_uuid": [p.gpu.uuid for p in pods], "gpu_instance_id": ""}
    ids = {"namespace": [p.namespace for p in pods], "pod": [p.name for p in pods], "pod_uid": [p.uid for p in pods]}
    shown = {"first": first, "last": last}
    families = {"dcgm-exporter": SCRAPE, "process": SCRAPE, KUBE: KUBE_SCRAPE}
    stretches = ["dcgm-exporter/0", "process/0", f"{KUBE}/kube_node_info", f"{KUBE}/kube_node_labels"]
    nothing = {"namespace": TEAMS, "pod": "", "pod_uid": ""}
    tables = {
        "devices": _table(
            schemas.DEVICES, len(gpus), window=windows, **cards, exporter="dcgm-exporter", gpu_model=MODEL,
            mig_profile="", samples=SAMPLES, used_mib=used, free_mib=CARD_MIB - RESERVED_MIB - used,
            reserved_mib=float(RESERVED_MIB), total_mib=None, activity=used % 1,
        ),
        "consumers": _table(
            schemas.CONSUMERS, len(pods), window=windows, **on, exporter="process", **ids,
            container_sum_mib=mean * SAMPLES, samples=SAMPLES,
        ),
        "holders": _table(
            schemas.HOLDERS, len(pods), window=windows, **on, **ids, slots=[int(p.gpu.slots > 1) for p in pods]
        ),
        "inventory": pa.concat_tables([
            _table(
                schemas.INVENTORY, len(gpus), **cards, exporter=exporter, gpu_model=model, mig_profile="",
                device_rows=bool(model), **shown,
            )
            for exporter, model in (("dcgm-exporter", MODEL), ("process", ""))
        ]),
        "at_once": _table(schemas.AT_ONCE, len(names), node=names, gpus=len(gpus) // len(names)),
        "nodes": pa.concat_tables([
            _table(schemas.NODES, len(names), node=names, family=family, first=first, last=day + DAY - KUBE_SCRAPE)
            for family in stretches
        ]),
        "node_labels": pa.concat_tables([
            _table(schemas.NODE_LABELS, len(names), node=names, labels=labels, **shown)
            for labels in (
                [_json(node_labels(fleet, n)) for n in names],
                [_json({"provider_id": f"example:///{n}"}) for n in names],
            )
        ]),
        "intervals": pa.concat_tables([
            _table(
                schemas.INTERVALS, len(names), family=family, node=names, distance_ms=every, count=DAY // every - 1
            )
            for family, every in families.items()
        ]),
        "pods": _table(
            schemas.PODS, len(pods), **ids, node=on["node"], workload_kind="StatefulSet",
            workload=[workload(p) for p in pods], **shown,
        ),
        "ended": schemas.ENDED.empty_table(),
        "requests": _table(
            schemas.REQUESTS, len(pods), **ids, node=on["node"], resource="nvidia_com_gpu", quantity=1, **shown
        ),
        "labels": pa.concat_tables([
            _table(schemas.LABELS, len(owned["pod_uid"] or TEAMS), **owned, labels=labels, **shown)
            for owned, labels in (
                (ids, [_json({"label_team": p.namespace}) for p in pods]),
                (nothing, [_json({"label_team": t}) for t in TEAMS]),
            )
        ]),
        "reporting": _table(schemas.REPORTING, 1, **shown),
    }  # fmt: skip
    for name, table in tables.items():
        if "window" not in table.column_names:  # the large ones come in order
            keys = [(f.name, "ascending") for f in table.schema if f.type != pa.float64()]
            tables[name] = table.sort_by(keys)
    return Evidence(tables, [])


def _json(labels: dict[str, str]) -> str:
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))


def _table(schema: pa.Schema, things: int, **columns: Any) -> pa.Table:
    """Rows of `things` things, window by window where there is a column `window`.

    A column is one value, one by thing, or an array (windows, things).
    """
    windows = columns.pop("window", None)
    times = 1 if windows is None else len(windows)
    which = pa.array(np.tile(np.arange(things), times))
    arrays = []
    for field in schema:
        value = np.repeat(windows, things) if field.name == "window" else columns[field.name]
        if isinstance(value, np.ndarray):
            array = pa.array(value.ravel())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            array = pa.array(value).take(which)
        else:
            array = pa.repeat(
                pa.scalar(value, pa.int64() if field.type == schemas.TIME else field.type), things * times
            )
        if field.type == schemas.TIME:
            array = array.cast(pa.timestamp("ms"))
        arrays.append(array.cast(field.type))
    return pa.table(arrays, schema=schema)
