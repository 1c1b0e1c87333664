"""The demo's progress output: one changing line in a terminal, occasional lines otherwise.

Invariant: it only shows what it is given; it observes and decides nothing.
"""

import shutil
import sys
import time

QUIET_S = 5.0
"""Seconds between two lines of progress when the output is not a terminal."""


class ProgressPrinter:
    """The demo's output; `silent` for `--json`, so that standard output is one JSON value."""

    def __init__(self, *, silent: bool = False) -> None:
        """Write to standard output."""
        self._stream = sys.stdout
        self._silent = silent
        self._live = self._stream.isatty()
        self._width = 0
        self._told_s = -QUIET_S

    def say(self, line: str = "") -> None:
        """Print a permanent line."""
        self._clear()
        self._write(f"{line}\n")

    def show(self, line: str) -> None:
        """Show progress; in a terminal the next line replaces it."""
        if self._live:
            shown = line[: _columns() - 1]
            self._write(f"\r{shown.ljust(self._width)}")
            self._width = len(shown)
        elif time.monotonic() - self._told_s >= QUIET_S:
            self._told_s = time.monotonic()
            self._write(f"{line}\n")

    def _clear(self) -> None:
        if self._width:
            self._write(f"\r{' ' * self._width}\r")
            self._width = 0

    def _write(self, text: str) -> None:
        if not self._silent:
            self._stream.write(text)
            self._stream.flush()


def _columns() -> int:
    return shutil.get_terminal_size().columns
