"""Draw a plan in characters: the grid as a curve, mu as lines through it, a letter per point. Pure.

Invariant: a column of the curve, of the letters and of the time axis is the same stretch of time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.controller.cli import formats

ROWS = 6
LABEL = 12
"""Columns of the labels to the left of the curve."""

ASLEEP, DONE = "·", " "
TICK = 14
"""Least columns between two times on the axis."""

STEPS_H = (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 672)
"""Hours between two times of the axis."""

MOST_ABOVE = 1.5
"""A mu above this many times the highest intensity is named below, not drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The stretch of time that is drawn, in columns."""

    start: datetime
    end: datetime
    width: int

    def middle(self, column: int) -> datetime:
        """Give the middle of a column."""
        return self.start + (self.end - self.start) * (column + 0.5) / self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Which row a value is in, the lowest row 0."""

    low: float
    high: float

    def row(self, value: float) -> int:
        """Give the row."""
        span = self.high - self.low
        return round((value - self.low) / span * (ROWS - 1)) if span > 0 else ROWS // 2

    def value(self, row: int) -> float:
        """Give the value in the middle of a row."""
        return self.low + (self.high - self.low) * row / (ROWS - 1)


def frame(answer: Mapping[str, Any], width: int) -> Frame:
    """Draw from the cycle's time to the end of the plan, or to the deadline where that is later."""
    ends = [answer["plan"]["finish_at"], answer["deadline"]]
    return Frame(
        start=datetime.fromisoformat(answer["at"]),
        end=max(datetime.fromisoformat(each) for each in ends if each),
        width=width,
    )


def curve(answer: Mapping[str, Any], drawn: Frame) -> list[str]:
    """Draw the grid, the highest row first, with mu at the side."""
    values = [_mean(answer["grid"], drawn, column) for column in range(drawn.width)]
    known = [each for each in values if each is not None]
    if not known:
        return []
    marks = [each for each in answer["plan"]["mu"] if shown(each["g_per_kwh"], max(known))]
    levels = [each["g_per_kwh"] for each in marks]
    scale = Scale(low=min(*known, *levels, max(known)), high=max(*known, *levels, min(known)))
    cells = _curve_cells([None if each is None else scale.row(each) for each in values])
    lines = []
    for row in reversed(range(ROWS)):
        ours = [each for each in marks if scale.row(each["g_per_kwh"]) == row]
        line = "".join(_cell(each, mu=bool(ours)) for each in cells[row])
        title = "g/kWh " if row == ROWS - 1 else ""
        label = f"{title}{formats.intensity(scale.value(row))}".rjust(LABEL - 2)
        lines.append(f"{label} ┤{line}  {_mu(ours)}".rstrip())
    return lines


def shown(mu_g_per_kwh: float, highest: float) -> bool:
    """Say whether a mu is near enough to the curve to be drawn with it."""
    return mu_g_per_kwh <= MOST_ABOVE * highest


def letters(steps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Give each point of the plan its own letter: the first of its id, where those differ."""
    ids = [each for each in dict.fromkeys(step["point"] for step in steps) if each]
    firsts = [each[0] for each in ids]
    spare = (each for each in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    clear = len(set(firsts)) == len(ids)
    named = firsts if clear else [next(spare) for _ in ids]
    return {"": ASLEEP, **dict(zip(ids, named, strict=True))}


def points(answer: Mapping[str, Any], drawn: Frame) -> str:
    """Draw the letter of the run's point in each column."""
    steps, names = answer["plan"]["steps"], letters(answer["plan"]["steps"])
    line = ""
    for column in range(drawn.width):
        at = drawn.middle(column)
        step = next((each for each in steps if _holds(each, at)), None)
        line += names[step["point"]] if step else DONE
    return f"{'point':<{LABEL}}{line}".rstrip()


def axis(drawn: Frame) -> str:
    """Write the times of the axis: its start, then round times."""
    line = _time(drawn.start, drawn)
    for at in ticks(drawn.start, drawn.end, drawn.width // TICK):
        column = round((at - drawn.start) / (drawn.end - drawn.start) * drawn.width)
        if column > len(line) + 1:
            line = line.ljust(column) + _time(at, drawn)
    return f"{'':<{LABEL}}{line}"


def ticks(start: datetime, end: datetime, most: int) -> list[datetime]:
    """Give at most `most` round times (UTC) between two moments."""
    span = (end - start) / timedelta(hours=1)
    step_h = next((each for each in STEPS_H if span / each <= max(1, most)), STEPS_H[-1])
    step = timedelta(hours=step_h)
    midnight = start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + math.floor((start - midnight) / step + 1) * step
    found = []
    while at < end:
        found.append(at)
        at += step
    return found


def _time(at: datetime, drawn: Frame) -> str:
    """Write a time with its weekday, or with its date where weekdays would be ambiguous."""
    far = drawn.end - drawn.start > timedelta(days=6)
    return f"{at.astimezone(UTC):{'%d %b %H:%M' if far else '%a %H:%M'}}"


def _holds(span: Mapping[str, Any], at: datetime) -> bool:
    return datetime.fromisoformat(span["start"]) <= at < datetime.fromisoformat(span["end"])


def _mean(grid: Sequence[Mapping[str, Any]], drawn: Frame, column: int) -> float | None:
    """Give the mean intensity of a column; None where it is not known."""
    step = (drawn.end - drawn.start) / drawn.width
    start, end = drawn.start + step * column, drawn.start + step * (column + 1)
    total = seconds = 0.0
    for slot in grid:
        first = max(start, datetime.fromisoformat(slot["start"]))
        last = min(end, datetime.fromisoformat(slot["end"]))
        overlap_s = (last - first).total_seconds()
        if overlap_s > 0:
            total += slot["g_per_kwh"] * overlap_s
            seconds += overlap_s
    return total / seconds if seconds else None


def _curve_cells(rows: Sequence[int | None]) -> list[list[str]]:
    cells = [[" "] * len(rows) for _ in range(ROWS)]
    before: int | None = None
    for column, row in enumerate(rows):
        if row is None:
            before = None
            continue
        if before is None or before == row:
            cells[row][column] = "─"
        else:
            rises = row > before
            cells[before][column] = "╯" if rises else "╮"
            cells[row][column] = "╭" if rises else "╰"
            for between in range(min(before, row) + 1, max(before, row)):
                cells[between][column] = "│"
        before = row
    return cells


def _cell(drawn: str, *, mu: bool) -> str:
    """Draw the line of mu only where the curve leaves the cell empty."""
    return "┄" if mu and drawn == " " else drawn


def _mu(marks: Sequence[Mapping[str, Any]]) -> str:
    """Write the mus of a row; the legend says which points they separate."""
    levels = [formats.intensity(each["g_per_kwh"]) for each in marks]
    return f"mu = {', '.join(levels)}" if levels else ""
