"""One JSON value, or a screen: what goes to standard output.

Invariant: nothing is coloured unless standard output is a terminal, and nothing is cut or folded
to a width when it is not.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from wattmesh.controller import marks
from wattmesh.reconfig.ranges import clean, clean_lines

PIPE_WIDTH = 240
"""Columns when the output is not a terminal: wide enough that no line is broken."""

INDENT = 7
"""Indent of a continued line: it begins under the text after `power  `."""

GOOD, WARN, BAD, DIM, STRONG = "green", "yellow", "bold red", "dim", "bold"


def to_json(value: Any) -> str:
    """Write one JSON value."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # Terminal control characters, and what standard output cannot carry, are written as escapes,
    # so that nothing is lost.
    return text if clean_lines(text) == text and _carried(text) else json.dumps(value, indent=2)


def _carried(text: str) -> bool:
    """Say whether standard output has a sign for each character."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_json(value: Any) -> None:
    """Print one JSON value."""
    print(to_json(value))


def columns() -> int:
    """Give the width of a screen in columns: the terminal's, else `PIPE_WIDTH`."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def rows() -> int | None:
    """Give the height of the terminal in lines; None: this is none, and has no end."""
    return shutil.get_terminal_size().lines if sys.stdout.isatty() else None


def print_answer(answer: Any, lines: Callable[[], Iterable[Text | str]], as_json: bool) -> None:
    """Print an answer as one JSON value, or else the lines that say it."""
    if as_json:
        print_json(answer)
    else:
        print_lines(lines())


def print_done(answer: Mapping[str, Any], as_json: bool) -> None:
    """Print the answer to an order: what was done."""
    print_answer(answer, lambda: [answer["done"]], as_json)


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
        text = _without_control_characters(line if isinstance(line, Text) else Text(line))
        for part in folded(text, console.width) if terminal else [text]:
            console.print(part, soft_wrap=True)


def folded(line: Text, width: int) -> list[Text]:
    """Break a line that is wider than the screen between words, and indent the rest."""
    if line.cell_len <= width:
        return [line]
    indent = INDENT if width > 2 * INDENT else 0
    first, *more = line.wrap(Console(width=width), width)
    rest = Text(" ").join(more) if more else Text()
    under: Iterable[Text] = rest.wrap(Console(width=width), width - indent) if more else ()
    return [first, *(Text(" " * indent).append_text(each) for each in under)]


def cleaned(value: Any) -> Any:
    """Give a JSON value in which each text is one line without control characters."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list | tuple) else value


def _without_control_characters(text: Text) -> Text:
    """Remove terminal control characters from a line; styles keep their places."""
    said = clean_lines(text.plain)
    return text if said == text.plain else Text(said, spans=text.spans, style=text.style)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Put a line together from plain words and (words, style) pairs."""
    return Text.assemble(*parts)


def legend(lines: Iterable[Text | str]) -> list[Text | str]:
    """Explain the flags that a screen uses; nothing where it uses none."""
    said = marks.legend("\n".join(str(line) for line in lines))
    return ["", styled((said, WARN))] if said else []


def trouble(sentences: Iterable[str]) -> list[Text]:
    """Lines that need a human: the only ones that are red."""
    return [styled(("! ", BAD), (each, BAD)) for each in sentences]
