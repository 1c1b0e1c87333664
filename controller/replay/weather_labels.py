"""Which hours the rows of a file with exogenous forecasts are for, judged day by day. Pure, numpy.

Each row holds what was forecast of its own hour, or of 24 h later, and a file may change from one
to the other. Two signs tell:

* agreement: day-to-day changes of a forecast go with those of what it forecasts at one of the two
  labellings and not at the other;
* a repeated day: where rows of the day after become rows of their own day, that day stands twice.

Invariant: the judgement at 18:00 UTC of a day reads rows of that day and before, which are known
then under either labelling, and observations of the days before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DAY = 24
KNOWN_H = 6
"""The forecasts of a day are known, and labels judged, so many hours before it begins."""
LEAST_DAYS = 7
"""Days of evidence below which agreement decides nothing."""
WINDOW_DAYS = 28
"""Newest days whose agreement can overthrow a labelling."""
SURE = 3.0
"""Standard errors of the mean evidence that decide where nothing was decided yet."""
OVERTHROWN = 2.5
"""Standard errors that overthrow what was decided; the training months reach 1.3 against it."""
LONG_DAYS = 60
"""Days of evidence after which the likelier labelling is taken, however unsure."""
LEAST_HOURS = 6
"""Hours of a day with different values, below which its repetition says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """From row `since` on, rows are for `shift_h` later; so judged at hour `known_at`."""

    known_at: int
    since: int
    shift_h: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterpart:
    """A forecast by row, and what it rises with (sign 1) or falls with (sign -1) in its hour."""

    said: Array
    seen: Array
    sign: float = 1.0


def moves(judgements: Sequence[Judgement], rows: int, origin: int) -> Array:
    """By how many hours each row is moved, as judged at `origin`; NaN where undecided."""
    told = np.full(rows, np.nan)
    for each in judgements:
        if each.known_at <= origin:
            told[each.since :] = each.shift_h
    return told


def moved(said: Array, shift_h: Array) -> Array:
    """Place rows in their hours; of two rows for one hour the later holds. One day longer."""
    told = np.full(len(said) + DAY, np.nan)
    for shift in (DAY, 0):
        rows = np.flatnonzero((shift_h == shift) & np.isfinite(said))
        told[rows + shift] = said[rows]
    return told


def moved_then(said: Array, judgements: Sequence[Judgement]) -> Array:
    """Place rows as judged when each came, with nothing put right afterwards."""
    told = np.full(len(said), np.nan)
    for each in judgements:
        told[each.known_at // DAY * DAY :] = each.shift_h
    return moved(said, told)[: len(said)]


def judged(
    columns: Sequence[Array], witnesses: Sequence[Sequence[Counterpart]]
) -> tuple[Judgement, ...]:
    """Judge columns that are labelled alike.

    Args:
        columns: forecasts by row; the first row is a midnight's.
        witnesses: all are averaged, each the first of some of which anything is known that day;
            without any, rows are taken for forecasts of their own hour.

    Returns:
        Judgements by the hour in which they were made; nothing before the first.
    """
    if not witnesses:
        return (Judgement(known_at=0, since=0, shift_h=0),)
    for_later = _mean([_first([evidence(each) for each in some]) for some in witnesses])
    again = repeated(columns)
    told: list[Judgement] = []
    for day in range(len(again)):
        since, shift_h = 0, None
        newest = told[-1] if told else None
        if newest is not None and newest.shift_h == DAY and again[day]:
            since, shift_h = day, 0
        else:
            since, shift_h = _by_agreement(for_later, newest, day)
        if shift_h is not None:
            known_at = (day + 1) * DAY - KNOWN_H
            told.append(Judgement(known_at=known_at, since=since * DAY, shift_h=shift_h))
    return tuple(told)


def _by_agreement(for_later: Array, newest: Judgement | None, day: int) -> tuple[int, int | None]:
    """Give the first day of another labelling and its shift; None as long as none is evident."""
    first = newest.since // DAY if newest else 0
    part = for_later[first : max(first, day - 1)]
    known = np.isfinite(part)
    if known.sum() < LEAST_DAYS:
        return 0, None
    usual = max(float(part[known].std()), 1e-12)
    if newest is None:
        sure = float(part[known].mean()) / usual * np.sqrt(known.sum())
        if abs(sure) < SURE and known.sum() < LONG_DAYS:
            return 0, None
        return 0, DAY if sure > 0 else 0
    # Of the newest 7, 8, ... days, those count that speak most clearly against what was decided.
    against = np.where(known, part, 0.0)[: -WINDOW_DAYS - 1 : -1]
    against = against if newest.shift_h == 0 else -against
    days = np.maximum(np.cumsum(known[: -WINDOW_DAYS - 1 : -1]), 1)
    sure_by = np.cumsum(against) / usual / np.sqrt(days)
    sure_by[: LEAST_DAYS - 1] = 0.0
    if sure_by.max() < OVERTHROWN:
        return 0, None
    # It holds from the day on after which the evidence for it is greatest.
    since = day - 2 - int(np.argmax(np.cumsum(against)))
    return since, DAY - newest.shift_h


def evidence(witness: Counterpart) -> Array:
    """How much better each day's rows agree with the day after than with their own day.

    Products of day-to-day changes in units of their usual size so far, within -1 and 1: no single
    day outweighs a week. Of day `d`, it reads what was observed to the end of day `d + 1`; NaN
    where unknown.
    """
    said, seen = _days(witness.said), _days(witness.seen)
    rows = len(said)
    x, y = _changes(said), witness.sign * _changes(seen)
    own = np.full(rows, np.nan)
    own[:-1] = _means(x[:-1] * (y[1:] - y[:-1]))
    size_x, size_y = _usual(x), _usual(y)
    scale = np.full(rows, np.nan)
    scale[:-1] = size_x[:-1] * size_y[1:]
    told: Array = np.where(scale > 0, np.tanh(own / np.where(scale > 0, scale, 1.0)), np.nan)
    return told


def _first(each: Sequence[Array]) -> Array:
    """Take each day from the first that knows it."""
    told = each[0]
    for other in each[1:]:
        told = np.where(np.isfinite(told), told, other)
    return told


def _mean(each: Sequence[Array]) -> Array:
    """Average what is known of each day."""
    stacked = np.stack(each)
    known = np.isfinite(stacked)
    total, count = np.where(known, stacked, 0.0).sum(axis=0), known.sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def repeated(columns: Sequence[Array]) -> NDArray[np.bool_]:
    """Days on which every column that is known says exactly what it said the day before."""
    told = np.zeros(len(_days(columns[0])), dtype=bool)
    some, same = told.copy(), ~told
    for column in columns:
        days = _days(column)
        now, before = days[1:], days[:-1]
        known = np.isfinite(now).all(axis=1) & np.isfinite(before).all(axis=1)
        lively = np.array([len(np.unique(day)) > LEAST_HOURS for day in now], dtype=bool)
        some[1:] |= known & lively
        same[1:] &= ~(known & lively) | (now == before).all(axis=1)
    return np.asarray(some & same, dtype=np.bool_)


def _days(values: Array) -> Array:
    """Whole days of 24 hours, the last filled with nothing."""
    more = np.full(-len(values) % DAY, np.nan)
    return np.concatenate([values, more]).reshape(-1, DAY)


def _changes(days: Array) -> Array:
    told = np.full_like(days, np.nan)
    told[1:] = days[1:] - days[:-1]
    return told


def _means(days: Array) -> Array:
    """Mean of each day over what is known of it; NaN below half a day."""
    known = np.isfinite(days)
    count = known.sum(axis=1)
    total = np.where(known, days, 0.0).sum(axis=1)
    return np.where(count >= DAY // 2, total / np.maximum(count, 1), np.nan)


def _usual(days: Array) -> Array:
    """Root of the mean square up to each day, 0 before anything is known."""
    known = np.isfinite(days)
    total = np.cumsum(np.where(known, days**2, 0.0).sum(axis=1))
    told: Array = np.sqrt(total / np.maximum(np.cumsum(known.sum(axis=1)), 1))
    return told
