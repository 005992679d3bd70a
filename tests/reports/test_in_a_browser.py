"""The pages in a real browser: they print, and it has nothing to complain about."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chargeback.reports import Report
from chargeback.reports.pages import index_page, invoice_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr"),
)


@pytest.fixture
def chromium(tmp_path: Path) -> list[str]:
    if CHROMIUM is None:
        if os.environ.get("CHARGEBACK_REQUIRE_SERVERS") == "1":
            pytest.fail("chromium is not on PATH")
        pytest.skip("chromium is not on PATH")
    return [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]


@pytest.mark.parametrize("which", ["invoice", "index"])
def test_a_page_prints_and_shows_without_errors(
    report: Report, chromium: list[str], tmp_path: Path, which: str
) -> None:
    page, paper, shot = tmp_path / "index.html", tmp_path / "page.pdf", tmp_path / "page.png"
    page.write_text(invoice_page(report, "research") if which == "invoice" else index_page(report), encoding="utf-8")
    for option in (f"--print-to-pdf={paper}", f"--screenshot={shot}"):
        done = subprocess.run(
            [*chromium, option, page.as_uri()], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "CONSOLE" not in done.stderr
    assert paper.read_bytes().startswith(b"%PDF-") and shot.read_bytes().startswith(b"\x89PNG")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) <= 6
