"""What is left out of `status` where a terminal is too low for all of it.

Invariant: what is wrong stands first and whole; what is left out is counted, with the command that
shows it. In a pipe, or where everything fits, nothing is left out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import DIM, folded, styled

Lines = Sequence[Text | str]

PROMPT = 1
"""The line of the shell that stays below."""

LEAST_RUNS = 3
"""As many rows of runs as red lines leave in any case: the head of the table, and two."""

ALL = "`wattmesh status | cat` shows all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """The parts of the screen, from the top: each line as it is written, before it is folded.

    `why`: sentences on single runs. `rows`: the head of the table, then a line for each run.
    """

    head: Lines
    red: Lines
    sources: Lines
    rows: Lines
    below: Lines
    why: Lines
    last: Lines


def affected_first(
    runs: Sequence[Mapping[str, Any]], trouble: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Put the runs that red lines name first, in the order of those; keep the order otherwise."""

    def first_named(run: Mapping[str, Any]) -> int:
        name = re.compile(rf"(?<![\w.-]){re.escape(run['name'])}(?![\w-])")
        return next((n for n, each in enumerate(trouble) if name.search(each)), len(trouble))

    return sorted(runs, key=first_named)


def fit(parts: Sections, columns: int, rows: int | None) -> list[Text | str]:
    """Give the lines of a screen that fit into a terminal; all of them where `rows` is None."""
    whole = [
        *(*parts.head, *parts.red, *parts.sources, ""),
        *(*parts.rows, *parts.below, "", *parts.why, *parts.last),
    ]
    if rows is None or height(whole, columns) <= rows - PROMPT:
        return whole
    left = rows - PROMPT - height([*parts.head, *parts.sources, *parts.last], columns)
    reds, left = _kept(parts.red, left - LEAST_RUNS - 3, columns, "red line")
    left -= height(parts.below, columns) - LEAST_RUNS - 1
    table, left = _kept(parts.rows, max(left, LEAST_RUNS), columns, "run")
    why, _ = _kept(parts.why, left - 1, columns, "reason")
    if len(why) == 1 < len(parts.why):
        why = []  # not one reason fits; the commands below tell them
    closing = [] if why else [styled((f"`wattmesh why RUN` says why; {ALL}", DIM))]
    return [
        *parts.head,
        *reds,
        *parts.sources,
        "",
        *table,
        *parts.below,
        *why,
        *closing,
        *parts.last,
    ]


def height(lines: Lines, columns: int) -> int:
    """Count the lines that a terminal needs."""
    return sum(
        max(1, len(list(folded(each if isinstance(each, Text) else Text(each), columns))))
        for each in lines
    )


def _kept(lines: Lines, room: int, columns: int, noun: str) -> tuple[list[Text | str], int]:
    """Keep the first lines that fit, with a line that counts the others; give the room left."""
    if height(lines, columns) <= room:
        return [*lines], room - height(lines, columns)
    kept: list[Text | str] = []
    for each in lines:
        if height([*kept, each], columns) > room - 1:
            break
        kept.append(each)
    more = len(lines) - len(kept)
    kept.append(styled((f"and {formats.plural(more, f'more {noun}')}: {ALL}", DIM)))
    return kept, room - height(kept, columns)
