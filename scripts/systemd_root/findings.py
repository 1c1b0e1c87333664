"""A finding, and the table of them. Standard library only: it runs inside."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Findings:
    """What was seen so far; each is written as soon as it is known."""

    file: Path
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin the table."""
        self.file.write_text("| what a real systemd shows | seen | |\n|---|---|---|\n")

    def add(self, what: str, seen: str, right: bool) -> None:
        """Write one down."""
        with self.file.open("a") as table:
            table.write(f"| {what} | {seen} | {'right' if right else '**wrong**'} |\n")
        if not right:
            self.wrong.append(what)
