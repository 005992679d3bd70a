"""The wheel, built and installed elsewhere, has all that it needs with it."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


def ran(*command: object, cwd: Path) -> str:
    """What a program says on stdout; it runs without anything of this checkout on its path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CHARGEBACK", "PIP_", "COV_"))}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=kept, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built with what is at hand."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed here")
    out = tmp_path_factory.mktemp("wheel")
    ran(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, ROOT, cwd=out)
    (built,) = out.glob("chargeback-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of its own with the wheel in it; dependencies are those of this one, so nothing is fetched.

    What lies in its own site-packages comes first, so the program there is the wheel's.
    """
    home = tmp_path_factory.mktemp("elsewhere") / "venv"
    venv.create(home, system_site_packages=False, with_pip=False, symlinks=os.name != "nt")
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    python = home / "bin" / "python"
    ran(*PIP, "--python", python, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=home)
    return home


def test_the_wheel_holds_the_package_its_templates_and_its_tables(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = [p for kind in ("*.py", "*.yaml") for p in (ROOT / "chargeback").rglob(kind)]
    beside = [p for folder in ("templates", "pricing") for p in (ROOT / folder).rglob("*.*")]
    shipped = {p.relative_to(ROOT).as_posix() for p in package}
    shipped |= {f"chargeback/_data/{p.relative_to(ROOT).as_posix()}" for p in beside}
    assert shipped <= names
    strays = {n for n in names if not n.startswith("chargeback") or "__pycache__" in n}
    assert not strays


def test_the_wheel_runs_the_demo_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    where = ran(installed / "bin" / "python", "-c", "import chargeback; print(chargeback.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)
    lines = ran(installed / "bin" / "chargeback", "demo", cwd=tmp_path).splitlines()
    assert re.fullmatch(r"total +[\d,]+\.\d\d USD", lines[-2])
    assert (tmp_path / lines[-1]).is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["chargeback-demo"]


def test_the_wheel_writes_the_starter_configuration(installed: Path, tmp_path: Path) -> None:
    ran(installed / "bin" / "chargeback", "init", "new", cwd=tmp_path)
    assert (tmp_path / "new" / "chargeback.yaml").is_file()
