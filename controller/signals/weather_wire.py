"""A question to the forecasting child and its answer, as lines of JSON. Pure.

Invariant: what is unknown is null and never a number; an answer is read only when it has the form
of one, else `InputInvalid` says what is wrong.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.controller.journal.carbon.exogenous import ExogenousValue, day_ahead
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.exogenous import ExogenousKind

HOUR = timedelta(hours=1)
DIGITS = 6
ROWS = 3
MOST_HOURS = 400
"""More than any forecast of hours has."""

Column = tuple[str, str]
"""Series and kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherQuestion:
    """What is asked: the past of one carbon signal, and what was forecast beside it.

    Attributes:
        start: when the first hour starts.
        values: observed, g/kWh, NaN where unknown.
        columns: names of the exogenous series; `told`: of each the hours from `start` on, as far as
            any is told; `known_at`: the hour, counted from `start`, from which on each is known.
    """

    signal: str
    start: datetime
    values: tuple[float, ...]
    columns: tuple[str, ...]
    told: tuple[tuple[float, ...], ...]
    known_at: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherAnswer:
    """Value, 10 % and 90 % quantile of the hours after the values; empty: too little is known."""

    told: tuple[tuple[float, ...], ...] = ()
    by_weather: int = 0


def columns_of(
    rows: Iterable[ExogenousValue], start: datetime, origin: int, now: datetime
) -> Mapping[Column, Mapping[int, tuple[float, float]]]:
    """Give of each series and kind the value of each hour, and the hour from which it is known.

    Of hours that are over it is what was forecast a day before, which is what lessons are made of;
    of the others the newest. What is known only after `now` is left out.

    Args:
        rows: in any order.
        start: of hour 0.
        origin: the first hour that is not observed.
        now: aware.
    """
    found: dict[tuple[Column, int], list[ExogenousValue]] = {}
    for row in rows:
        if row.kind is ExogenousKind.PRICE:
            continue  # what a price would add was not tried
        hour = (row.start - start) // HOUR
        if hour >= 0 and row.known_at <= now:
            found.setdefault(((row.series, str(row.kind)), hour), []).append(row)
    columns: dict[Column, dict[int, tuple[float, float]]] = {}
    for (column, hour), several in found.items():
        chosen = (
            day_ahead(several) if hour < origin else max(several, key=lambda each: each.known_at)
        )
        known_h = math.ceil((chosen.known_at - start) / HOUR)
        # What came while values were late is known now, though they end earlier.
        known_at = float(min(known_h, origin) if hour >= origin else known_h)
        columns.setdefault(column, {})[hour] = (chosen.value, known_at)
    return columns


def question_of(
    signal: str,
    start: datetime,
    values: Sequence[float],
    columns: Mapping[Column, Mapping[int, tuple[float, float]]],
) -> WeatherQuestion:
    """Lay the columns on the hours of the values and after."""
    hours = max((hour + 1 for each in columns.values() for hour in each), default=0)
    names = sorted(columns)
    nothing = (math.nan, math.inf)
    laid = [[columns[name].get(hour, nothing) for hour in range(hours)] for name in names]
    return WeatherQuestion(
        signal=signal,
        start=start,
        values=tuple(values),
        columns=tuple(kind for _, kind in names),
        told=tuple(tuple(value for value, _ in each) for each in laid),
        known_at=tuple(tuple(known for _, known in each) for each in laid),
    )


def to_line(asked: WeatherQuestion) -> bytes:
    """Write a question."""
    told = {
        "signal": asked.signal,
        "start": asked.start.isoformat(),
        "values": _plain(asked.values),
        "columns": asked.columns,
        "told": [_plain(each) for each in asked.told],
        "known_at": [_plain(each) for each in asked.known_at],
    }
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def read_question(line: bytes) -> WeatherQuestion:
    """Read a question that `to_line` wrote."""
    told = json.loads(line)
    return WeatherQuestion(
        signal=told["signal"],
        start=datetime.fromisoformat(told["start"]),
        values=_numbers(told["values"], math.nan),
        columns=tuple(told["columns"]),
        told=tuple(_numbers(each, math.nan) for each in told["told"]),
        known_at=tuple(_numbers(each, math.inf) for each in told["known_at"]),
    )


def answer_line(answer: WeatherAnswer) -> bytes:
    """Write an answer."""
    told = {"told": [_plain(row) for row in answer.told], "by_weather": answer.by_weather}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def read_answer(line: bytes) -> WeatherAnswer:
    """Read an answer.

    Raises:
        InputInvalid: it has another form, or a number that cannot be an intensity.
    """
    try:
        found = json.loads(line)
        told = tuple(_numbers(row, math.nan) for row in found["told"])
        by_weather = int(found["by_weather"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InputInvalid(f"the answer is no forecast ({error!r})"[:200]) from error
    lengths = {len(row) for row in told}
    if told and (len(told) != ROWS or len(lengths) != 1 or max(lengths) > MOST_HOURS):
        raise InputInvalid(f"the answer has rows of {sorted(lengths)} hours, not {ROWS} alike")
    if any(value < 0 or math.isinf(value) for row in told for value in row):
        raise InputInvalid("the answer has an intensity below zero or without bound")
    return WeatherAnswer(told=told, by_weather=by_weather)


def _plain(values: Iterable[float]) -> list[float | None]:
    return [round(value, DIGITS) if math.isfinite(value) else None for value in values]


def _numbers(values: Sequence[float | None], unknown: float) -> tuple[float, ...]:
    return tuple(unknown if value is None else float(value) for value in values)
