"""What happens in the example cluster in October 2026: its nodes, its pods, and what goes wrong.

Some 20 GPUs, about 15 % active. What happens once is in `STORY`; this goes on all month:

train-1  8 A100, exclusive: research trains on four, fine-tunes on two on working days; a detector; a notebook
infer-1  4 L4, time-sliced in four slots each: small services of search, ads and support
work-1   4 A10G, exclusive: a notebook; a CronJob from 01:00, whose finished pod stays listed, and named by
         dcgm-exporter, until 07:30; somebody's experiment; a card that nobody asks for
llm-1    1 H100: a language model of two teams, 60 : 40
lab-1    1 A100 of their own in MIG instances: one has no user, and one memory slice is in none
spot-…   8 A100 on spot, four times for a day or two

Times are ms since the epoch, UTC.
"""

import uuid
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

import numpy as np

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
START = 1_790_812_800_000  # 2026-10-01T00:00Z, a Thursday
END = START + 31 * DAY
FIRST, LAST = START - HOUR, END + HOUR  # samples are made for this much


def at(text: str) -> int:
    """`"05 09:40"`: that day and time of the month."""
    return START + (int(text[:2]) - 1) * DAY + int(text[3:5]) * HOUR + int(text[6:8]) * MINUTE


@dataclass(frozen=True)
class Event:
    """Something to find again in the bill: from when to when, on which node, what."""

    begin: str
    finish: str
    node: str
    what: str

    @property
    def start(self) -> int:
        return at(self.begin)

    @property
    def end(self) -> int:
        return at(self.finish)


# fmt: off
STORY = {
    "notebook":    Event("05 09:40", "26 09:40", "train-1", "a forgotten notebook holds an A100: 1 GiB, no activity"),
    "owner":       Event("15 00:00", "15 00:00", "train-1", "vision/detector goes from team vision to robotics"),
    "recreated":   Event("12 08:12", "12 08:16", "train-1", "research/pretrain-0 comes back: same name, new uid"),
    "blanks":      Event("07 03:10", "07 03:13", "train-1", "the driver answers \"not available\" 3 times (GPU 2)"),
    "rollout":     Event("13 14:05", "13 14:15", "infer-1", "search/ranker is rolled out: a new ReplicaSet"),
    "short-gap":   Event("14 10:20", "14 11:00", "infer-1", "dcgm-exporter is silent for 40 min, processes go on"),
    "long-gap":    Event("21 13:00", "21 16:00", "work-1", "both GPU exporters are silent for 3 h"),
    "unowned":     Event("08 13:20", "22 16:45", "work-1", "sandbox/tryout runs; nothing says whose it is"),
    "host":        Event("20 11:00", "22 11:00", "work-1", "a process without a pod has 5 GiB of a free GPU (GPU 3)"),
    "spot-1":      Event("02 18:30", "04 07:12", "spot-4kq2z", "eight A100 on spot for research; then taken away"),
    "spot-2":      Event("09 19:05", "11 03:40", "spot-9tx7m", "again; the sweep is done an hour before the node goes"),
    "spot-3":      Event("15 20:10", "17 09:25", "spot-c2w8r", "again, across a change of the spot price; taken away"),
    "spot-4":      Event("24 17:30", "26 02:15", "spot-hf5n6", "again; done an hour before"),
    "spot-price":  Event("16 00:00", "16 00:00", "spot-c2w8r", "the spot price of p4de.24xlarge rises"),
}
# fmt: on

NAMESPACES = {  # namespace -> its team label; "" where it has none
    "research": "",
    "vision": "",
    "notebooks": "",
    "search": "",
    "ads": "",
    "support": "support",
    "analytics": "data",
    "shared-llm": "",
    "sandbox": "",
}


@dataclass(frozen=True)
class Card:
    """A GPU model: its name, memory and reserved memory in MiB."""

    model: str
    total: int
    reserved: int


A100, H100 = Card("NVIDIA A100-SXM4-80GB", 81920, 640), Card("NVIDIA H100 80GB HBM3", 81559, 551)
A10G, L4 = Card("NVIDIA A10G", 23028, 512), Card("NVIDIA L4", 23034, 500)
MIG_CAPACITY = {"3g.40gb": 40192, "2g.20gb": 19968, "1g.10gb": 9728}  # MiB of an instance on an A100 80 GB


@dataclass(frozen=True)
class Device:
    """A GPU or MIG instance: its place on the node, capacity and reserved memory in MiB."""

    gpu: int
    uuid: str
    model: str
    total: int
    reserved: int
    instance: str = ""
    profile: str = ""


@dataclass(frozen=True)
class Node:
    name: str
    instance_type: str
    card: Card
    gpus: int
    option: Literal["on-demand", "spot", "owned"] = "on-demand"
    zone: str = "us-east-1a"
    start: int = FIRST
    end: int = LAST
    replicas: int = 1
    mig: tuple[tuple[str, str], ...] = ()  # (GPU instance id, profile) on every GPU

    @property
    def region(self) -> str:
        return self.zone.rstrip("abc").rstrip("-")

    @property
    def provider_id(self) -> str:
        return "" if self.option == "owned" else f"aws:///{self.zone}/i-0{uuid_of(self.name).replace('-', '')[:16]}"

    @property
    def devices(self) -> list[Device]:
        found = []
        for gpu in range(self.gpus):
            name = f"GPU-{uuid_of(f'{self.name}/{gpu}')}"
            found += [Device(gpu, name, self.card.model, MIG_CAPACITY[p], 0, i, p) for i, p in self.mig] or [
                Device(gpu, name, self.card.model, self.card.total, self.card.reserved)
            ]
        return found


Load = Literal["train", "serve", "notebook", "batch", "none"]  # what samples.py knows how to draw


@dataclass(frozen=True)
class Pod:
    """A pod that holds devices of a node: `places` are (device, slot) there, memory is for each of them.

    It is created at `queued` (`start` where it need not wait), bound at `start`, over at `finished` with `outcome`
    if it ever is, and no longer listed from `end` on.
    """

    namespace: str
    name: str
    node: str
    places: tuple[tuple[int, int], ...]
    owner: tuple[str, str]
    gib: float
    load: Load
    peak: float  # activity when it is busiest
    start: int = FIRST
    end: int = LAST
    queued: int | None = None
    finished: int | None = None
    outcome: Literal["", "Succeeded", "Failed"] = ""
    labels: dict[str, str] = field(default_factory=dict)
    relabelled: tuple[int, dict[str, str]] | None = None  # from then on it has these labels
    resource: str = "nvidia_com_gpu"
    processes: int = 1

    @property
    def created(self) -> int:
        return self.start if self.queued is None else self.queued

    @property
    def stopped(self) -> int:
        return self.end if self.finished is None else self.finished

    @property
    def made_by(self) -> tuple[str, str]:
        """Kind and name of its owner's owner; empty where there is none."""
        kind = {"ReplicaSet": "Deployment", "Job": "CronJob" if self.namespace == "analytics" else ""}
        found = kind.get(self.owner[0], "")
        return (found, self.owner[1].rpartition("-")[0]) if found else ("", "")

    @property
    def uid(self) -> str:
        return uuid_of(f"{self.namespace}/{self.name}/{self.created}")


@dataclass(frozen=True)
class HostProcess:
    """A process that runs outside of any pod."""

    node: str
    device: int
    start: int
    end: int
    gib: float


@dataclass(frozen=True)
class Gap:
    """Exporters of a node that are silent for a while."""

    node: str
    exporters: tuple[Literal["dcgm", "process"], ...]
    start: int
    end: int


def uuid_of(text: str) -> str:
    """A UUID that is always the same for `text`."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"https://example.org/{text}"))


SPOT = [STORY[f"spot-{i}"] for i in range(1, 5)]
NODES = [
    Node("train-1", "p4de.24xlarge", A100, 8),
    Node("infer-1", "g6.12xlarge", L4, 4, replicas=4),
    Node("work-1", "g5.12xlarge", A10G, 4, zone="us-east-1b"),
    Node("llm-1", "p5.4xlarge", H100, 1),
    Node("lab-1", "lab-a100", A100, 1, "owned", "dc1-a", mig=(("1", "3g.40gb"), ("5", "2g.20gb"), ("13", "1g.10gb"))),
    *(Node(e.node, "p4de.24xlarge", A100, 8, "spot", "us-east-1b", e.start, e.end) for e in SPOT),
]
HOST_PROCESSES = [HostProcess("work-1", 3, STORY["host"].start, STORY["host"].end, 5.0)]
GAPS = [
    Gap("infer-1", ("dcgm",), STORY["short-gap"].start, STORY["short-gap"].end),
    Gap("work-1", ("dcgm", "process"), STORY["long-gap"].start, STORY["long-gap"].end),
]
BLANK_DEVICE = ("train-1", 2)


def pods(rng: np.random.Generator) -> list[Pod]:
    """Every pod of the month that asked for a GPU."""
    return [*_standing(), *_services(), *_finetuning(rng), *_nightly(rng), *_sweeps(rng)]


TRAINING = {"team": "research", "project": "atlas", "workload_type": "training"}
WEB, LIDAR = {"project": "web"}, {"project": "lidar"}


def _standing() -> list[Pod]:
    """Pods that are there for long, each with its devices to itself."""
    four, lost, lena, tryout = [0, 1, 2, 3], STORY["recreated"], STORY["notebook"], STORY["unowned"]
    vision, robotics = LIDAR | {"team": "vision"}, (STORY["owner"].start, LIDAR | {"team": "robotics"})
    big, medium = "nvidia_com_mig_3g_40gb", "nvidia_com_mig_2g_20gb"
    detector = "ReplicaSet/detector-7f6b9c8d54"
    return [
        _pod("research", "StatefulSet/pretrain", "train-1", four, 58, "train", 0.8, TRAINING, end=lost.start),
        _pod("research", "StatefulSet/pretrain", "train-1", four, 58, "train", 0.8, TRAINING, start=lost.end),
        _pod("vision", detector, "train-1", [7], 22, "notebook", 0.7, vision, relabelled=robotics),
        _pod(
            "notebooks", "StatefulSet/nb-lena", "train-1", [6], 1, "none", 0, {"team": "vision"},
            start=lena.start, end=lena.end,
        ),
        _pod("notebooks", "StatefulSet/nb-noor", "work-1", [0], 6, "notebook", 0.5, {"team": "vision"}),
        _pod(
            "sandbox", "ReplicaSet/tryout-5d7c8b9f66", "work-1", [2], 9, "notebook", 0.4,
            start=tryout.start, end=tryout.end,
        ),
        _pod("shared-llm", "ReplicaSet/llm-server-6c7d9b8f54", "llm-1", [0], 61, "serve", 0.45),
        _pod("support", "ReplicaSet/answers-75d8c6b9f4", "lab-1", [0], 24, "serve", 0.3, resource=big),
        _pod("analytics", "ReplicaSet/report-llm-59c7b8d6f5", "lab-1", [1], 7.5, "serve", 0.15, resource=medium),
    ]  # fmt: skip


def _services() -> list[Pod]:
    """Inference services of three teams on the time-sliced node: one slot of a GPU for each pod."""
    search, ads = WEB | {"team": "search"}, WEB | {"team": "ads"}
    old, new, start = "ReplicaSet/ranker-6d5f7c9b48", "ReplicaSet/ranker-7b9c4d6f55", STORY["rollout"].start
    found = []
    for gpu in range(3):  # the rollout: one new pod every 5 min, and the old one beside it goes 3 min later
        step = start + gpu * 5 * MINUTE
        found += [
            _pod("search", old, "infer-1", [gpu], 5, "serve", 0.22, search, slot=0, end=step + 3 * MINUTE),
            _pod("search", new, "infer-1", [gpu], 5.5, "serve", 0.22, search, slot=2, start=step),
        ]
    return [
        *found,
        _pod("ads", "ReplicaSet/bidder-5c8d9f7b66", "infer-1", [0], 3.5, "serve", 0.2, ads, slot=1),
        _pod("ads", "ReplicaSet/bidder-5c8d9f7b66", "infer-1", [1], 3.5, "serve", 0.2, ads, slot=1),
        _pod("support", "ReplicaSet/transcribe-6f9b8d7c54", "infer-1", [2], 7, "serve", 0.25, slot=1, processes=2),
        _pod("ads", "ReplicaSet/creative-84b6d5c7f9", "infer-1", [3], 8, "serve", 0.12, ads, slot=0),
    ]


def _finetuning(rng: np.random.Generator) -> list[Pod]:
    """A Job with two GPUs on every working day; its pod stays listed for two hours."""
    found = []
    for day in (d for d in range(1, 32) if date(2026, 10, d).weekday() < 5):
        start = at(f"{day:02} 08:50") + int(rng.integers(0, 60)) * MINUTE
        done = start + int(rng.integers(280, 520)) * MINUTE
        found.append(
            _pod(
                "research", f"Job/finetune-{day:02}", "train-1", [4, 5], float(rng.integers(24, 48)), "batch", 0.55,
                TRAINING | {"project": "tuning"},
                start=start, finished=done, outcome="Succeeded", end=done + 2 * HOUR,
            )
        )  # fmt: skip
    return found


def _nightly(rng: np.random.Generator) -> list[Pod]:
    """The CronJob's pod of each night: a new Job and uid, over after two or three hours, listed until 07:30."""
    found = []
    for day in range(1, 32):
        start, end = at(f"{day:02} 01:00"), at(f"{day:02} 07:30")
        done = start + int(rng.integers(130, 190)) * MINUTE
        found.append(
            _pod(
                "analytics", f"Job/embed-{start // MINUTE}", "work-1", [1], 17, "batch", 0.75,
                start=start, finished=done, outcome="Succeeded", end=end,
            )
        )  # fmt: skip
    return found


def _sweeps(rng: np.random.Generator) -> list[Pod]:
    """Eight pods for each life of the spot node: they wait for it, and end with it or an hour before."""
    found = []
    for life, event in enumerate(SPOT, 1):
        taken = life in (1, 3)
        for gpu in range(8):
            queued = event.start - int(rng.integers(12, 25)) * MINUTE
            found.append(
                _pod(
                    "research", f"Job/sweep-{life}", event.node, [gpu], float(rng.integers(30, 70)), "batch", 0.7,
                    TRAINING | {"project": "sweep"}, queued=queued, start=event.start + 3 * MINUTE,
                    finished=event.end - (0 if taken else HOUR), outcome="Failed" if taken else "Succeeded",
                    end=event.end + HOUR,
                )
            )  # fmt: skip
    return found


def _pod(
    namespace: str, owner: str, node: str, devices: list[int], gib: float, load: Load, peak: float,
    labels: dict[str, str] | None = None, *, slot: int = 0, **more: Any,
) -> Pod:  # fmt: skip
    """A pod, named after its owner `KIND/NAME` as Kubernetes does it; `more` are further fields of `Pod`."""
    kind, _, made = owner.partition("/")
    name = f"{made}-0" if kind == "StatefulSet" else f"{made}-{uuid_of(f'{namespace}/{owner}/{devices}')[:5]}"
    places = tuple((device, slot) for device in devices)
    return Pod(namespace, name, node, places, (kind, made), gib, load, peak, labels=labels or {}, **more)
