"""Real servers for tests: each starts on a free loopback port with given samples in it, and is stopped by its handle.

Without the program on PATH a test is skipped, or fails where CHARGEBACK_REQUIRE_SERVERS=1.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

START_SECONDS = 30.0


def binary(name: str) -> str:
    """The path of a program that a test needs."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CHARGEBACK_REQUIRE_SERVERS") == "1":
            pytest.fail(f"{name} is not on PATH, and CHARGEBACK_REQUIRE_SERVERS=1")
        pytest.skip(f"{name} is not on PATH (Debian: apt-get install prometheus victoria-metrics)")
    return found


@contextmanager
def prometheus(text: str | Path, *arguments: str) -> Iterator[str]:
    """A Prometheus that holds the samples of an OpenMetrics text (or file, not packed); gives its URL."""
    server, promtool = binary("prometheus"), binary("promtool")
    with tempfile.TemporaryDirectory(prefix="prometheus-") as name:
        folder = Path(name)
        data = folder / "data"
        backfill(text, data, folder, promtool)
        config = folder / "prometheus.yml"
        config.write_text("global: {scrape_interval: 1h}\n")

        def command(port: int) -> list[str]:
            return [
                server,
                f"--config.file={config}",
                f"--storage.tsdb.path={data}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
                *arguments,
            ]

        with _running(command, "/-/ready", folder) as url:
            yield url


def backfill(text: str | Path, data: Path, folder: Path, promtool: str) -> None:
    """Writes the samples as blocks into `data`; `folder` is for scratch."""
    data.mkdir(exist_ok=True)
    if isinstance(text, str):
        source = folder / "samples.om"
        source.write_text(text)
    else:
        source = text
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=768h", str(source), str(data)],
        check=True,
        capture_output=True,
        timeout=120,
    )


@contextmanager
def victoria_metrics(text: str | Path, *arguments: str) -> Iterator[str]:
    """A VictoriaMetrics that holds the samples of an OpenMetrics text (or file, not packed); gives its URL.

    It drops samples over two days in the future.
    """
    server = binary("victoria-metrics")
    with tempfile.TemporaryDirectory(prefix="victoria-metrics-") as name:
        folder = Path(name)

        def command(port: int) -> list[str]:
            return [
                server,
                f"-storageDataPath={folder / 'data'}",
                f"-httpListenAddr=127.0.0.1:{port}",
                "-retentionPeriod=100y",
                "-loggerLevel=ERROR",
                *arguments,
            ]

        with _running(command, "/health", folder) as url:
            lines = (text if isinstance(text, str) else text.read_text()).splitlines()
            body = "".join(_in_ms(line) for line in lines if line and not line.startswith("#"))
            requests.post(f"{url}/api/v1/import/prometheus", body.encode(), timeout=60).raise_for_status()
            requests.get(f"{url}/internal/force_flush", timeout=60).raise_for_status()
            yield url


def _in_ms(line: str) -> str:
    head, seconds = line.rsplit(" ", 1)
    return f"{head} {round(float(seconds) * 1000)}\n"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def _running(command: object, ready: str, folder: Path) -> Iterator[str]:
    assert callable(command)
    log = folder / "log"
    for _ in range(3):  # another process may take the port first
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        with log.open("wb") as out:
            server = subprocess.Popen(command(port), stdout=out, stderr=subprocess.STDOUT, cwd=folder)
        try:
            if _wait(server, url + ready):
                yield url
                return
        finally:
            server.terminate()
            try:
                server.wait(15)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(15)
    pytest.fail(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def _wait(server: "subprocess.Popen[bytes]", url: str) -> bool:
    deadline = time.monotonic() + START_SECONDS
    with requests.Session() as session:
        session.trust_env = False
        while time.monotonic() < deadline and server.poll() is None:
            try:
                if session.get(url, timeout=2).ok:
                    return True
            except requests.RequestException:
                pass
            time.sleep(0.05)
    return False
