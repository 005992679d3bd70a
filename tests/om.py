"""Any source's samples as an OpenMetrics text, for tests that put them into a real Prometheus."""

import math

from chargeback.sources import Labels
from chargeback.sources.memory import MemorySource


def to_openmetrics(source: MemorySource, start: int, end: int) -> str:
    """The samples of `[start, end)` ms as promtool reads them: by metric, by series, by time, in seconds."""
    parts = []
    for metric in sorted(source.metrics(start, end)):
        parts.append(f"# TYPE {metric} gauge\n")
        found = source.samples(metric, start, end)
        heads = [f"{metric}{_braces(labels)} " for labels in found.labels]
        rows = zip(found.series.tolist(), found.value.tolist(), found.time.tolist(), strict=True)
        parts += [f"{heads[s]}{_number(v)} {t // 1000}.{t % 1000:03}\n" for s, v, t in rows]
    return "".join([*parts, "# EOF\n"])


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    if math.isnan(value):
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 and str(value) != "-0.0" else repr(value)
