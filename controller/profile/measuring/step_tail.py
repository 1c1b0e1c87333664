"""Reads the step log of a launch while it grows.

Invariant: a line is read once, when it is whole. A step that is trained again replaces the earlier
one; a row that the job itself wrote replaces the hook's, because it knows its pace.
"""

from pathlib import Path

from wattmesh.reconfig.profile_folder import ProfileFolder
from wattmesh.reconfig.step_log import StepRow


class StepTail:
    """The steps of one launch so far."""

    def __init__(self, place: ProfileFolder) -> None:
        """Begin before the first step."""
        self._hook, self._own = _Tail(place.steps), _Tail(place.own_steps)
        self._rows: dict[int, StepRow] = {}
        self._own_steps: set[int] = set()
        self._ordered: list[StepRow] = []

    def rows(self) -> list[StepRow]:
        """Return all steps so far, in order: a list of ours that grows, not to be changed."""
        for row in self._own.read():
            self._take(row)
            self._own_steps.add(row.step)
        for row in self._hook.read():
            if row.step not in self._own_steps:
                self._take(row)
        if len(self._ordered) < len(self._rows):
            self._ordered = [self._rows[step] for step in sorted(self._rows)]
        return self._ordered

    def _take(self, row: StepRow) -> None:
        """Add a step; in its place where the log is in order, which it nearly always is."""
        self._rows[row.step] = row
        if len(self._ordered) == len(self._rows) - 1 and (
            not self._ordered or row.step > self._ordered[-1].step
        ):
            self._ordered.append(row)
        else:
            self._ordered = []


class _Tail:
    """New whole lines of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[StepRow]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, end, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._offset += len(whole) + len(end)
        found = (StepRow.from_line(line) for line in whole.splitlines() if line)
        return [row for row in found if row is not None]
