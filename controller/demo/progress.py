"""What the demo says while it works: one line that changes in a terminal, some lines in a file.

Invariant: it is told what was observed and shows that; it asks nobody and decides nothing.
"""

import shutil
import sys
import time
from typing import TextIO

QUIET_S = 5.0
"""Between two lines of progress when nobody watches."""


class Progress:
    """Where the demo speaks; `silent` for `--json`, so that standard output is one JSON value."""

    def __init__(self, stream: TextIO | None = None, *, silent: bool = False) -> None:
        """Speak on `stream`, standard output by default."""
        self._stream = stream or sys.stdout
        self._silent = silent
        self._live = self._stream.isatty()
        self._width = 0
        self._told_s = -QUIET_S

    def say(self, line: str = "") -> None:
        """Say a line that stays."""
        self._clear()
        self._write(f"{line}\n")

    def show(self, line: str) -> None:
        """Show where things stand; the next line replaces it in a terminal."""
        if self._live:
            shown = line[: _columns() - 1]
            self._write(f"\r{shown.ljust(self._width)}")
            self._width = len(shown)
        elif time.monotonic() - self._told_s >= QUIET_S:
            self._told_s = time.monotonic()
            self._write(f"{line}\n")

    def _clear(self) -> None:
        """Take the changing line away."""
        if self._width:
            self._write(f"\r{' ' * self._width}\r")
            self._width = 0

    def _write(self, text: str) -> None:
        """Write at once."""
        if not self._silent:
            self._stream.write(text)
            self._stream.flush()


def _columns() -> int:
    """Give the terminal's width."""
    return shutil.get_terminal_size().columns
