"""Finds the files that ship with the program: page templates, price books and exporter profiles.

In a wheel `templates/` and `pricing/` lie under `chargeback/_data/`; in a checkout, at the repository's top.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def templates() -> Path:
    """The folder of the page templates."""
    return _folder("templates")


def pricing() -> Path:
    """The folder of the shipped price books."""
    return _folder("pricing")


def exporter_profiles() -> list[Path]:
    """The shipped exporter profiles, by name."""
    return sorted((_PACKAGE / "exporters").glob("*.yaml"))


def _folder(name: str) -> Path:
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}/ is missing from this installation")
