"""Exogenous series beside a carbon series: wind, sun, load and weather as forecast. Pure, numpy.

What the coming hours' weather is worth cannot be seen in the past of one series. A panel holds, for
every hour of the past and for the hours ahead, what was forecast of it the day before and from
when that was known; `rows` makes features of it and of the series' own past for pairs of an origin
and a later hour.

Invariant: no feature of an origin reads an observed value at or after it, nor a forecast that was
not yet issued then; units and scales of the exogenous series do not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.forecast.lookback import DAY, LONG, WEEK, Lookback, look_back

Array = NDArray[np.float64]
Indices = NDArray[Any]

FARTHEST = 30
"""Leads in hours that are learned: at 18:00 UTC the whole of the next day is known."""
EARLIEST = LONG + WEEK
"""The first origin that has all features."""
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What was forecast of each hour, as of some moment.

    Attributes:
        start: when the first hour starts, aware UTC: that of the carbon series beside it.
        kinds: what each column tells (`wattmesh.telemetry.exogenous`).
        values: shape (hours, kinds), NaN where unknown; it may reach beyond the carbon series.
        known_at: the hour (counted from `start`) from whose start on a value is known, same shape.
    """

    start: datetime
    kinds: tuple[str, ...]
    values: Array
    known_at: Array

    def until(self, origin: int) -> "Panel":
        """Leave out what was not known at the start of hour `origin`."""
        known = self.known_at <= origin
        return Panel(
            start=self.start,
            kinds=self.kinds,
            values=np.where(known, self.values, np.nan),
            known_at=np.where(known, self.known_at, np.inf),
        )

    def since(self, first: int) -> "Panel":
        """Leave out the hours before `first`."""
        return Panel(
            start=self.start + first * HOUR,
            kinds=self.kinds,
            values=self.values[first:],
            known_at=self.known_at[first:] - first,
        )

    def only(self, columns: Sequence[int]) -> "Panel":
        """Keep some columns."""
        return Panel(
            start=self.start,
            kinds=tuple(self.kinds[each] for each in columns),
            values=self.values[:, columns],
            known_at=self.known_at[:, columns],
        )

    def complete(self, hours: int) -> "Panel":
        """Fill up to so many hours with nothing."""
        more = max(0, hours - len(self.values))
        rows = np.full((more, len(self.kinds)), np.nan)
        return Panel(
            start=self.start,
            kinds=self.kinds,
            values=np.concatenate([self.values, rows]),
            known_at=np.concatenate([self.known_at, np.where(np.isnan(rows), np.inf, rows)]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadPairs:
    """Origins and later hours, as indices of hours; the lead counts from 1."""

    origins: Indices
    hours: Indices

    @property
    def leads(self) -> Indices:
        """How many hours ahead each hour ends."""
        return self.hours - self.origins + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The observed hours of a series, with running means; `back` ends with the newest hour."""

    start: datetime
    back: Lookback

    @classmethod
    def of(cls, values: Array, start: datetime) -> "Past":
        """Take hours without gaps."""
        return cls(start=start, back=look_back(values, start.hour))

    def calendar(self, hours: Indices) -> Array:
        """Hour of the day, season and weekday as smooth features, shape (hours, 9)."""
        clock = 2 * np.pi * ((hours + self.start.hour) % DAY) / DAY
        days = (hours + self.start.hour) // DAY
        season = 2 * np.pi * (days + self.start.timetuple().tm_yday) / 365.25
        weekday = (days + self.start.weekday()) % 7
        columns = [np.cos(clock), np.sin(clock), np.cos(2 * clock), np.sin(2 * clock)]
        columns += [np.cos(season), np.sin(season)]
        columns += [(weekday == day).astype(np.float64) for day in (0, 5, 6)]
        return np.stack(columns, axis=-1)

    def profile(self, pairs: LeadPairs) -> Array:
        """The anchored profile of each pair, kept off zero."""
        back = self.back
        leads = np.arange(1, FARTHEST + 1)
        unique, place = np.unique(pairs.origins, return_inverse=True)
        told = back.anchored(unique, leads)[place, pairs.leads - 1]
        found: Array = np.maximum(told, 1e-3 * back.level(pairs.origins))
        return found

    def features(self, pairs: LeadPairs, profile: Array) -> Array:
        """What the series' own past says, as logarithms of ratios; shape (pairs, features)."""
        back, origins = self.back, pairs.origins
        level = back.level(origins)
        floor = 1e-3 * level
        same = origins + (pairs.leads - 1) % DAY
        newest = back.values[origins - 1] - back.week[origins - 1]
        few = np.mean(
            [back.values[origins - ago] - back.week[origins - ago] for ago in range(1, 7)], axis=0
        )
        over_profile = [
            back.values[same - DAY],
            back.values[same - 2 * DAY],
            back.values[same - WEEK],
            back.week[same],
            back.long[same],
            back.mean(origins, 3),
        ]
        over_level = [profile, back.mean(origins, DAY), back.mean(origins, LONG)]
        columns = [np.log(np.maximum(each, floor) / profile) for each in over_profile]
        columns += [np.log(np.maximum(each, floor) / level) for each in over_level]
        columns += [newest / level, few / level, pairs.leads / DAY]
        return np.stack(columns, axis=-1)


def exogenous_features(panel: Panel, pairs: LeadPairs) -> Array:
    """What is forecast of an hour, and how it differs from the days before; NaN where unknown.

    Shape (pairs, 5 x kinds).
    """
    hours, lag = pairs.hours, lagged(pairs)
    values = panel.values
    days = _day_means(values, panel.start.hour)
    week = np.full_like(values, np.nan)
    week[WEEK:] = np.mean(_week_before(values), axis=0)
    week_known = np.full_like(values, np.inf)
    week_known[WEEK:] = np.max(_week_before(panel.known_at), axis=0)
    days_known = _known_days(panel)
    parts = [
        values[hours],
        values[hours] - values[lag],
        values[hours] - week[hours],
        days[hours],
        days[hours] - days[hours - DAY],
    ]
    own = np.where(np.isfinite(panel.known_at), days_known, np.inf)[hours]
    before = [own, panel.known_at[lag], week_known[hours], own, days_known[hours - DAY]]
    known = [np.maximum(own, each) <= pairs.origins[:, None] for each in before]
    told = [np.where(seen, part, np.nan) for seen, part in zip(known, parts, strict=True)]
    return np.concatenate(told, axis=1)


def _week_before(told: Array) -> list[Array]:
    """The seven hours at the same time of day before each hour from `WEEK` on."""
    return [told[WEEK - ago * DAY : len(told) - ago * DAY] for ago in range(1, 8)]


def lagged(pairs: LeadPairs) -> Indices:
    """The newest observed hour at the same time of day."""
    return pairs.hours - np.where(pairs.leads > DAY, 2 * DAY, DAY)


def _day_means(values: Array, clock: int) -> Array:
    """Mean of each hour's day (UTC) over what is known of it."""
    days = (np.arange(len(values)) + clock) // DAY
    known = ~np.isnan(values)
    told = np.empty_like(values)
    for column in range(values.shape[1]):
        total = np.bincount(days, np.where(known[:, column], values[:, column], 0.0))
        count = np.bincount(days, known[:, column])
        told[:, column] = np.where(count > 0, total / np.maximum(count, 1), np.nan)[days]
    return told


def _known_days(panel: Panel) -> Array:
    """The hour from which nothing more becomes known of each hour's day, so its mean stands."""
    known_at = panel.known_at
    days = (np.arange(len(known_at)) + panel.start.hour) // DAY
    told = np.full((int(days[-1]) + 1 if len(days) else 0, known_at.shape[1]), -np.inf)
    np.maximum.at(told, days, np.where(np.isfinite(known_at), known_at, -np.inf))
    return told[days]
