"""What happens in each scenario under golden/, as samples.

    PYTHONPATH=. python tests/scenarios.py

writes each folder's metrics.om. The stories and the money are in the folders' README.md; expected.csv was worked out by
hand from the rules and is not written by any program.
"""

from collections.abc import Callable
from pathlib import Path

from clusters import A100_80, Cluster

GOLDEN = Path(__file__).resolve().parent / "golden"

NODE = "gpu-a"
KIND = "gpu-large"


def _cluster(minutes: float) -> Cluster:
    """A cluster that is scraped once a minute, from 10:00 on."""
    return Cluster(minutes=minutes, every=60)


def exclusive() -> Cluster:
    """01-exclusive."""
    c = _cluster(120)
    c.node(NODE, KIND, region="east")
    c.pod("research/train", team="red", node=NODE, done=60, owner=("Job", "train"))
    c.pod("apps/batch", team="blue", node=NODE, at=(90, 120), owner=("ReplicaSet", "batch-5d9f"))
    c.gpu(NODE, "GPU-0", used=40, pods=["research/train"], at=(0, 60))
    c.gpu(NODE, "GPU-0", used=0, pods=["research/train"], at=(60, 90))
    c.gpu(NODE, "GPU-0", used=20, pods=["apps/batch"], at=(90, 120))
    c.gpu(NODE, "GPU-1", used=0)
    c.process(NODE, "research/train", 40, "GPU-0", at=(0, 60))
    c.process(NODE, "apps/batch", 20, "GPU-0", pid="200", at=(90, 120))
    c.overwrite("DCGM_FI_DEV_FB_USED", 2147483632.0, (20, 30), UUID="GPU-0")
    return c


def time_slicing() -> Cluster:
    """02-time-slicing."""
    c = _cluster(60)
    c.node(NODE, KIND, region="east", labels={"label_nvidia_com_gpu_replicas": "4"})
    c.pod("serving/llm", team="red", node=NODE, request={"nvidia_com_gpu_shared": 2})
    c.pod("notebooks/jane", team="blue", node=NODE, request={"nvidia_com_gpu_shared": 1})
    c.pod("tools/peek", team="green", node=NODE, request=0)
    slots = {"serving/llm": ["0", "1"], "notebooks/jane": ["2"]}
    c.gpu(NODE, "GPU-0", used=lambda m: 45 if m < 30 else 35, reserved=2, pods=slots, exported=True)
    c.process(NODE, "serving/llm", 20, "GPU-0", pid="1")
    c.process(NODE, "serving/llm", 10, "GPU-0", pid="2")
    c.process(NODE, "tools/peek", 10, "GPU-0", pid="3", at=(0, 30))
    c.process(NODE, "", 5, "GPU-0", pid="4")
    return c


def mig() -> Cluster:
    """03-mig."""
    c = _cluster(60)
    c.node(NODE, KIND, region="east")
    c.pod("research/fit", team="red", node=NODE, request={"nvidia_com_mig_3g_40gb": 1}, at=(0, 30))
    c.pod("notebooks/jane", team="blue", node=NODE, request={"nvidia_com_mig_2g_20gb": 1}, at=(30, 60))
    c.pod("apps/rank", team="green", node=NODE, request={"nvidia_com_mig_1g_10gb": 1}, at=(30, 60))
    for instance, profile, size, used, pods, at in (
        ("1", "3g.40gb", 40, 10, ["research/fit"], (0, 30)),
        ("2", "3g.40gb", 40, 0, [], (0, 30)),
        ("1", "2g.20gb", 20, 0, ["notebooks/jane"], (30, 60)),
        ("9", "1g.10gb", 10, 5, ["apps/rank"], (30, 60)),
    ):
        c.gpu(NODE, "GPU-0", instance=instance, profile=profile, size=size, used=used, pods=pods, at=at, model=A100_80)
    c.process(NODE, "research/fit", 10, "GPU-0", instance="1", at=(0, 30))
    c.process(NODE, "apps/rank", 5, "GPU-0", instance="9", pid="200", at=(30, 60))
    return c


def gap() -> Cluster:
    """04-gap."""
    c = _cluster(100)
    c.node(NODE, KIND, region="east", labels={"label_nvidia_com_gpu_replicas": "2"})
    c.pod("apps/rank", team="red", node=NODE)
    c.pod("apps/once", team="blue", node=NODE, at=(0, 40))
    c.gpu(NODE, "GPU-0", used=30, pods={"apps/rank": ["0"], "apps/once": ["1"]}, at=(0, 30))
    c.gpu(NODE, "GPU-0", used=20, pods={"apps/rank": ["0"]}, at=(70, 100))
    c.process(NODE, "apps/rank", 20, "GPU-0", pid="1")
    c.process(NODE, "apps/once", 10, "GPU-0", pid="2", at=(0, 30))
    c.hole("gpu_process", (30, 70))
    return c


SCENARIOS: dict[str, Callable[[], Cluster]] = {
    "01-exclusive": exclusive,
    "02-time-slicing": time_slicing,
    "03-mig": mig,
    "04-gap": gap,
}

if __name__ == "__main__":
    for name, make in SCENARIOS.items():
        (GOLDEN / name / "metrics.om").write_text(make().text(), encoding="utf-8")
