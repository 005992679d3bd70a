"""What the doctor found, as facts, and the notes that follow from them."""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Note:
    """One thing to know: a code, a sentence, and the change that would cure it ("" where there is none)."""

    code: str
    message: str
    change: str = ""


@dataclass(frozen=True)
class Server:
    """What answers, and since when it has samples of what is read; `held_days` up to now."""

    kind: str
    version: str
    address: str
    oldest: str | None
    held_days: float | None


@dataclass(frozen=True)
class Looked:
    """The span that was looked at; `place` is `source` or, where that has no more of the period, `store`."""

    start: str
    end: str
    place: str
    in_period: bool


@dataclass(frozen=True)
class Scrape:
    """How often an exporter is scraped: the most frequent interval by node, the commonest of these, and the others."""

    exporter: str
    seconds: float
    nodes: int
    others: dict[str, float]


@dataclass(frozen=True)
class Exporter:
    """An exporter that was found: its metrics, what of a profile's roles it lacks, and how much there is of it."""

    name: str
    metrics: tuple[str, ...]
    missing: tuple[str, ...]
    nodes: int
    gpus: int
    devices: int
    series: int


@dataclass(frozen=True)
class Honouring:
    """How series name their pod: `renamed` in `exported_pod`, `plain` in `pod`, `none` not at all."""

    exporter: str
    series: int
    renamed: int
    plain: int
    none: int


@dataclass(frozen=True)
class MemoryByPod:
    """How memory by pod can be had. `how`: exact, estimated, impossible, unknown; `devices`: how many go which way.

    `measured`: a series names the pod; `one-pod`: all is the only pod's; `slots`: several pods, no data, divided by
    slots; `pid-only`: the same, though an exporter shows processes without pods; `request`: no series names a pod, a
    request does; `free`: nobody's.
    """

    how: str
    why: str
    exporters: tuple[str, ...]
    devices: dict[str, int]
    change: str


@dataclass(frozen=True)
class Repeated:
    """Rows of a device that repeat its value: `percent` is what they add up to."""

    device: str
    metric: str
    pods: int
    rows: int
    percent: int


@dataclass(frozen=True)
class Share:
    """How many of some things have something, and a few of those that do not (of many pods, their namespaces)."""

    what: str
    have: int
    of: int
    without: tuple[str, ...]


@dataclass(frozen=True)
class MissingPrice:
    """A key without a price: a node (without a type), or a type with its region and purchase option."""

    node: str
    instance_type: str
    region: str
    purchase_option: str
    nodes: tuple[str, ...]
    at: str


@dataclass(frozen=True)
class GpuCount:
    """A node that reports fewer GPUs, or more, than its type has."""

    node: str
    instance_type: str
    reports: int
    has: int


@dataclass(frozen=True)
class Replicas:
    """The label that tells replicas apart, if configured, with its values; labels of series that are there twice."""

    label: str
    values: tuple[str, ...]
    doubled_series: int
    differ_in: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """What the store has. Days and months as ranges `FIRST/LAST`, or one alone."""

    since: str | None
    collected_days: int
    period_days: int
    period_collected: int
    days_never_collected: tuple[str, ...]
    days_lost: tuple[str, ...]
    months_reported: tuple[str, ...]
    months_as_draft: tuple[str, ...]
    months_never_reported: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """One cluster as the doctor found it. `blocking` is empty where the period could be billed now."""

    cluster: str
    period: str
    start: str
    end: str
    server: Server
    looked: Looked
    scrapes: tuple[Scrape, ...]
    exporters: tuple[Exporter, ...]
    not_found: tuple[str, ...]
    memory_by_pod: MemoryByPod
    repeated: tuple[Repeated, ...]
    honouring: tuple[Honouring, ...]
    shares: tuple[Share, ...]
    missing_prices: tuple[MissingPrice, ...]
    gpu_counts: tuple[GpuCount, ...]
    replicas: Replicas
    history: History
    blocking: tuple[Note, ...]
    warnings: tuple[Note, ...]
    hints: tuple[Note, ...]

    @property
    def ready(self) -> bool:
        """Whether the period could be billed now."""
        return not self.blocking


@dataclass
class Notes:
    """Gathers notes while facts are worked out."""

    blocking: set[Note] = field(default_factory=set)
    warnings: set[Note] = field(default_factory=set)
    hints: set[Note] = field(default_factory=set)

    def block(self, code: str, message: str, change: str = "") -> None:
        """The period cannot be billed."""
        self.blocking.add(Note(code, message, change))

    def warn(self, code: str, message: str, change: str = "") -> None:
        """It can, but look at this first."""
        self.warnings.add(Note(code, message, change))

    def hint(self, code: str, message: str, change: str = "") -> None:
        """Handled as it is; would be better otherwise."""
        self.hints.add(Note(code, message, change))


def some(names: Collection[str], most: int = 4) -> str:
    """A few names, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def counted(number: int, what: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
