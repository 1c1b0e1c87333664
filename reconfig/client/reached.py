"""Keeps the highest step that a run ever reached, to recognize steps trained again after a crash.

It is one number in the run's folder. The leader writes it at every step: 20 bytes into the page
cache. It helps a user who logs steps to an experiment tracker; training never depends on it.

Invariant: a file that is missing or no number means "not known", and then no step counts as
trained again.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_WIDTH = 20


def read(path: Path) -> int:
    """Return the highest step that any launch reported; 0 if not known."""
    try:
        return int(path.read_bytes()[:_WIDTH])
    except (OSError, ValueError):
        return 0


class ReachedStepFile:
    """Writes the number; the file is opened at the first step that this rank reports as leader."""

    def __init__(self, path: Path) -> None:
        """Write to `path`."""
        self._path = path
        self._descriptor = -1

    def note(self, step: int) -> None:
        """Write `step` unless the file holds a later one; an error is only logged."""
        try:
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o644)
                self._highest = read(self._path)
            if step > self._highest:
                self._highest = step
                os.pwrite(self._descriptor, f"{step:0{_WIDTH}d}".encode(), 0)
        except OSError as error:
            log.debug("%s cannot be written (%s)", self._path, error)

    def rest(self) -> None:
        """Close the file, because another rank may lead from now on."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
