"""D1, D4, M5: the day's device rows, one exporter's for each device and window."""

from dataclasses import dataclass

import numpy as np

from chargeback.allocate import memory
from chargeback.allocate.frame import Frame
from chargeback.inventory import base_profile
from chargeback.tables import Floats, Ints, find, floats, groups, keys, order_of, starts_of

ROLES = ("used", "free", "reserved", "total")


@dataclass
class _Rows:
    """Columns of device rows while they are put together."""

    device: Ints
    column: Ints
    exporter: Ints
    samples: Ints
    about: Ints
    mib: dict[str, Floats]

    def add(self, device: Ints, column: Ints, exporter: Ints, samples: Ints, about: Ints) -> None:
        self.device, self.column = np.append(self.device, device), np.append(self.column, column)
        self.exporter, self.samples = np.append(self.exporter, exporter), np.append(self.samples, samples)
        self.about = np.append(self.about, about)
        self.mib = {n: np.append(v, np.full(device.size, np.nan)) for n, v in self.mib.items()}

    def take(self, rows: Ints) -> "_Rows":
        return _Rows(
            self.device[rows], self.column[rows], self.exporter[rows], self.samples[rows], self.about[rows],
            {n: v[rows] for n, v in self.mib.items()},
        )  # fmt: skip


@dataclass(frozen=True)
class Reported:
    """What was reported of devices. `rows` are those that speak; `about` their place in `abouts`, (model, profile).

    `nothing` is the place in `abouts` that says nothing. `scrapes`: of any exporter's row the key
    `exporter * devices * width + key` (sorted), samples and interval, to weigh its processes by (M1).
    """

    rows: memory.Devices
    about: Ints
    abouts: list[tuple[str, str]]
    nothing: int
    scrapes: tuple[Ints, Ints, Ints]


def read(frame: Frame) -> Reported:
    """The device rows that speak, sorted by key, with their capacity."""
    table = frame.tables["devices"]
    about, names = keys(table, ("gpu_model", "mig_profile"))
    abouts = [(model, profile) for model, profile in names]
    nothing = len(abouts)
    abouts.append(("", ""))
    rows = _Rows(
        frame.device("devices"), frame.column("devices"), frame.exporter("devices"), table["samples"].to_numpy(),
        about, {n: floats(table[f"{n}_mib"]) for n in ROLES},
    )  # fmt: skip
    alone = _process_only(frame)
    rows.add(*alone, np.full(alone[0].size, nothing))
    before = [(*gpu, *d) for gpu, b in sorted(frame.before.items()) for d in b.devices]
    place = {a: i for i, a in reversed(list(enumerate(abouts)))}
    for pair in sorted({b[3:] for b in before} - set(place)):
        place[pair] = len(abouts)
        abouts.append(pair)
    earlier = np.array([frame.number[b[:3]] for b in before], np.int64)
    zero = np.zeros(earlier.size, np.int64)
    rows.add(earlier, zero, zero, zero, np.array([place[b[3:]] for b in before], np.int64))
    key = rows.device * frame.width + rows.column
    every = rows.exporter * (len(frame.devices) * frame.width) + key
    order = order_of(every)
    scrapes = (every[order], rows.samples[order], frame.interval(rows.exporter, rows.device)[order])
    rank = frame.rank(frame.cluster.device_rank)[rows.exporter]
    rows = rows.take(memory.speaks(key, rank))
    rows = rows.take(_without_parents(frame, rows))
    key = rows.device * frame.width + rows.column
    capacity, from_book = memory.capacity(
        rows.mib["used"], rows.mib["free"], rows.mib["reserved"], rows.mib["total"], rows.device,
        _book_mib(frame, rows, abouts),
    )  # fmt: skip
    from_book &= rows.column > 0
    _tell(frame, rows.device[from_book], capacity[from_book])
    speaking = memory.Devices(
        key, rows.samples, frame.interval(rows.exporter, rows.device), memory.units(rows.mib["used"]), capacity
    )
    return Reported(speaking, rows.about, abouts, nothing, scrapes)


def _process_only(frame: Frame) -> tuple[Ints, Ints, Ints, Ints]:
    """M1: devices that no exporter reports at device level in the period stand on processes: of the exporter that
    speaks for them, the fullest process series on the node in that window.
    """
    alone = np.array([d in frame.cluster.only_processes for d in frame.devices] or [False])
    device, column, exporter = frame.device("consumers"), frame.column("consumers"), frame.exporter("consumers")
    samples = np.asarray(frame.tables["consumers"]["samples"].to_numpy(), np.int64)
    known = np.flatnonzero(device >= 0)
    device, column, exporter, samples = device[known], column[known], exporter[known], samples[known]
    scene = (frame.node_of[device] * max(len(frame.exporters), 1) + exporter) * frame.width + column
    scenes, at = groups(scene)
    fullest = np.zeros(scenes.size, np.int64)
    np.maximum.at(fullest, at, samples)
    rows = np.flatnonzero(alone[device])
    order = rows[np.lexsort((frame.rank(frame.cluster.process_rank)[exporter[rows]], column[rows], device[rows]))]
    best = order[starts_of(device[order], column[order])]
    return device[best], column[best], exporter[best], fullest[at[best]]


def _without_parents(frame: Frame, rows: _Rows) -> Ints:
    """A card's own row beside rows of its instances is not a device of its own (D1)."""
    scene = frame.gpu_of[rows.device] * frame.width + rows.column
    is_slice = frame.is_slice[rows.device]
    return np.flatnonzero(is_slice | ~np.isin(scene, scene[is_slice]))


def _book_mib(frame: Frame, rows: _Rows, abouts: list[tuple[str, str]]) -> Floats:
    """D4: by row the book's memory for the model, else for the node's instance type; of a slice its part of it."""
    node = frame.node_of[rows.device]
    lead, inverse = groups(rows.about, node)
    pairs = zip(rows.about[lead].tolist(), node[lead].tolist(), strict=True)
    found = [_gib(frame, abouts[a], frame.nodes[n]) * 1024 for a, n in pairs]
    return np.array(found, np.float64)[inverse]


def _gib(frame: Frame, about: tuple[str, str], node: str) -> float:
    model, profile = about
    instances = frame.cluster.prices.instances
    gib = next((i.gpu_memory_gib for i in instances.values() if i.gpu_model == model and i.gpu_memory_gib), 0.0)
    card = frame.cluster.mig.card(model, frozenset())
    kind = instances.get(frame.facts(node).instance_type)
    gib = gib or (kind.gpu_memory_gib if kind else 0.0) or (card.memory_gib if card else 0.0)
    known = card.profiles.get(base_profile(profile)) if card and profile else None
    return gib * (known.memory / card.memory if card and known else 1.0) if gib else float("nan")


def _tell(frame: Frame, device: Ints, capacity: Ints) -> None:
    names = [frame.shown(d) for d in range(len(frame.devices))]
    frame.find(
        "capacity-from-book", names, device[capacity > 0],
        "no exporter gives its capacity; the book's memory for the model stands in", "info",
    )  # fmt: skip
    frame.find(
        "capacity-unknown", names, device[capacity == 0],
        "nothing gives its capacity; memory is shared relative to what is used",
    )  # fmt: skip


def scrapes_for(frame: Frame, reported: Reported, exporter: Ints, key: Ints, spoken: Ints) -> tuple[Ints, Ints]:
    """M1: samples and interval of the device rows of the exporter whose processes are counted, else of those that
    speak; `spoken` are their places in `reported.rows`.
    """
    every, samples, interval = reported.scrapes
    own = find(every, exporter * (len(frame.devices) * frame.width) + key)
    has = own >= 0
    rows = reported.rows
    return (
        np.where(has, samples[own], rows.samples[spoken]) if key.size else key,
        np.where(has, interval[own], rows.interval[spoken]) if key.size else key,
    )
