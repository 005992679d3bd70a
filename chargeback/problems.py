"""What is wrong with the data: records that are collected and shown, not raised."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Problem:
    """One finding: its code (docs/problems.md), the thing concerned, how often, and a sentence for people."""

    code: str
    subject: str
    severity: str
    count: int
    message: str


@dataclass
class Problems:
    """Findings by (code, subject); a finding that comes again is counted, and the last message stays."""

    _found: dict[tuple[str, str], Problem] = field(default_factory=dict)

    def add(self, code: str, subject: str, message: str, *, count: int = 1, severity: str = "warning") -> None:
        """Records `count` more occurrences of `code` at `subject`."""
        if count <= 0:
            return
        before = self._found.get((code, subject))
        self._found[code, subject] = Problem(code, subject, severity, count + (before.count if before else 0), message)

    def extend(self, others: Iterable[Problem]) -> None:
        """Takes over findings made elsewhere."""
        for p in others:
            self.add(p.code, p.subject, p.message, count=p.count, severity=p.severity)

    def sorted(self) -> list[Problem]:
        """All findings by code, then subject."""
        return sorted(self._found.values())
