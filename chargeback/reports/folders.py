"""Folder names for teams: whatever a team is called, its folder is one plain name that every disk accepts."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

MAX_LENGTH = 60
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
"""Names that Windows keeps for devices."""


def team_folders(names: Iterable[str]) -> dict[str, str]:
    """Each team's folder under `invoices/`: lower-case ASCII letters, digits and hyphens, at most 60 of them.

    A name that is such a slug already is its own folder. Any other gets a digest of the name behind its slug, so
    that two teams never share a folder, on a case-blind disk either. Depends on the set of names, not their order.
    """
    teams = sorted(set(names))
    digits = dict.fromkeys((n for n in teams if not _plain(n)), 8)
    while True:
        folders = {n: _digested(n, digits[n]) if n in digits else n for n in teams}
        taken = Counter(folders.values())
        shared = [n for n in teams if taken[folders[n]] > 1]
        if not shared:
            return folders
        for n in shared:
            digits[n] = digits[n] + 8 if n in digits else 8


def _plain(name: str) -> bool:
    return name != "" and name == _slug(name) and name not in _RESERVED and len(name) <= MAX_LENGTH


def _slug(name: str) -> str:
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-")


def _digested(name: str, digits: int) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    slug = _slug(name)[: MAX_LENGTH - digits - 1].strip("-")
    return f"{slug or 'team'}-{digest}"
