"""What collecting would be without the program: the same queries in a user's script, one by one, with pandas."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd
from prometheus_api_client import MetricRangeDataFrame, MetricSnapshotDataFrame, PrometheusConnect

POD = ["namespace", "pod"]
DEVICE = ["Hostname", "UUID"]
QUERY = re.compile(r"(count|sum|min|max|last)_over_time\((\w+)")


def run(url: str, addresses: Sequence[str]) -> pd.DataFrame:
    """Asks what these addresses ask; memory by device, window and pod, with the pod's team and node."""
    prometheus = PrometheusConnect(url=url)
    frames: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for address in addresses:
        parts = urlsplit(address)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        found = _ask(prometheus, parts.path, asked)
        if not found:
            continue
        name = QUERY.search(asked["query"])
        key = (name[2], name[1]) if name else (asked["query"].partition("{")[0], "raw")
        frames.setdefault(key, []).append(_framed(found))
    means = {metric: _mean(frames, metric) for metric, what in frames if what == "sum"}
    return _joined(means, frames)


def _ask(prometheus: PrometheusConnect, path: str, asked: dict[str, str]) -> list[Any]:
    if path.endswith("/query_range"):
        start, end = (datetime.fromtimestamp(float(asked[n]), UTC) for n in ("start", "end"))
        return list(prometheus.custom_query_range(asked["query"], start, end, asked["step"]))
    if path.endswith("/query"):
        return list(prometheus.custom_query(asked["query"], params={"time": asked["time"]}))
    return []


def _framed(found: list[Any]) -> pd.DataFrame:
    if "values" in found[0]:
        return MetricRangeDataFrame(found)
    return MetricSnapshotDataFrame(found)


def _mean(frames: dict[tuple[str, str], list[pd.DataFrame]], metric: str) -> pd.DataFrame:
    """A metric's mean by series and window: its sums, merged with its counts."""
    sums, counts = (pd.concat(frames[metric, what]).reset_index() for what in ("sum", "count"))
    sums = sums.rename(columns={"value": "total"})
    keys = [c for c in sums.columns if c in counts.columns]
    merged = sums.merge(counts.rename(columns={"value": "samples"}), on=keys)
    merged[metric] = merged["total"].astype(float) / merged["samples"].astype(float)
    return merged


def _joined(means: dict[str, pd.DataFrame], frames: dict[tuple[str, str], list[pd.DataFrame]]) -> pd.DataFrame:
    """Memory by pod beside what the device says, who the pod is of, and where it runs."""
    process = means["gpu_process_memory_used_bytes"]
    keys = [*DEVICE, "timestamp"]
    memory = process.groupby([*keys, *POD], as_index=False)["gpu_process_memory_used_bytes"].sum()
    for metric in sorted(m for m in means if m.startswith("DCGM_")):
        memory = memory.merge(means[metric].groupby(keys, as_index=False)[metric].max(), on=keys, how="left")
    for metric in ("kube_pod_labels", "kube_pod_info"):
        about = pd.concat(frames[metric, "count"]).reset_index()
        about = about[[c for c in about.columns if c not in {"value", "uid", "__name__"}]]
        about = about.loc[:, ~about.columns.duplicated()].dropna(subset=["timestamp"])
        memory = memory.merge(about.drop_duplicates([*POD, "timestamp"]), on=[*POD, "timestamp"], how="left")
    return memory
