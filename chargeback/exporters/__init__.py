"""What an exporter's series mean: the shipped profiles (one YAML file each) and those of the configuration."""

from collections.abc import Collection
from functools import cache

from chargeback.config import Config, Metric, Profile
from chargeback.documents import parse, read_yaml
from chargeback.errors import ConfigError
from chargeback.resources import exporter_profiles

# M5: the order in which exporters speak for a device's own memory, and for its processes.
DEVICE_ORDER = ("dcgm-exporter", "nvidia_gpu_exporter", "nvitop-exporter", "hami", "hami-legacy")
PROCESS_ORDER = ("process", "pod-gpu-metrics-exporter", "dcgm-exporter", "hami", "hami-legacy")


@cache
def shipped() -> dict[str, Profile]:
    """Every shipped profile by name."""
    found = {}
    for path in exporter_profiles():
        profile = parse(Profile, read_yaml(path, "exporter profile")[0], path)
        found[profile.name] = profile
    return dict(sorted(found.items()))


def configured(config: Config) -> list[Profile]:
    """The profiles to look for: those configured, in order, or all that are shipped. Raises `ConfigError`."""
    known = shipped()
    if config.exporters == "auto":
        return list(known.values())
    profiles = []
    for entry in config.exporters:
        if isinstance(entry, str) and entry not in known:
            raise ConfigError(f"exporters: no profile is called {entry}", f"shipped are {', '.join(known)}")
        profiles.append(known[entry] if isinstance(entry, str) else entry)
    names = [p.name for p in profiles]
    if len(set(names)) != len(names):
        raise ConfigError("exporters: a profile is named twice", "name each once; the first one wins")
    return profiles


def ranks(config: Config, names: Collection[str]) -> tuple[dict[str, int], dict[str, int]]:
    """For devices and for processes, the rank of each exporter: the lowest that reports speaks (M5)."""
    if config.exporters != "auto":
        order = [p.name for p in configured(config)]
        rank = {n: order.index(n) if n in order else len(order) for n in names}
        return rank, rank

    def place(order: tuple[str, ...]) -> dict[str, int]:
        rest = sorted(set(names) - set(order))
        return {n: i for i, n in enumerate([*order, *rest])}

    return place(DEVICE_ORDER), place(PROCESS_ORDER)


def metric_names(profile: Profile) -> list[str]:
    """Every metric that the profile reads."""
    device = profile.device_memory
    metrics: list[Metric | None] = [profile.process_memory]
    if device:
        metrics += [device.used, device.free, device.reserved, device.total, *device.activity]
    return [name for m in metrics if m for name in m.metric]
