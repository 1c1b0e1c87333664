"""One JSON value, or a screen: what goes to standard output.

Invariant: nothing is coloured unless standard output is a terminal, and nothing is cut or folded
to a width when it is not.
"""

import json
import shutil
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from wattmesh.controller import marks

PIPE_WIDTH = 240
"""Columns when nobody looks: wide enough that a line stays a line."""

GOOD, WARN, BAD, DIM, STRONG = "green", "yellow", "bold red", "dim", "bold"


def to_json(value: Any) -> str:
    """Write one JSON value."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def print_json(value: Any) -> None:
    """Print one JSON value."""
    print(to_json(value))


def columns() -> int:
    """Give how wide a screen may be: as the terminal, else wide enough for anything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def print_lines(lines: Iterable[Text | str]) -> None:
    """Print a screen line by line."""
    terminal = sys.stdout.isatty()
    console = Console(
        width=None if terminal else PIPE_WIDTH,
        color_system="auto" if terminal else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for line in lines:
        text = line if isinstance(line, Text) else Text(line)
        console.print(text, soft_wrap=True)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Put a line together from plain words and (words, style) pairs."""
    return Text.assemble(*parts)


def legend(lines: Iterable[Text | str]) -> list[Text | str]:
    """Say what the flags in a screen stand for, under it; nothing where there are none."""
    said = marks.legend("\n".join(str(line) for line in lines))
    return ["", styled((said, WARN))] if said else []


def trouble(sentences: Iterable[str]) -> list[Text]:
    """Lines that need a human: the only ones that are red."""
    return [styled(("! ", BAD), (each, BAD)) for each in sentences]
