"""M1, M5, M6 and G2 on a day's rows: each pod's memory by device and window, and who the pods are."""

import fnmatch
import re
from dataclasses import dataclass

import numpy as np

from chargeback.allocate import devices, memory
from chargeback.allocate.devices import Reported
from chargeback.allocate.frame import POD, Frame
from chargeback.pods import NO_POD, Pod
from chargeback.tables import Bools, Floats, Ints, find, groups, keys, order_of, sizes, starts_of


@dataclass(frozen=True)
class People:
    """The day's pods, sorted by (namespace, name, uid), and the numbers of those that tables name (-1: none)."""

    pods: list[Pod]
    system: Bools
    consumer: Ints
    holder: Ints
    asking: Ints

    def shown(self) -> list[str]:
        """namespace/name of each."""
        return ["/".join(p[:2]) for p in self.pods]


def identify(frame: Frame) -> People:
    """M6: pods of consumer rows, holder rows and requests together; rows without uid by name and time."""
    requests = frame.requests
    consumer, consumers = keys(frame.tables["consumers"], POD)
    holder, holders = keys(frame.tables["holders"], POD)
    named: list[Pod] = sorted({*consumers, *holders, NO_POD, *requests.pod})  # type: ignore[arg-type]
    place = {p: i for i, p in enumerate(named)}
    codes = [
        np.array([place[n] for n in consumers] or [0], np.int64)[consumer],  # type: ignore[index]
        np.array([place[n] for n in holders] or [0], np.int64)[holder],  # type: ignore[index]
        np.array([place[p] for p in requests.pod], np.int64),
    ]
    windows = np.concatenate(
        [frame.column("consumers") + frame.base, frame.column("holders") + frame.base, requests.first]
    )
    found, pods = frame.cluster.pods.identify(named, np.concatenate(codes), windows)
    found = np.where(found == pods.index(NO_POD), -1, found)
    a, b = codes[0].size, codes[0].size + codes[1].size
    is_system = re.compile("|".join(fnmatch.translate(g) for g in frame.config.system_pods) or r"(?!)").match
    system = [is_system(f"{p[0]}/{p[1]}") is not None for p in pods]
    return People(pods, np.array(system, bool), found[:a], found[a:b], found[b:])


@dataclass(frozen=True)
class Used:
    """Uses by (key, pod), and where the process exporter of a node was silent: (nodes, width) (G2)."""

    uses: memory.Uses
    silent: Bools


def read(frame: Frame, reported: Reported, people: People) -> Used:
    """Each pod's time-weighted memory; rows that explain nothing are dropped and said."""
    device, column, exporter = frame.device("consumers"), frame.column("consumers"), frame.exporter("consumers")
    total = frame.tables["consumers"]["container_sum_mib"].to_numpy()
    key = device * frame.width + column
    spoken = find(reported.rows.key, key)
    speaks = (device >= 0) & ~_blind(frame, reported, key, exporter, total, spoken)
    speaks[speaks] = _speaking(frame, key[speaks], exporter[speaks])
    seen = np.zeros((len(frame.nodes), frame.width), bool)
    seen[frame.node_of[device[speaks]], column[speaks]] = True
    rows = np.flatnonzero(speaks & (spoken >= 0))
    key, device, column, exporter = key[rows], device[rows], column[rows], exporter[rows]
    samples, interval = devices.scrapes_for(frame, reported, exporter, key, spoken[rows])
    used = memory.time_weighted(total[rows], frame.interval(exporter, device), samples, interval)
    pod = people.consumer[rows]
    kept = ~_explains_nothing(frame, people, pod, column, exporter, used)
    no = np.zeros(int(kept.sum()), bool)
    uses = memory.merged(memory.Uses(key[kept], pod[kept], used[kept], no, no))
    uses, silent = memory.silent_processes(uses, seen, reported.rows, frame.node_of, frame.width, frame.reach)
    charged = silent[:, frame.first : frame.last]
    frame.find(
        "process-exporter-silent", frame.nodes, np.nonzero(charged)[0],
        "process data stopped while memory stayed in use; the last known shares stand in for up to max_gap",
    )  # fmt: skip
    gone = uses.standing & (uses.pod >= 0)
    gone &= frame.cluster.pods.gone(people.pods, np.maximum(uses.pod, 0), uses.key % frame.width + frame.base)
    return Used(uses.take(np.flatnonzero(~gone)), silent)


def _blind(frame: Frame, reported: Reported, key: Ints, exporter: Ints, total: Floats, spoken: Ints) -> Bools:
    """Rows by pod that are all 0 on a device whose memory is in use: an exporter that cannot see processes (it runs
    without hostPID) has no data, which is not idleness.
    """
    by_rows = np.array([e in frame.cluster.pod_row_exporters for e in frame.exporters] or [False])[exporter]
    scenes, at = groups(key, exporter)
    nothing = np.bincount(at, total, scenes.size)[at] == 0
    return np.asarray(by_rows & nothing & (spoken >= 0) & (reported.rows.used[spoken] > 0), bool)


def _speaking(frame: Frame, key: Ints, exporter: Ints) -> Bools:
    """M5: rows of the exporter that speaks for the processes of a device in a window."""
    order = order_of(key, frame.rank(frame.cluster.process_rank)[exporter])
    first = starts_of(key[order])
    best = np.repeat(exporter[order][first], sizes(first, key.size)) if key.size else key
    speaks = np.zeros(key.size, bool)
    speaks[order] = exporter[order] == best
    return speaks


def _explains_nothing(
    frame: Frame, people: People, pod: Ints, column: Ints, exporter: Ints, used: Ints | Floats
) -> Bools:
    """M6: rows of system pods, of pods that have ended, and pids of exporters that never name pods."""
    named = pod >= 0
    system = people.system[np.maximum(pod, 0)] & named
    stale = frame.cluster.pods.gone(people.pods, np.maximum(pod, 0), column + frame.base) & named & ~system
    frame.find(
        "stale-pod", people.shown(), pod[stale & (column >= frame.first) & (used > 0)],
        "an exporter still shows memory of a pod that has ended; it counts as memory that no process explains",
    )  # fmt: skip
    can = np.array([frame.cluster.names_pods.get(e, False) for e in frame.exporters] or [True])
    return np.asarray(system | stale | (~named & ~can[exporter]), bool)
