"""Decodes what Prometheus' HTTP API answers: numbers by the array, the rest as JSON."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from chargeback.sources import Labels

_MARK, _END = b'"values":[[', b'"]]'
_KEPT = len('"values":')
_COMMA = 44


@dataclass(frozen=True)
class Series:
    """One series of a reply: labels (empty ones left out, `__name__` kept), times in ms, values."""

    labels: Labels
    time: NDArray[np.int64]
    value: NDArray[np.float64]


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`, where each list of `[time, "value"]` pairs is an array of shape (n, 2).

    The text of such a list is cut out before the JSON is parsed, and all lists are read at once. The mark of its
    beginning cannot stand within a JSON string, where its quotes would be escaped. What is written otherwise (with
    blanks, say) is read as plain JSON. Raises ValueError for what is cut short or inconsistent.
    """
    skeleton: list[bytes] = []
    lists: list[bytes] = []
    at = 0
    while (start := body.find(_MARK, at)) >= 0:
        end = body.find(_END, start)
        if end < 0:
            raise ValueError("cut short within a list of values")
        skeleton += (body[at : start + _KEPT], b"%d" % len(lists))
        lists.append(body[start + len(_MARK) : end])
        at = end + len(_END)
    skeleton.append(body[at:])
    document = json.loads(b"".join(skeleton))
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    pairs = _pairs(lists)
    for entry in _entries(document):
        values = entry.get("values")
        if isinstance(values, int):
            entry["values"] = pairs[values]
        elif isinstance(values, list):
            entry["values"] = np.array([_pair(v) for v in values], np.float64).reshape(-1, 2)
    return document


def series(entry: dict[str, Any]) -> Series:
    """A decoded entry of `data.result`, of a range or of an instant. Raises ValueError if it is neither."""
    labels = entry.get("metric")
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        raise ValueError("a series without labels")
    values = entry.get("values")
    if values is None:
        values = np.array([_pair(entry.get("value"))], np.float64)
    time = np.rint(values[:, 0] * 1000)
    if not np.isfinite(time).all():
        raise ValueError("a time that is no number")
    return Series({n: v for n, v in labels.items() if v}, time.astype(np.int64), values[:, 1])


def _entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    data = document.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    return [e for e in result if isinstance(e, dict)] if isinstance(result, list) else []


def _pair(pair: Any) -> tuple[float, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError("a sample that is not a time and a value")
    if not isinstance(pair[0], int | float) or not isinstance(pair[1], str):
        raise ValueError("a sample that is not a time and a value")
    return float(pair[0]), float(pair[1])


def _pairs(lists: list[bytes]) -> list[NDArray[np.float64]]:
    """`1,"2"],[3,"4` as [[1, 2], [3, 4]], for many such texts."""
    if not lists:
        return []
    sizes = np.array([text.count(b"[") + 1 for text in lists])
    if any(text.count(b'"],[') != n - 1 for text, n in zip(lists, sizes, strict=True)):
        raise ValueError("a list of values in an unknown form")
    text = b",".join(lists).translate(None, b'[]"')
    commas = np.flatnonzero(np.frombuffer(text, np.uint8) == _COMMA)
    if commas.size + 1 != 2 * sizes.sum():
        raise ValueError("a sample that is not a time and a value")
    edges = np.empty(2 * commas.size + 2, np.int64)
    edges[0], edges[1:-1:2], edges[2::2], edges[-1] = 0, commas, commas + 1, len(text)
    parts = pa.Array.from_buffers(
        pa.large_string(), 2 * commas.size + 1, [None, pa.py_buffer(edges), pa.py_buffer(text)]
    )
    numbers = parts.take(pa.array(np.arange(0, 2 * commas.size + 1, 2))).cast(pa.float64())  # ArrowInvalid: ValueError
    flat = numbers.to_numpy(zero_copy_only=False).reshape(-1, 2)
    return np.split(flat, np.cumsum(sizes)[:-1])
