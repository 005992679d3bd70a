"""The configuration: one YAML file read into frozen models; what is wrong with it is said with the key's path."""

import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from chargeback.documents import Origin, parse, read_yaml
from chargeback.period import duration_ms, zone_of

Duration = Annotated[int, BeforeValidator(duration_ms)]
"""A length of time, written `5m`, `1h`, `300s`; held in ms."""


def _instant(value: Any) -> Any:
    """Text as a date where it is one to the letter, else as a time; pydantic alone would take midnight for a date."""
    if not isinstance(value, str):
        return value
    return date.fromisoformat(value) if len(value.strip()) == 10 else datetime.fromisoformat(value.strip())


Instant = Annotated[date | datetime, BeforeValidator(_instant)]
"""A date (its midnight in the configured time zone, W3) or a time."""
PurchaseOption = Literal["on-demand", "spot", "reserved", "owned"]


class Model(BaseModel):
    """Frozen, and closed: a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BasicAuth(Model):
    username: str
    password_file: Path


class PrometheusConfig(Model):
    """Where a Prometheus, or what answers like one, is, and how to come in."""

    url: str = Field(repr=False)
    bearer_token_file: Path | None = None
    basic_auth: BasicAuth | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    params: dict[str, str] = {}
    timeout: float = Field(120.0, gt=0)
    max_samples: int = Field(20_000_000, gt=0)
    concurrency: int = Field(4, ge=1, le=64)

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url.rstrip("/")


class SourceConfig(Model):
    openmetrics: Path | None = None
    prometheus: PrometheusConfig | None = None
    cluster_label: str | None = None
    replica_label: str | None = None

    @model_validator(mode="after")
    def _one(self) -> "SourceConfig":
        if (self.openmetrics is None) == (self.prometheus is None):
            raise ValueError("needs exactly one of openmetrics and prometheus")
        return self


LabelNames = Annotated[tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)]
"""One label name, or several of which the first that a series has is read."""
MetricNames = LabelNames


class Metric(Model):
    """A metric by its name (or names that releases gave it) and its unit."""

    metric: MetricNames
    unit: Literal["bytes", "KiB", "MiB", "GiB", "ratio", "percent"] = "MiB"


class MetricLabels(Model):
    """Which labels say what; each a name or a list of names, the first present counts."""

    node: LabelNames = ()
    gpu: LabelNames = ()
    gpu_instance: LabelNames = ()
    mig_profile: LabelNames = ()
    model: LabelNames = ()
    namespace: LabelNames = ()
    pod: LabelNames = ()
    container: LabelNames = ()
    pod_uid: LabelNames = ()
    pid: LabelNames = ()
    slot: LabelNames = ()


class ProcessMemory(Metric):
    """A metric with one series a process (or pod) and device."""

    labels: MetricLabels

    @model_validator(mode="after")
    def _usable(self) -> "ProcessMemory":
        _check_mapping(self.labels, [self])
        return self


def _check_mapping(labels: MetricLabels, memory: list[Metric]) -> None:
    if not labels.gpu or not labels.node:
        raise ValueError("labels must name gpu and node: without them a row is of no known device")
    if any(m.unit in ("ratio", "percent") for m in memory):
        raise ValueError("memory has a unit of bytes, KiB, MiB or GiB")


class DeviceMemory(Model):
    """A device's own memory and activity; what an exporter does not have is left out."""

    used: Metric | None = None
    free: Metric | None = None
    reserved: Metric | None = None
    total: Metric | None = None
    activity: tuple[Metric, ...] = ()
    labels: MetricLabels
    pod_rows: Literal["none", "copies"] = "none"
    """`copies`: rows by pod repeat the device's value, unless a row without a pod stands beside them (M2)."""

    @model_validator(mode="after")
    def _usable(self) -> "DeviceMemory":
        _check_mapping(self.labels, [m for m in (self.used, self.free, self.reserved, self.total) if m])
        return self


class Profile(Model):
    """What an exporter's series mean."""

    name: str
    description: str = ""
    device_memory: DeviceMemory | None = None
    process_memory: ProcessMemory | None = None

    @property
    def process_labels(self) -> MetricLabels | None:
        return self.process_memory.labels if self.process_memory else None

    @model_validator(mode="after")
    def _something(self) -> "Profile":
        if self.device_memory is None and self.process_memory is None:
            raise ValueError("needs device_memory or process_memory")
        return self


class Allocation(Model):
    basis: Literal["memory", "request", "max"] = "memory"
    idle: Literal["holders", "consumers", "platform"] = "holders"
    shared: Literal["platform", "proportional", "even"] = "platform"


class Mig(Model):
    weight: Literal["memory", "compute", "max"] = "memory"


class Match(Model):
    namespace: str = "*"
    labels: dict[str, str] = {}


class OwnershipRule(Model):
    """Pods in a namespace (a glob), with these pod labels, belong to a team, or to several by percentage."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    match: Match
    team: str | None = None
    split: dict[str, Decimal] | None = None
    since: Instant | None = Field(None, alias="from")
    until: Instant | None = Field(None, alias="to")

    @model_validator(mode="after")
    def _whole(self) -> "OwnershipRule":
        if (self.team is None) == (self.split is None):
            raise ValueError("needs exactly one of team and split")
        if self.split is not None:
            if sum(self.split.values()) != 100:
                raise ValueError(f"split adds up to {sum(self.split.values())}, not to 100 (T2)")
            if any(v <= 0 for v in self.split.values()):
                raise ValueError("split has a part that is not above 0")
        if not all(name.strip() for name in (self.split or [self.team or ""])):
            raise ValueError("names a team without a name")
        if self.since and self.until and str(self.since) >= str(self.until):
            raise ValueError("to is not after from")
        return self


class Ownership(Model):
    order: tuple[Literal["rules", "pod", "namespace"], ...] = ("rules", "pod", "namespace")
    team_label: str = "team"
    default: str = "unowned"
    platform: str = "platform"
    rules: tuple[OwnershipRule, ...] = ()

    @field_validator("team_label", "default", "platform")
    @classmethod
    def _named(cls, name: str) -> str:
        if not name.strip() or name != name.strip():
            raise ValueError("may not be empty, nor begin or end with a blank")
        return name

    @field_validator("order")
    @classmethod
    def _once(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(order)) != len(order):
            raise ValueError("names a place twice")
        return order


class Team(Model):
    cost_center: str = ""
    contact: str = ""
    budget: Decimal | None = None


class Pricing(Model):
    books: tuple[str, ...] = Field(min_length=1)
    missing: Literal["fail", "zero"] = "fail"
    default_purchase_option: PurchaseOption = "on-demand"


class NodeOverride(Model):
    match: str
    instance_type: str | None = None
    region: str | None = None
    purchase_option: PurchaseOption | None = None


class ClusterConfig(Model):
    """One cluster of several, with a source of its own."""

    name: str
    source: SourceConfig
    since: Instant | None = None


DEFAULT_SYSTEM_PODS = (
    "*/*dcgm-exporter*",
    "*/nvidia-device-plugin*",
    "*/nvidia-mps-*",
    "*/mps-control-daemon*",
    "*/*gpu-feature-discovery*",
    "*/hami-device-plugin*",
    "*/nvidia-gpu-exporter*",
    "*/nvitop-exporter*",
)


class Config(Model):
    """The whole configuration (docs/configuration.md)."""

    cluster: str = ""
    clusters: tuple[ClusterConfig, ...] = ()
    currency: str = Field("USD", pattern="^[A-Z]{3}$")
    timezone: str = "UTC"
    window: Duration = 300_000
    max_gap: Duration = 3_600_000
    store: Path = Path("chargeback-data")
    source: SourceConfig | None = None
    exporters: Literal["auto"] | tuple[str | Profile, ...] = "auto"
    scrape_interval: Literal["auto"] | Duration = "auto"
    system_pods: tuple[str, ...] = DEFAULT_SYSTEM_PODS
    allocation: Allocation = Allocation()
    mig: Mig = Mig()
    since: Instant | None = None
    ownership: Ownership = Ownership()
    teams: dict[str, Team] = {}
    dimensions: dict[str, str] = {}
    pricing: Pricing
    nodes: tuple[NodeOverride, ...] = ()

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        zone_of(name)
        return name

    @model_validator(mode="after")
    def _coherent(self) -> "Config":
        if self.window <= 0 or 3_600_000 % self.window:
            raise ValueError("window must divide 1 h (W1)")
        if self.max_gap <= 0:
            raise ValueError("max_gap must be above 0")
        if not self.exporters:
            raise ValueError("exporters names none; leave it out, or write auto")
        if any(not name or name != name.strip() for name in self.teams):
            raise ValueError("teams: a name may not be empty, nor begin or end with a blank")
        if any(not re.fullmatch("[a-z][a-z0-9_]*", name) for name in self.dimensions):
            raise ValueError("dimensions: names are lower-case letters, digits and _")
        if bool(self.clusters) == bool(self.cluster):
            raise ValueError("needs exactly one of cluster and clusters")
        if self.cluster and self.source is None:
            raise ValueError("source is missing")
        if self.clusters and self.source is not None:
            raise ValueError("with clusters, each has a source of its own; drop the one at the top")
        names = [c.name for c in self.all_clusters()]
        if len(set(names)) != len(names):
            raise ValueError("two clusters have one name")
        if any(not n or n.strip(". ") != n or set(n) & set("/\\=%\0") for n in names):
            raise ValueError("a cluster's name may not be empty, begin or end with a dot or blank, or hold / \\ = %")
        return self

    def all_clusters(self) -> tuple[ClusterConfig, ...]:
        """The clusters to bill, in the order written."""
        if self.clusters:
            return self.clusters
        assert self.source is not None
        return (ClusterConfig(name=self.cluster, source=self.source, since=self.since),)


def load(path: Path, store: Path | None = None) -> tuple[Config, Origin]:
    """Reads a configuration file; relative paths in it are from its folder. Raises `ConfigError`."""
    data, digest, size = read_yaml(path, "configuration")
    config = parse(Config, data, path)
    here = path.resolve().parent
    changes: dict[str, Any] = {"store": store if store is not None else here / config.store}
    if config.source:
        changes["source"] = _resolved(config.source, here)
    changes["clusters"] = tuple(c.model_copy(update={"source": _resolved(c.source, here)}) for c in config.clusters)
    return config.model_copy(update=changes), Origin(path=path, sha256=digest, bytes=size)


def _resolved(source: SourceConfig, here: Path) -> SourceConfig:
    if source.openmetrics is not None:
        return source.model_copy(update={"openmetrics": here / source.openmetrics})
    assert source.prometheus is not None
    p = source.prometheus
    files = {n: here / v for n in ("bearer_token_file", "ca_file", "cert_file", "key_file") if (v := getattr(p, n))}
    if p.basic_auth:
        files["basic_auth"] = p.basic_auth.model_copy(update={"password_file": here / p.basic_auth.password_file})
    return source.model_copy(update={"prometheus": p.model_copy(update=files)})
