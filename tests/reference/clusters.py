"""Random, plausible GPU clusters in the form of a case, with what the reference model makes of them.

    python -m tests.reference.clusters OUTDIR FIRST LAST

writes a folder `OUTDIR/seed-NNNN` for each seed: metrics.om.gz, chargeback.yaml, prices.yaml, period, expected.csv and
a README.md that names what happens in it. The same seed gives the same bytes.

First a truth is drawn (nodes, GPUs, pods, processes, labels), then exporters look at it with their own scrape
intervals, losses and habits. Corners on which the rules are silent are kept out: a pod shows on a GPU only after
kube-state-metrics has listed it; its memory is off the GPU in the window in which it is last listed; a single GPU falls
silent only where pods have no requests; a name is used again some windows later; a MIG layout changes at a window's
edge; a process exporter does not fall silent together with the devices; no two sets of cards in one window.
"""

from __future__ import annotations

import gzip
import random
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from . import model

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
MIB = 2**20
ALWAYS = 2**62
DCGM_BLANKS = ("2147483632", "2147483647", "9223372036854775794", "9223372036854775807", "17592186044415", "NaN", "-1")
PROCESS_BLANKS = ("18446744073709551615", "NaN", "-1")
TEAMS = ("red", "blue", "green", "gold", "violet", "Red")
NAMESPACES = ("research", "research-nlp", "serving", "batch", "notebooks", "shared-llm", "vision", "speech", "misc")

# model name: total MiB, reserved MiB, MIG layouts (profile and id of each instance)
CARDS: dict[str, tuple[int, int]] = {
    "NVIDIA A100-SXM4-80GB": (81920, 640),
    "NVIDIA A100-SXM4-40GB": (40960, 506),
    "NVIDIA H100 80GB HBM3": (81559, 551),
    "NVIDIA H200": (143771, 613),
    "NVIDIA L40S": (46068, 493),
    "NVIDIA A30": (24576, 310),
}
LAYOUTS: dict[str, tuple[str, ...]] = {
    "NVIDIA A100-SXM4-80GB": (
        "3g.40gb:1 2g.20gb:5 1g.10gb:13",
        "4g.40gb:1 2g.20gb:5 1g.10gb:9",
        "3g.40gb:1 3g.40gb:2",
        "1g.10gb:10 1g.10gb:11 1g.10gb:12 1g.10gb:13",
        "1g.10gb:7 1g.10gb:8 1g.10gb:9",
        "2g.20gb:3 2g.20gb:4 1g.20gb:15",
        "7g.80gb:0",
        "4g.40gb:1 3g.40gb:2",
    ),
    "NVIDIA A100-SXM4-40GB": (
        "3g.20gb:1 2g.10gb:5 1g.5gb:13",
        "2g.10gb:3 2g.10gb:4 2g.10gb:5 1g.5gb:9",
        "3g.20gb:2 1g.10gb:15",
        "2g.10gb:3 2g.10gb:4 2g.10gb:5",
        "3g.20gb:1 3g.20gb:2",
    ),
    "NVIDIA H100 80GB HBM3": (
        "4g.40gb:1 3g.40gb:2",
        "1g.20gb:15 1g.20gb:16 3g.40gb:2",
        "2g.20gb:3 1g.10gb:9",
        "1g.20gb:15 1g.20gb:16",
        "3g.40gb:1 3g.40gb:2",
    ),
    "NVIDIA H200": (
        "3g.71gb:1 2g.35gb:5",
        "1g.18gb:7 1g.18gb:8 4g.71gb:1",
        "1g.35gb:15 2g.35gb:3",
        "2g.35gb:3 2g.35gb:4",
        "3g.71gb:1 3g.71gb:2",
    ),
    "NVIDIA A30": ("2g.12gb:1 1g.6gb:3 1g.6gb:4", "2g.12gb:1 2g.12gb:2", "1g.6gb:3 1g.6gb:4 1g.6gb:5", "4g.24gb:0"),
}  # fmt: skip


@dataclass
class Gpu:
    uuid: str
    card: str
    start: int
    end: int
    index: int
    layouts: list[tuple[int, list[tuple[str, str]]]] = field(default_factory=list)  # (from, [(id, profile)])

    def instances(self, t: int) -> list[tuple[str, str]]:
        return [x for start, x in self.layouts if start <= t][-1] if self.layouts else [("", "")]


@dataclass
class Place:
    """A device while it stands: where pods can go."""

    gpu: Gpu
    instance: str
    profile: str
    start: int
    end: int
    slots: int
    capacity: int
    taken: list[tuple[int, int, int]] = field(default_factory=list)  # from, to, slot

    def free(self, start: int, end: int) -> list[int]:
        busy = {slot for a, b, slot in self.taken if a < end and start < b}
        return [s for s in range(self.slots) if s not in busy]


@dataclass
class Process:
    place: Place
    pid: int
    start: int
    end: int
    levels: list[tuple[int, int]]  # from, bytes
    pod: Run | None
    visible: bool = True  # to the process exporter
    system: str = ""

    def memory(self, t: int) -> int:
        return [b for at, b in self.levels if at <= t][-1] if self.start <= t < self.end else 0


@dataclass
class Run:
    """A pod."""

    namespace: str
    name: str
    uid: str
    node: str
    created: int
    bound: int
    end: int
    ending: str  # deleted, Succeeded, Failed
    listed: int  # until when it is listed
    places: list[tuple[Place, list[int]]]
    teams: list[tuple[int, str]]
    tier: str = ""
    requests: dict[str, int] = field(default_factory=dict)
    init: bool = False
    gpu_start: int = 0
    gpu_end: int = 0
    named_until: int = 0


@dataclass
class Machine:
    name: str
    type: str
    region: str
    card: str
    count: int
    mode: str
    spans: list[tuple[int, int]]
    providers: list[str]
    option: dict[str, str]
    labels: dict[str, str]
    requests: bool
    slots: int = 1
    gpus: list[Gpu] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    has_process: bool = True
    host_pid: bool = True
    style: str = "plain"
    switch: int = ALWAYS
    host_label: str = "Hostname"
    uuid_label: str = "UUID"
    idle_empty: bool = False
    parent_rows: bool = False
    dcgm_holes: list[tuple[int, int]] = field(default_factory=list)
    process_holes: list[tuple[int, int]] = field(default_factory=list)

    def up(self, t: int) -> bool:
        return any(a <= t < b for a, b in self.spans)


class Writer:
    """OpenMetrics text, grouped by metric, by series within, by time within."""

    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))

    def add(self, metric: str, labels: dict[str, str], time: int, value: str) -> None:
        key = ",".join(f'{k}="{v}"' for k, v in labels.items())
        self.metrics[metric][key].append((time, value))

    def text(self) -> str:
        lines = []
        for metric, series in sorted(self.metrics.items()):
            lines.append(f"# TYPE {metric} gauge")
            for key, samples in sorted(series.items()):
                for time, value in sorted(samples):
                    whole, rest = divmod(time, 1000)
                    stamp = f"{whole}.{rest:03d}" if rest else str(whole)
                    lines.append(f"{metric}{{{key}}} {value} {stamp}")
        return "\n".join([*lines, "# EOF", ""])


def covers(intervals: Iterable[tuple[int, int]], t: int) -> bool:
    return any(a <= t < b for a, b in intervals)


class Cluster:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.traits: set[str] = set()
        self.counter = 0
        rng = self.rng
        day = datetime(2026, 11, rng.randint(2, 28), tzinfo=UTC)
        midnight = int(day.timestamp()) * 1000
        self.start = midnight + rng.randint(8, 60) * 15 * MINUTE
        self.end = self.start + rng.choice([12, 14, 16, 18, 20, 24]) * 15 * MINUTE
        self.window = rng.choices([5, 1, 15], [76, 10, 14])[0] * MINUTE
        self.max_gap = rng.choice([60, 60, 30, 20]) * MINUTE
        self.data_start = self.start - rng.choice([0, 0, rng.randint(60, 75 * 60) * SECOND])
        if self.chance(0.08):
            self.data_start = self.start + rng.randint(60, 18 * 60) * SECOND
        self.data_end = self.end + rng.choice([0, rng.randint(60, 75 * 60) * SECOND])
        self.basis = rng.choices(["memory", "request", "max"], [60, 18, 22])[0]
        self.idle = rng.choices(["holders", "consumers", "platform"], [50, 28, 22])[0]
        self.weight = rng.choices(["memory", "compute", "max"], [50, 25, 25])[0]
        self.replicas = ["a", "b"] if self.chance(0.2) else [""]
        self.intervals = {
            "dcgm": rng.choice([15, 30, 30, 60]) * SECOND,
            "process": rng.choice([15, 30, 30, 45, 60]) * SECOND,
            "kube": rng.choice([15, 30, 30, 60]) * SECOND,
        }
        self.loss = rng.choice([0, 0.003, 0.01])
        self.blanks = rng.choice([0, 0, 0.002])
        self.holes_everywhere: list[tuple[int, int]] = []
        self.kube_holes: list[tuple[int, int]] = []
        self.down: dict[str, list[tuple[int, int]]] = {r: [] for r in self.replicas}
        self.machines: list[Machine] = []
        self.rules: list[dict[str, Any]] = []
        self.listed_teams: list[str] = []
        self.namespace_team: dict[str, list[tuple[int, str]]] = {}
        self.book: dict[str, Any] = {}
        self.overrides: list[dict[str, str]] = []
        self.scrape_cache: dict[tuple[str, str, str], list[int]] = {}

    # -- small helpers

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def trait(self, p: float, name: str) -> bool:
        hit = self.chance(p)
        if hit:
            self.traits.add(name)
        return hit

    def odd(self, a: int, b: int) -> int:
        """A whole second between a and b."""
        return a if b - a < 2 * SECOND else a + self.rng.randrange((b - a) // SECOND) * SECOND

    def number(self) -> int:
        self.counter += 1
        return self.counter

    def hole(self, a: int, b: int, *, long: bool) -> tuple[int, int]:
        """A silence between a and b, clearly shorter or longer than max_gap."""
        if long:
            length = self.max_gap + self.rng.randint(2 * self.window // SECOND + 120, 45 * 60) * SECOND
        else:
            length = self.rng.randint(60, max(120, (self.max_gap - 2 * self.window) // SECOND - 120)) * SECOND
        a += 6 * MINUTE  # the first samples are there (Q2)
        start = self.odd(a, max(a + SECOND, b - length))
        return start, start + length

    # -- the truth

    def draw(self) -> None:
        rng = self.rng
        if self.trait(0.12, "outage of everything"):
            self.holes_everywhere.append(self.hole(self.data_start, self.data_end, long=self.chance(0.35)))
        if not self.holes_everywhere and self.trait(0.15, "kube-state-metrics silent"):
            self.kube_holes.append(self.hole(self.data_start, self.data_end, long=self.chance(0.4)))
        if len(self.replicas) == 2:
            self.traits.add("two replicas")
            for i, replica in enumerate(self.replicas):
                third = (self.data_end - self.data_start) // 3
                a = self.odd(self.data_start + i * 2 * third, self.data_start + i * 2 * third + third // 2)
                self.down[replica].append((a, a + rng.randint(2, third // 2 // MINUTE) * MINUTE))
        for _ in range(rng.choice([1, 2, 2, 3, 4])):
            self.machines.append(self.machine())
        many = sum(m.count for m in self.machines) > 7
        if many and self.intervals["dcgm"] < 30 * SECOND:
            self.intervals["dcgm"] = 30 * SECOND
        for m in self.machines:
            self.gpus(m)
            self.holes(m)
            self.pods(m)
        self.ownership()
        self.prices()

    def machine(self) -> Machine:
        rng = self.rng
        number = len(self.machines)
        modes = (
            ["exclusive"] * 5
            + ["copies"] * 3
            + ["rows"] * 3
            + ["off"] * 2
            + ["mps"] * 2
            + ["mig"] * 4
            + ["none"] * 2
            + ["alone"]
        )
        mode = rng.choice(modes)
        if mode == "alone" and (len(self.replicas) == 2 or self.holes_everywhere):
            mode = "exclusive"
        card = rng.choice(sorted(LAYOUTS) if mode == "mig" else sorted(CARDS))
        count = rng.choice([1, 1, 2, 2, 3, 4])
        a, b = self.data_start, self.data_end
        spans = [(a, b)]
        providers = [rng.choice(["", f"aws:///us-east-1a/i-{self.seed:04x}{number:04x}"])]
        if number and self.trait(0.35, "a node comes or goes"):
            spans = [
                (
                    self.odd(a, self.start + (self.end - self.start) // 2) if self.chance(0.6) else a,
                    self.odd(self.end - (self.end - self.start) // 3, self.end) if self.chance(0.6) else b,
                )
            ]
            if mode not in ("mig", "alone") and self.trait(0.4, "a node comes again"):
                first, last = spans[0]
                long = self.chance(0.5)
                x, y = self.hole(first + 40 * MINUTE, last - 20 * MINUTE, long=long)
                if first + 30 * MINUTE < x and y < last - 15 * MINUTE and y - x > 2 * self.window:
                    spans = [(first, x), (y, last)]
                    providers.append(
                        rng.choice([providers[0], f"aws:///us-east-1a/i-{self.seed:04x}{number + 64:04x}"])
                    )
        spot = rng.choice(
            [
                {},
                {},
                {"label_karpenter_sh_capacity_type": rng.choice(["spot", "on-demand", "reserved"])},
                {"label_eks_amazonaws_com_capacity_type": rng.choice(["SPOT", "ON_DEMAND", "CAPACITY_BLOCK"])},
                {"label_cloud_google_com_gke_spot": "true"},
                {"label_cloud_google_com_gke_preemptible": "true"},
                {"label_kubernetes_azure_com_scalesetpriority": "spot"},
            ]
        )
        m = Machine(
            name=rng.choice(["gpu-", "node-", "ip-10-0-0-"]) + str(number + 1),
            type=f"g{count}.{card.split()[1].lower()}.{number}",
            region=rng.choice(["us-east-1", "eu-central-1"]),
            card=card,
            count=count,
            mode=mode,
            spans=spans,
            providers=providers,
            option=spot,
            labels={},
            requests=mode == "none" or self.chance(0.6),
        )
        self.traits.add("mode " + mode)
        if mode in ("copies", "rows", "off", "mps") or (mode == "none" and self.trait(0.5, "mode none, shared")):
            m.slots = rng.choice([2, 3, 4, 4, 8])
        needs_label = m.requests or mode == "off"
        if m.slots > 1 and (needs_label or self.chance(0.6)):
            m.labels["label_nvidia_com_gpu_replicas"] = str(m.slots)
            m.labels["label_nvidia_com_gpu_sharing_strategy"] = "mps" if mode == "mps" else "time-slicing"
            self.traits.add("replicas label")
        elif m.slots == 1 and self.chance(0.3):
            m.labels["label_nvidia_com_gpu_replicas"] = "1"
            m.labels["label_nvidia_com_gpu_sharing_strategy"] = "none"
        if mode == "mig":
            m.labels["label_nvidia_com_mig_strategy"] = rng.choice(["mixed", "mixed", "single"])
        m.has_process = mode == "alone" or not self.trait(0.18, "no process exporter")
        m.host_pid = not (mode == "rows" and self.trait(0.25, "pod rows without hostPID"))
        m.style = "exported" if self.trait(0.25, "exported labels") else "plain"
        if self.trait(0.1, "label scheme switches"):
            m.switch = self.odd(self.start, self.end)
        m.host_label = "hostname" if self.chance(0.2) else "Hostname"
        m.uuid_label = "uuid" if self.chance(0.1) else "UUID"
        m.idle_empty = m.style == "plain" and m.switch == ALWAYS and self.chance(0.15)
        m.parent_rows = mode == "mig" and self.trait(0.3, "parent rows under MIG")
        return m

    def uuid(self) -> str:
        r = self.rng
        a, b, c = r.randrange(16**8), r.randrange(16**4), r.randrange(16**12)
        return f"GPU-{a:08x}-{b:04x}-4000-8000-{c:012x}"

    def gpus(self, m: Machine) -> None:
        """A node's cards, MIG layouts, and the places that pods can have."""
        rng = self.rng
        for i, (a, b) in enumerate(m.spans):
            boot = min(a + rng.randint(20, 150) * SECOND, b) if a > self.data_start else a
            same = i and m.providers[0] and m.providers[0] == m.providers[-1]
            uuids = [g.uuid for g in m.gpus[: m.count]] if same else [self.uuid() for _ in range(m.count)]
            m.gpus += [Gpu(uuid, m.card, boot, b, n) for n, uuid in enumerate(uuids)]
        lone = len(m.spans) == 1 and m.count > 1 and not m.requests and m.mode not in ("mig", "alone")
        if lone and self.trait(0.45, "a GPU falls silent"):
            g = rng.choice(m.gpus)
            a, b = self.hole(g.start + 30 * MINUTE, g.end - 10 * MINUTE, long=self.chance(0.5))
            end = g.end
            g.end = min(a, g.end)
            if b < end - 10 * MINUTE and b - g.end > 2 * self.window:
                if self.trait(0.5, "a card is replaced"):
                    m.gpus.append(Gpu(self.uuid(), m.card, b, end, g.index))
                elif self.chance(0.7):
                    m.gpus.append(Gpu(g.uuid, m.card, b, end, g.index))
        total, reserved = CARDS[m.card]
        for g in m.gpus:
            if m.mode != "mig":
                m.places.append(Place(g, "", "", g.start, g.end, m.slots, total - reserved))
                continue
            changes = [g.start]
            if self.trait(0.45, "MIG layout changes"):
                at = self.odd(self.start + 20 * MINUTE, self.end - 20 * MINUTE)
                changes.append(at // self.window * self.window)
                if self.chance(0.3):
                    changes.append(changes[-1] + rng.randint(2, 8) * self.window)
            for n, change in enumerate(c for c in changes if g.start <= c < g.end):
                alike = m.labels["label_nvidia_com_mig_strategy"] == "single"
                fits = [x for x in LAYOUTS[m.card] if not alike or len({i.split(":")[0] for i in x.split()}) == 1]
                layout = rng.choice(fits).split()
                if len(layout) > 1 and self.chance(0.15):
                    layout.pop()
                instances = [(x.split(":")[1], x.split(":")[0]) for x in layout]
                if n and instances == g.layouts[-1][1]:
                    continue
                g.layouts.append((change, instances))
            for n, (change, instances) in enumerate(g.layouts):
                until = g.layouts[n + 1][0] if n + 1 < len(g.layouts) else g.end
                for instance, profile in instances:
                    size = self.instance_memory(m.card, profile)
                    m.places.append(Place(g, instance, profile, change, until, 1, size))

    @staticmethod
    def instance_memory(card: str, profile: str) -> int:
        of = 4 if "A30" in card else 8
        known = model.slices(card, profile)
        assert known is not None
        return CARDS[card][0] * int(known[1] * of) // of - 64 * of // 4

    def holes(self, m: Machine) -> None:
        a, b = m.spans[0][0], m.spans[-1][1]
        if m.mode == "alone":
            return
        if self.trait(0.35, "dcgm-exporter silent"):
            for _ in range(self.rng.choice([1, 1, 2])):
                long = self.trait(0.3, "dcgm-exporter silent for long")
                m.dcgm_holes.append(self.hole(a, b, long=long))
            if self.chance(0.4):
                m.process_holes += m.dcgm_holes
        times = [t for r in self.replicas for t in self.scrapes("dcgm", m.name, r) if not covers(m.dcgm_holes, t)]
        if not all(any(max(g.start, self.start) <= t < min(g.end, self.end) for t in times) for g in m.gpus):
            m.dcgm_holes.clear()  # each card is seen in the period
            m.process_holes.clear()
        if m.has_process and self.trait(0.35, "process exporter silent"):
            hole = self.hole(a, b, long=self.chance(0.4))
            margin = 3 * self.window
            down = [(x, y) for (_, x), (y, _) in pairwise(m.spans)]
            others = [*m.dcgm_holes, *self.holes_everywhere, *down]
            if all(hole[1] + margin < x or y + margin < hole[0] for x, y in others):
                m.process_holes.append(hole)

    def scrapes(self, exporter: str, node: str, replica: str) -> list[int]:
        """When an exporter on a node was read, by one replica."""
        key = (exporter, node, replica)
        if key not in self.scrape_cache:
            rng = random.Random(f"{self.seed} {key}")
            interval = self.intervals[exporter]
            phase = rng.randrange(interval // SECOND) * SECOND + (rng.randrange(1000) if rng.random() < 0.3 else 0)
            if rng.random() < 0.25:
                phase = 0
            first = -(-self.data_start // interval) * interval + phase
            holes = [*self.holes_everywhere, *self.down[replica], *(self.kube_holes if exporter == "kube" else ())]
            times = range(first, self.data_end, interval)
            self.scrape_cache[key] = [t for t in times if rng.random() >= self.loss and not covers(holes, t)]
        return self.scrape_cache[key]

    def kube_times(self) -> list[int]:
        return sorted({t for r in self.replicas for t in self.scrapes("kube", "", r)})

    def settle(self, run: Run) -> None:
        """When a pod shows on its devices: after it was listed, and not after it was last listed."""
        times = self.kube_times()
        i = bisect_left(times, run.bound)
        run.gpu_start = max(times[i] if i < len(times) else ALWAYS, run.bound) + self.rng.randint(1, 25) * SECOND
        edge = run.end // self.window * self.window
        here = [t for t in times if edge <= t < edge + self.window]
        run.gpu_end = run.end if not here or here[0] < run.end else edge
        run.named_until = run.gpu_end

    def pods(self, m: Machine) -> None:
        if m.mode == "alone":
            self.alone(m)
            return
        tries = len(m.places) * self.rng.randint(2, 4) + 2
        for _ in range(tries):
            a, b = self.rng.choice(m.spans)
            self.pod(m, a, b)
        if self.trait(0.25, "a guest"):
            self.guest(m)
        if self.trait(0.25, "a host process"):
            place = self.rng.choice(m.places)
            self.process(m, place, None, place.start, place.end, place.capacity // 8)
        if self.trait(0.25, "memory that nothing explains"):
            place = self.rng.choice(m.places)
            if place.capacity > 12000:
                self.process(m, place, None, place.start, place.end, place.capacity // 6, least=3000).visible = False
        if m.mode == "mps":
            self.mps(m)

    def alone(self, m: Machine) -> None:
        """A node without dcgm-exporter: a pod a GPU for all its life."""
        for place in m.places:
            run = self.run(m, place.start, place.end, [(place, [0])], created=place.start - HOUR)
            first = next((t for t in self.kube_times() if t >= place.start), ALWAYS)
            place.start = (first // self.window + 1) * self.window
            run.gpu_start, run.gpu_end = place.start, place.end
            if m.requests:
                self.request(m, run, 1)
            run.ending, run.listed, run.end = "deleted", ALWAYS, ALWAYS
            level = self.rng.randint(place.capacity // 10, place.capacity * 9 // 10) * MIB
            m.processes.append(Process(place, 1000 + self.number(), place.start, place.end, [(0, level)], run))

    def run(self, m: Machine, bound: int, end: int, places: list[tuple[Place, list[int]]], created: int) -> Run:
        rng = self.rng
        namespace = rng.choice(NAMESPACES)
        name = f"{rng.choice(['train', 'llm', 'nb', 'job', 'eval'])}-{self.number()}"
        team = rng.choice(TEAMS[:-1]) if self.chance(0.7) else ""
        if team == "red" and self.trait(0.08, "names that differ only in case"):
            team = "Red"
        teams = [(0, team)]
        if team and self.trait(0.12, "a pod is relabelled"):
            teams.append((self.odd(max(bound, self.start), max(end, self.start + MINUTE)), rng.choice(TEAMS[:-1])))
        run = Run(
            namespace, name, f"uid-{self.seed}-{self.counter}", m.name, created, bound, end,
            ending=rng.choice(["deleted", "deleted", "Succeeded", "Failed"]), listed=end, places=places, teams=teams,
            tier=rng.choice(["", "", "gold", "silver"]),
        )  # fmt: skip
        if run.ending != "deleted":
            run.listed = end + rng.choice([rng.randint(3, 40) * MINUTE, ALWAYS])
            self.traits.add("finished pods stay listed")
        m.runs.append(run)
        return run

    def pod(self, m: Machine, a: int, b: int) -> None:
        rng = self.rng
        if b - a < 4 * MINUTE:
            return
        long = self.chance(0.35)
        bound = a if long and self.chance(0.6) else self.odd(a, b - 2 * MINUTE)
        length = (
            ALWAYS
            if long
            else rng.choice([rng.randint(90, 600), rng.randint(600, 4000), rng.randint(3000, 12000)]) * SECOND
        )
        end = min(bound + length, b)
        stale = ""
        if end < b - 15 * MINUTE and self.chance(0.25):
            stale = "named" if self.chance(0.7) else "memory"
        if stale == "memory":
            end = end // self.window * self.window
            if end <= bound + MINUTE:
                return
        wanted = 1
        if m.slots == 1 and m.mode == "exclusive" and m.count > 1 and self.chance(0.2):
            wanted = 2
        stale_until = end + rng.randint(4, 35) * MINUTE if stale else end
        reserve = stale_until if stale == "memory" else end
        first, last = bound, reserve
        if m.slots > 1:  # slots are counted by windows, so that requests never exceed them in any window
            first, last = bound // self.window * self.window, -(-reserve // self.window) * self.window
        fits = [p for p in m.places if p.start <= bound and end <= p.end and p.free(first, last)]
        many = 1
        if m.slots > 2 and self.chance(0.2) and (m.mode in ("copies", "rows") or m.count == 1):
            many = 2
            fits = [p for p in fits if len(p.free(first, last)) >= many]
        if len({p.gpu.uuid for p in fits}) < wanted:
            return
        chosen = rng.sample(fits, wanted)
        if len({p.gpu.uuid for p in chosen}) < wanted:
            return
        places = [(p, rng.sample(p.free(first, last), many)) for p in chosen]
        for p, slots in places:
            p.taken += [(first, last, s) for s in slots]
        pending = rng.randint(20, 200) * SECOND if self.chance(0.15) else 0
        if bound > self.data_start and pending:
            self.traits.add("a pod is pending first")
        run = self.run(m, bound, end, places, created=bound - pending)
        if end >= b >= self.data_end:
            run.end, run.listed, run.ending = ALWAYS, ALWAYS, "deleted"
        self.reuse_name(m, run)
        if m.requests:
            self.request(m, run, wanted * many)
        self.settle(run)
        run.gpu_end = min(run.gpu_end, run.end, b)
        run.named_until = run.gpu_end
        if stale:
            self.traits.add("stale rows: " + stale)
            run.named_until = stale_until
        if run.gpu_start >= run.gpu_end:
            return
        for place, slots in places:
            until = stale_until if stale == "memory" and not covers(self.kube_holes, end) else run.gpu_end
            for _ in range(rng.choices([0, 1, 2], [18, 60, 22])[0]):
                most = place.capacity * len(slots) // place.slots
                process = self.process(m, place, run, run.gpu_start, until, most)
                process.visible = not self.trait(0.1, "a pod whose processes nobody sees")
                if stale == "memory":
                    process.end = until

    def reuse_name(self, m: Machine, run: Run) -> None:
        apart = max(3 * self.window, 6 * MINUTE)
        over = [r for r in m.runs if max(r.named_until, r.end) + apart < run.created]
        later = {(r.namespace, r.name) for r in m.runs if max(r.named_until, r.end) + apart >= run.created}
        old = [r for r in over if r.ending == "deleted" and (r.namespace, r.name) not in later]
        if old and self.trait(0.3, "a name is used again"):
            r = self.rng.choice(old)
            run.namespace, run.name = r.namespace, r.name

    def request(self, m: Machine, run: Run, count: int) -> None:
        resource = "nvidia_com_gpu"
        if m.mode == "mig" and m.labels["label_nvidia_com_mig_strategy"] == "mixed":
            resource = "nvidia_com_mig_" + run.places[0][0].profile.replace(".", "_")
        elif m.slots > 1 and int(run.uid.rsplit("-", 1)[1]) % 5 == 0:
            resource = "nvidia_com_gpu_shared"
        run.requests = {resource: count}
        run.init = self.chance(0.15)

    def guest(self, m: Machine) -> None:
        place = self.rng.choice(m.places)
        bound = self.odd(place.start, max(place.start + SECOND, place.end - 5 * MINUTE))
        run = self.run(m, bound, min(bound + self.rng.randint(5, 120) * MINUTE, place.end), [], created=bound)
        self.settle(run)
        if run.gpu_start < run.gpu_end:
            self.process(m, place, run, run.gpu_start, run.gpu_end, place.capacity // 10)

    def process(
        self, m: Machine, place: Place, run: Run | None, a: int, b: int, most: int, least: int = 200
    ) -> Process:
        rng = self.rng
        a, b = max(a, place.start), min(b, max(place.end, a))
        start = a if self.chance(0.7) else self.odd(a, a + (b - a) // 2)
        end = b if self.chance(0.75) else self.odd(start + (b - start) // 2, b)
        most = max(most * 9 // 10 // 2, least + 100)

        def level() -> int:
            return rng.randint(least, most) * MIB + rng.choice([0, rng.randrange(MIB)])

        if self.trait(0.03, "processes over capacity"):
            least, most = place.capacity * 8 // 10, place.capacity * 12 // 10
        levels = [(0, level())]
        levels += [(self.odd(start, end), level()) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
        p = Process(place, 1000 + self.number(), start, end, sorted(levels), run)
        m.processes.append(p)
        return p

    def mps(self, m: Machine) -> None:
        """The MPS server's process, under a system pod: small beside its clients', or all that is seen of them."""
        server = self.trait(0.5, "MPS: only the server is seen")
        if server:
            for p in m.processes:
                if p.pod is not None and p.pod.places:
                    p.visible = False
        for place in m.places:
            level = (place.capacity // 5 if server else 30) * MIB
            m.processes.append(
                Process(
                    place,
                    900 + self.number(),
                    place.start,
                    place.end,
                    [(0, level)],
                    None,
                    system="nvidia-mps-control-daemon-x7",
                )
            )

    # -- owners and prices

    def ownership(self) -> None:
        rng = self.rng
        for namespace in NAMESPACES:
            if self.chance(0.4):
                self.namespace_team[namespace] = [(0, rng.choice(TEAMS[:-1]))]
                if self.trait(0.05, "a namespace is relabelled"):
                    self.namespace_team[namespace].append((self.odd(self.start, self.end), rng.choice(TEAMS[:-1])))
        stamp = self.iso(self.odd(self.start, self.end))
        choices: list[dict[str, Any]] = [
            {"match": {"namespace": "research-*"}, "team": "research"},
            {"match": {"namespace": "shared-llm"}, "split": {"search": 60, "ads": 40}},
            {"match": {"namespace": "serving", "labels": {"tier": "gold"}}, "team": "premium"},
            {"match": {"namespace": "batch"}, "split": {"red": "33.3", "blue": "66.7"}, "from": stamp},
            {"match": {"namespace": "vision"}, "team": "vision ", "to": stamp},
            {"match": {"labels": {"tier": "silver"}}, "team": "silver", "from": "2026-11-01", "to": "2026-12-01"},
            {"match": {"namespace": "misc"}, "team": "past", "to": "2026-11-01"},
        ]
        if self.trait(0.55, "ownership rules"):
            self.rules = rng.sample(choices, rng.randint(1, 4))
        if self.trait(0.15, "listed teams"):
            self.listed_teams = ["red", "blue", "green", "research", "search", "ads"]
        orders = [["rules", "pod", "namespace"]] * 4 + [["pod", "namespace", "rules"], ["rules", "namespace", "pod"]]
        self.order = rng.choice(orders)

    def iso(self, t: int) -> str:
        return datetime.fromtimestamp(t / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def amount(self, low: int = 100, high: int = 4000) -> str:
        digits = self.rng.choice([2, 4, 7])
        return f"{self.rng.randint(low * 10**digits, high * 10**digits) / 10**digits / 100:.{digits}f}"

    def prices(self) -> None:
        rng = self.rng
        instances: dict[str, Any] = {}
        entries: list[dict[str, Any]] = []
        for m in self.machines:
            seen = max(sum(g.start <= t < g.end for g in m.gpus) for t in {g.start for g in m.gpus})
            facts: dict[str, Any] = {"gpus": m.count, "gpu_model": m.card, "gpu_memory_gib": CARDS[m.card][0] // 1024}
            plain = (
                not self.holes_everywhere
                and seen == m.count
                and not m.dcgm_holes
                and len(m.gpus) == m.count
                and m.mode != "alone"
            )
            if self.trait(0.12, "more GPUs in the book than report"):
                facts["gpus"] = m.count + 1
            elif plain and m.count > 1 and self.trait(0.12, "fewer GPUs in the book than report"):
                facts["gpus"] = m.count - 1
            elif plain and self.trait(0.1, "the number of GPUs is what is seen"):
                del facts["gpus"]
            elif self.trait(0.1, "the number of GPUs is a label"):
                del facts["gpus"]
                m.labels["label_nvidia_com_gpu_count"] = str(m.count)
            elif plain and m.count == 1 and self.trait(0.1, "a fraction of a GPU"):
                facts["gpus"] = 0.5
            labels = dict(m.option)
            option = model.purchase_option(labels) or "on-demand"
            if self.trait(0.1, "a node by override"):
                m.labels["no type"] = ""
                option = "owned"
                self.overrides.append(
                    {"match": m.name, "instance_type": m.type, "region": "dc1", "purchase_option": option}
                )
            instances[m.type] = facts
            entries += self.entries(m, option)
        entries.append({"instance_type": "m5.large", "per_hour": "0.096"})
        rng.shuffle(entries)
        self.book = {
            "currency": "USD", "source": "random", "as_of": "2026-11-01", "instances": instances, "prices": entries,
        }  # fmt: skip

    def entries(self, m: Machine, option: str) -> list[dict[str, Any]]:
        rng = self.rng
        kind = {"instance_type": m.type}
        found: list[dict[str, Any]] = []
        style = rng.choice(["option", "any", "region", "change", "node", "both"])
        if option == "owned" and self.trait(0.5, "a price per month"):
            return [{**kind, "purchase_option": option, "per_month": self.amount(100_000, 900_000)}]
        if style == "any":
            found.append({**kind, "per_hour": self.amount()})
        elif style == "both":
            found.append({**kind, "per_hour": self.amount()})
            found.append({**kind, "purchase_option": option, "per_hour": self.amount()})
        elif style == "region":
            region = "dc1" if option == "owned" else m.region
            found.append({**kind, "purchase_option": option, "per_hour": self.amount()})
            found.append({**kind, "region": region, "per_hour": self.amount()})
            found.append({**kind, "region": "mars-1", "per_hour": "999"})
            self.traits.add("a price by region")
        elif style == "change":
            at = self.odd(self.start, self.end)
            at = at // (15 * MINUTE) * 15 * MINUTE if self.chance(0.7) else at
            found.append(
                {**kind, "purchase_option": option, "per_hour": self.amount(), "from": "2026-01-01", "to": self.iso(at)}
            )
            found.append({**kind, "purchase_option": option, "per_hour": self.amount(), "from": self.iso(at)})
            self.traits.add("a price changes")
        elif style == "node":
            found.append({**kind, "per_hour": self.amount()})
            found.append({"node": m.name, "per_hour": self.amount()})
            self.traits.add("a price by node")
        else:
            found.append({**kind, "purchase_option": option, "per_hour": self.amount()})
        others = {"spot", "on-demand"} - {option} if style == "option" else set()
        found += [{**kind, "purchase_option": x, "per_hour": self.amount()} for x in sorted(others)]
        return found

    # -- what the exporters show

    def show(self) -> str:
        out = Writer()
        for replica in self.replicas:
            tag = {"prometheus_replica": replica} if replica else {}
            for t in self.scrapes("kube", "", replica):
                self.kube(out, t, tag)
            for m in self.machines:
                if m.mode != "alone":
                    previous: dict[str, set[str]] = {}
                    for t in self.scrapes("dcgm", m.name, replica):
                        if m.up(t) and not covers(m.dcgm_holes, t):
                            self.dcgm(out, m, t, tag, previous)
                if m.has_process:
                    seen: set[int] = set()
                    for t in self.scrapes("process", m.name, replica):
                        if m.up(t) and not covers(m.process_holes, t):
                            self.processes(out, m, t, tag, seen)
        return out.text()

    def kube(self, out: Writer, t: int, tag: dict[str, str]) -> None:
        for m in self.machines:
            for (a, b), provider in zip(m.spans, [*m.providers, m.providers[-1]], strict=False):
                if a <= t < b:
                    out.add("kube_node_info", {"node": m.name, "provider_id": provider, **tag}, t, "1")
                    labels = {"node": m.name}
                    if "no type" not in m.labels:
                        labels["label_node_kubernetes_io_instance_type"] = m.type
                        labels["label_topology_kubernetes_io_region"] = m.region
                        labels |= m.option
                    labels |= {k: v for k, v in m.labels.items() if k != "no type"}
                    out.add("kube_node_labels", {**labels, **tag}, t, "1")
            for run in m.runs:
                if run.created <= t < run.listed:
                    self.kube_pod(out, run, t, tag)
        out.add("kube_node_info", {"node": "cpu-1", "provider_id": "", **tag}, t, "1")
        out.add(
            "kube_node_labels", {"node": "cpu-1", "label_node_kubernetes_io_instance_type": "m5.large", **tag}, t, "1"
        )
        for namespace, teams in self.namespace_team.items():
            team = [x for at, x in teams if at <= t][-1]
            out.add("kube_namespace_labels", {"namespace": namespace, "label_team": team, **tag}, t, "1")

    def kube_pod(self, out: Writer, run: Run, t: int, tag: dict[str, str]) -> None:
        key = {"namespace": run.namespace, "pod": run.name, "uid": run.uid}
        node = run.node if t >= run.bound else ""
        owner = {"created_by_kind": "ReplicaSet", "created_by_name": run.name.rsplit("-", 1)[0]}
        out.add("kube_pod_info", {**key, "node": node, **owner, **tag}, t, "1")
        phase = "Pending" if t < run.bound else "Running" if t < run.end else run.ending
        for each in ("Pending", "Running", "Succeeded", "Failed"):
            if each in ("Running", "Succeeded") or each == run.ending:
                out.add("kube_pod_status_phase", {**key, "phase": each, **tag}, t, str(int(each == phase)))
        labels = {}
        team = [x for at, x in run.teams if at <= t][-1]
        if team:
            labels["label_team"] = team
        if run.tier:
            labels["label_tier"] = run.tier
        if run.tier == "silver":
            labels["label_note"] = 'a \\"quoted\\" \\\\ note'
        out.add("kube_pod_labels", {**key, **labels, **tag}, t, "1")
        for resource, count in run.requests.items():
            what = {"node": node, "resource": resource, "unit": "integer"}
            name = "kube_pod_container_resource_requests"
            split = [("main", count)] if count == 1 else [("main", 1), ("side", count - 1)]
            for container, n in split:
                out.add(name, {**key, "container": container, **what, **tag}, t, str(n))
            if run.init:
                name = "kube_pod_init_container_resource_requests"
                out.add(name, {**key, "container": "setup", **what, **tag}, t, "1")

    def dcgm(self, out: Writer, m: Machine, t: int, tag: dict[str, str], previous: dict[str, set[str]]) -> None:
        for g in m.gpus:
            if not g.start <= t < g.end:
                continue
            base = {
                "gpu": str(g.index),
                m.uuid_label: g.uuid,
                "device": f"nvidia{g.index}",
                "modelName": g.card,
                m.host_label: m.name,
            }
            total, reserved = CARDS[g.card]
            if m.parent_rows:
                for metric, value in (("USED", 900), ("FREE", total - reserved - 900), ("RESERVED", reserved)):
                    out.add(f"DCGM_FI_DEV_FB_{metric}", self.workload(m, base, None, t) | tag, t, str(value))
            for instance, profile in g.instances(t):
                labels = dict(base)
                if instance:
                    labels |= {"GPU_I_PROFILE": profile, "GPU_I_ID": instance}
                    total, reserved = self.instance_memory(g.card, profile), 0
                self.device(out, m, g, instance, labels, total, reserved, t, tag, previous)

    def workload(
        self, m: Machine, base: dict[str, str], run: Run | None, t: int, slot: str = "", *, uid: bool = False
    ) -> dict[str, str]:
        exported = (m.style == "exported") != (t >= m.switch)
        labels = dict(base)
        if exported:
            labels |= {"namespace": "gpu-monitoring", "pod": f"dcgm-exporter-{m.name}", "container": "exporter"}
        prefix = "exported_" if exported else ""
        if run is not None:
            labels |= {prefix + "namespace": run.namespace, prefix + "pod": run.name, prefix + "container": "main"}
            if uid:
                labels["pod_uid"] = run.uid
            if slot:
                labels["vgpu"] = slot
        elif m.idle_empty:
            labels |= {"namespace": "", "pod": "", "container": ""}
        return labels

    def device(
        self, out: Writer, m: Machine, g: Gpu, instance: str, base: dict[str, str], total: int, reserved: int, t: int,
        tag: dict[str, str], previous: dict[str, set[str]],
    ) -> None:  # fmt: skip
        here = [p for p in m.processes if p.place.gpu is g and p.place.instance == instance and p.start <= t < p.end]
        here = [p for p in here if p.place.start <= t < p.place.end]
        used = sum(p.memory(t) for p in here) // MIB + (17 + 13 * len(here) if here else 0)
        used = min(used, total - reserved)
        named: list[tuple[Run, list[int]]] = []
        for run in m.runs:
            for place, slots in run.places:
                here_now = place.gpu is g and place.instance == instance and place.start <= t < place.end
                if here_now and run.gpu_start <= t < run.named_until:
                    named.append((run, slots))
        if m.slots == 1 and len(named) > 1:
            named = [x for x in named if t < x[0].gpu_end][:1] or named[-1:]
        if m.mode == "none":
            named = []
        if m.mode == "off" and named:
            named = [named[(t // (4 * MINUTE) * 7919 + g.index) % len(named)]]
        slotted = m.mode in ("copies", "rows", "mps")
        uid = m.mode == "rows"
        copies: list[dict[str, str]] = []
        rows: list[tuple[dict[str, str], int]] = []
        for run, slots in named:
            mine = sum(p.memory(t) for p in here if p.pod is run) // MIB if m.host_pid else 0
            for slot in slots if slotted else [0]:
                name = f"{slot:02d}" if slotted else ""
                labels = self.workload(m, base, run, t, name, uid=uid)
                copies.append(labels)
                rows.append((labels, mine))
        copies = copies or [self.workload(m, base, None, t)]
        metrics = {"USED": used, "FREE": total - reserved - used, "RESERVED": reserved}
        key = g.uuid + "/" + instance
        now = {str(c) for c in copies}
        steady = previous.get(key) == now
        previous[key] = now
        for metric, value in metrics.items():
            text = str(value)
            blanked = steady and metric != "RESERVED" and self.chance(self.blanks)
            if blanked:
                self.traits.add("blanks")
                text = self.rng.choice(DCGM_BLANKS)
            if metric == "USED" and m.mode == "rows" and rows:
                out.add("DCGM_FI_DEV_FB_USED", self.workload(m, base, None, t) | tag, t, text)
                for labels, mine in rows:
                    out.add("DCGM_FI_DEV_FB_USED", labels | tag, t, text if blanked else str(mine))
            else:
                for labels in copies:
                    out.add(f"DCGM_FI_DEV_FB_{metric}", labels | tag, t, text)

    def processes(self, out: Writer, m: Machine, t: int, tag: dict[str, str], seen: set[int]) -> None:
        for p in m.processes:
            g = p.place.gpu
            if not (p.visible and p.start <= t < p.end and g.start <= t < g.end and p.place.start <= t < p.place.end):
                continue
            labels = {"UUID": g.uuid, "Hostname": m.name, "pid": str(p.pid)}
            if p.place.instance:
                labels["GPU_I_ID"] = p.place.instance
            if p.system:
                labels |= {"namespace": "gpu-operator", "pod": p.system, "container": "mps", "pod_uid": "mps-uid"}
            elif p.pod is not None:
                labels |= {"namespace": p.pod.namespace, "pod": p.pod.name, "container": "main", "pod_uid": p.pod.uid}
            value = str(p.memory(t))
            if (p.pid in seen or self.chance(0.1)) and self.chance(self.blanks):
                self.traits.add("blanks")
                value = self.rng.choice(PROCESS_BLANKS)
            seen.add(p.pid)
            out.add("gpu_process_memory_used_bytes", labels | tag, t, value)

    # -- the files

    def config(self) -> dict[str, Any]:
        source = {"openmetrics": "metrics.om.gz"}
        if len(self.replicas) == 2:
            source["replica_label"] = "prometheus_replica"
        config: dict[str, Any] = {
            "cluster": "test",
            "currency": "USD",
            "timezone": "UTC",
            "window": f"{self.window // MINUTE}m",
            "max_gap": f"{self.max_gap // MINUTE}m",
            "store": "./out",
            "source": source,
            "exporters": "auto",
            "allocation": {"basis": self.basis, "idle": self.idle, "shared": "platform"},
            "mig": {"weight": self.weight},
            "ownership": {
                "order": self.order, "team_label": "team", "default": "unowned", "platform": "platform",
                "rules": self.rules,
            },
            "pricing": {"books": ["prices.yaml"]},
        }  # fmt: skip
        if self.listed_teams:
            config["teams"] = {t: {"cost_center": str(i)} for i, t in enumerate(self.listed_teams)}
        if self.overrides:
            config["nodes"] = self.overrides
        return config

    def files(self) -> dict[str, bytes]:
        self.draw()
        text = self.show()
        config = self.config()
        dump = {
            "chargeback.yaml": yaml.safe_dump(config, sort_keys=False),
            "prices.yaml": yaml.safe_dump(self.book, sort_keys=False),
        }
        # Read back what was written, as anybody else would.
        config, book = (yaml.safe_load(dump[name]) for name in ("chargeback.yaml", "prices.yaml"))
        found, node_cost = model.charges(text, config, book, self.start, self.end)
        period = f"{self.iso(self.start)}/{self.iso(self.end)}\n"
        total = sum((cost for cost, _ in found.values()), Fraction())
        assert total == node_cost
        about = "".join(f"- {t}\n" for t in sorted(self.traits))
        how = f"basis {self.basis}, idle {self.idle}, MIG weight {self.weight}"
        how += f", window {config['window']}, max_gap {config['max_gap']}"
        scrapes = ", ".join(f"{k} {v // SECOND} s" for k, v in self.intervals.items())
        readme = f"# Seed {self.seed}\n\n{how}.\nScrapes: {scrapes}; lost: {self.loss}.\n\n{about}"
        return {
            "metrics.om.gz": gzip.compress(text.encode(), mtime=0),
            **{name: content.encode() for name, content in dump.items()},
            "period": period.encode(),
            "expected.csv": model.expected_csv(found, node_cost).encode(),
            "README.md": readme.encode(),
        }


def cluster(seed: int) -> dict[str, bytes]:
    """A case's files, by name."""
    return Cluster(seed).files()


def main(arguments: list[str]) -> int:
    folder, first, last = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    for seed in range(first, last + 1):
        target = folder / f"seed-{seed:04d}"
        target.mkdir(parents=True, exist_ok=True)
        for name, content in cluster(seed).items():
            (target / name).write_bytes(content)
        print(target, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
