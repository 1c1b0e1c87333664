"""The step log: one JSON line per training step, by the hook or by the rank that has the loss.

It continues over switches and restarts. A step that is repeated after a rollback or restart appears
twice, and the later line counts. Invariant: reading never fails after a killed writer; a truncated
line counts as a missing step.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from wattmesh.errors import InputInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step.

    Attributes:
        step: counted from 1.
        tokens: total after this step.
        loss: mean over the step's global batch, before the update; NaN: the job told none.
        layout: its text (`str(layout)`).
        gpus: number of devices.
        monotonic_s: CLOCK_MONOTONIC when the step ended, the same clock in every process.
        elapsed_s: what the step took. Where a simulated device sets the pace: `computed_s`: of
            that, what this machine worked; `overrun_s`: how late it ended.
    """

    step: int
    tokens: int
    loss: float
    layout: str
    gpus: int
    monotonic_s: float
    elapsed_s: float
    overrun_s: float = 0.0
    computed_s: float = 0.0

    @classmethod
    def from_line(cls, line: bytes) -> Self | None:
        """Decode one line; None when it is truncated or malformed."""
        try:
            data = json.loads(line)
            numbers = {key: float(data[key]) for key in _FLOATS}
            counts = {key: int(data[key]) for key in _COUNTS}
            return cls(layout=str(data["layout"]), **counts, **numbers)  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, OverflowError):
            return None


_FLOATS = ("loss", "monotonic_s", "elapsed_s", "overrun_s", "computed_s")
_COUNTS = ("step", "tokens", "gpus")


class StepLog:
    """Appends steps to a file, each in one write, so lines of two writers never mix."""

    def __init__(self, path: Path | None) -> None:
        """Append to `path`; None keeps no log.

        Raises:
            InputInvalid: the file cannot be written.
        """
        self._descriptor: int | None = None
        if path is not None:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(path, flags, 0o644)
            except OSError as error:
                raise InputInvalid(f"step log {path}: {error.strerror}") from error

    def append(self, row: StepRow) -> None:
        """Add one step. The leading newline ends a line that a killed writer left truncated."""
        if self._descriptor is not None:
            os.write(self._descriptor, f"\n{json.dumps(asdict(row))}\n".encode())

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read(path: Path) -> tuple[StepRow, ...]:
    """Read a step log in order of steps; of a repeated step the later line counts.

    Raises:
        InputInvalid: the file cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputInvalid(f"step log {path} cannot be read: {error.strerror}") from error
    rows: dict[int, StepRow] = {}
    for line in lines:
        row = StepRow.from_line(line)
        if row is not None:
            rows[row.step] = row
    return tuple(rows[step] for step in sorted(rows))
