"""A real Prometheus that holds a made-up cluster."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers import _running, binary

from .fleet import Fleet, write_text


@dataclass(frozen=True)
class Server:
    """Where it is, and how many samples it holds."""

    url: str
    samples: int


@contextmanager
def holding(*held: tuple[Fleet, int, int]) -> Iterator[list[Server]]:
    """A server for each (fleet, start, end in ms); they are filled side by side, each with one long block."""
    promtool = binary("promtool")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, ExitStack() as stack:
        folders, samples, fills = [], [], []
        for i, (fleet, start, end) in enumerate(held):
            folder = Path(name) / str(i)
            (folder / "data").mkdir(parents=True)
            text = folder / "samples.om"
            folders.append(folder)
            samples.append(write_text(fleet, text, start, end))
            command = [promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=768h"]
            fills.append(subprocess.Popen([*command, text, folder / "data"], stdout=subprocess.DEVNULL))
        for folder, fill in zip(folders, fills, strict=True):
            if fill.wait():
                raise RuntimeError("promtool could not write the samples")
            (folder / "samples.om").unlink()
        yield [Server(stack.enter_context(_serving(f)), n) for f, n in zip(folders, samples, strict=True)]


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    config = folder / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1h}\n", encoding="utf-8")

    def command(port: int) -> list[str]:
        return [
            binary("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]  # fmt: skip

    with _running(command, "/-/ready", folder) as url:
        yield url
