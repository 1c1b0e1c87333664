"""What the learned forecast looks at: linear features of the hours before an origin. Pure, numpy.

An origin is the number of hours known so far: origin s knows values[:s] and its lead k = 1, 2, ...
is the hour s + k - 1. Every feature is a difference of means of known values in g/kWh, so a series
of another scale has features of that scale.

Invariant: no feature of origin s reads values[s:].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.forecast.anchored import DECAY_H, LEVEL

Array = NDArray[np.float64]
Indices = NDArray[Any]

DAY = 24
WEEK = 7 * DAY
LONG = 14 * DAY
"""The longest mean that is looked at, so the earliest origin."""
REACH = 72
"""Leads further ahead than this are not learned: their hour of the week is not known in time."""
WEEKS = 8
"""Weeks that the habit of an hour of the week is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookback:
    """Running means of one series, from which features of any origin are picked.

    Attributes:
        clock: hour of the day, UTC, of the first value.
        values: g/kWh per hour, gaps filled from earlier values.
        sums: sums[i] is the sum of values[:i].
        week, long: mean of the same hour over the 7 and 14 days before each hour, one day further
            than the values.
        habit: how much each hour of the week usually differs from the week around it, three days
            further than the values.
    """

    clock: int
    values: Array
    sums: Array
    week: Array
    long: Array
    habit: Array

    def mean(self, origins: Indices, since: int, until: int = 0) -> Array:
        """Mean of the hours [origin - since, origin - until)."""
        told: Array = (self.sums[origins - until] - self.sums[origins - since]) / (since - until)
        return told

    def level(self, origins: Indices) -> Array:
        """Mean of the last week, kept off zero: what shares are taken of."""
        floor = 1e-3 * max(float(self.values.mean()), 1e-9)
        told: Array = np.maximum(self.mean(origins, WEEK), floor)
        return told

    def anchored(self, origins: Indices, leads: Indices) -> Array:
        """The anchored profile, shape (origins, leads)."""
        anchor = self._off(origins, 1)
        drift = LEVEL * (self.mean(origins, DAY) - self.mean(origins, WEEK))
        weight = np.exp(-leads / DECAY_H)
        profile = self.week[origins[:, None] + (leads - 1) % DAY]
        told: Array = profile + weight * anchor[:, None] + (1 - weight) * drift[:, None]
        return told

    def _off(self, origins: Indices, ago: int) -> Array:
        """Distance of the hour `ago` hours before the origin from its profile then."""
        told: Array = self.values[origins - ago] - self.week[origins - ago]
        return told

    def _off_mean(self, origins: Indices, since: int, until: int = 0) -> Array:
        told: Array = np.mean([self._off(origins, ago + 1) for ago in range(until, since)], axis=0)
        return told

    def features(self, origins: Indices, leads: Indices) -> Array:
        """What a lead's forecast is a linear function of, beside the anchored profile.

        Shape (origins, leads, features).
        """
        level = self.level(origins)
        drift = self.mean(origins, DAY) - level
        newest, second = self._off(origins, 1), self._off(origins, 2)
        few = self._off_mean(origins, 6)
        hours = origins[:, None] + (leads - 1)
        same = origins[:, None] + (leads - 1) % DAY
        profile = self.week[same]
        yesterday = self.values[same - DAY] - profile - drift[:, None]
        turn = 2 * np.pi * (hours + self.clock) / DAY
        flat = np.ones(len(leads))
        columns = [
            newest[:, None] * np.exp(-leads / DECAY_H),
            newest[:, None] * flat,
            (newest - second)[:, None] * np.exp(-(leads - 1) / 4.0),
            few[:, None] * flat,
            drift[:, None] * flat,
            yesterday,
            self.habit[hours],
            self.habit[origins - 1][:, None] * np.exp(-leads / DECAY_H),
            np.mean([self.habit[origins - ago] for ago in range(1, DAY + 1)], axis=0)[:, None]
            * flat,
            (self.mean(origins, 2 * DAY, DAY) - level)[:, None] * flat,
            (self.mean(origins, LONG) - level)[:, None] * flat,
            self.long[same] - profile - (self.mean(origins, LONG) - level)[:, None],
            (profile / level[:, None] - 1) * drift[:, None],
            *(off[:, None] * wave for off in (newest, few, drift) for wave in _waves(turn)),
        ]
        return np.stack(columns, axis=-1)

    def shape(self, origins: Indices) -> Array:
        """The last days as parts of the week's mean, alone and by the hour of the origin.

        Shape (origins, features).
        """
        level = self.level(origins)
        parts = [self._off(origins, 1)]
        parts += [self._off_mean(origins, until + 3, until) for until in range(0, DAY, 3)]
        parts += [
            1.5 * (self.mean(origins, DAY * (day + 1), DAY * day) - level) for day in range(4)
        ]
        parts += [1.5 * (self.mean(origins, LONG) - level)]
        parts += [self.habit[origins + ahead] for ahead in range(0, REACH, 6)]
        parts += [self.habit[origins - ago] for ago in range(1, DAY, 6)]
        told = np.stack(parts, axis=-1) / level[:, None]
        turn = (2 * np.pi * (origins + self.clock) / DAY)[:, None]
        sizes = (0.5, 0.5, 0.3, 0.3)
        by_hour = [size * told * wave for size, wave in zip(sizes, _waves(turn), strict=True)]
        return np.concatenate([0.8 * told, *by_hour], axis=1)


def _waves(turn: Array) -> list[Array]:
    """Once and twice around the day: by these a coefficient may differ by the hour."""
    return [np.cos(turn), np.sin(turn), np.cos(2 * turn), np.sin(2 * turn)]


def filled(values: Sequence[float]) -> Array:
    """Fill what is unknown from the day before, at the start from the first known value."""
    told = np.array(values, dtype=np.float64)
    unknown = np.flatnonzero(~(told >= 0))
    first = next((value for value in told if value >= 0), 0.0)
    for at in unknown:
        told[at] = told[at - DAY] if at >= DAY else first
    return told


def look_back(values: Array, clock: int) -> Lookback:
    """Prepare a series of hours without gaps; at least `LONG` of them.

    Args:
        values: g/kWh, oldest first.
        clock: hour of the day, UTC, of the first.
    """
    week = _same_hour(values, 7)
    return Lookback(
        clock=clock,
        values=values,
        sums=np.concatenate([[0.0], np.cumsum(values)]),
        week=week,
        long=_same_hour(values, LONG // DAY),
        habit=_habit(values),
    )


def _same_hour(values: Array, days: int) -> Array:
    """Mean of the same hour over the days before; before there are so many, of those there are."""
    count = len(values)
    total = np.zeros(count + DAY)
    known = np.zeros(count + DAY)
    for day in range(1, days + 1):
        first = day * DAY
        last = count + DAY - first
        total[first:] += values[:last]
        known[first:] += 1
    total[:DAY], known[:DAY] = values[:DAY], 1
    return total / known


def _habit(values: Array) -> Array:
    """How an hour of the week usually differs from the same hour of the days around it.

    The mean over `WEEKS` weeks, smoothed over five hours, made smaller where few weeks are known.
    An hour counts once the three days after it are known, which is a week before it is used.
    """
    count = len(values)
    around = np.full(count, np.nan)
    inside = slice(3 * DAY, count - 3 * DAY)
    around[inside] = np.mean(
        [values[3 * DAY + day * DAY : count - 3 * DAY + day * DAY] for day in range(-3, 4)], axis=0
    )
    differs = values - around
    smooth = np.full(count, np.nan)
    smooth[2:-2] = np.mean([differs[2 + at : count - 2 + at] for at in range(-2, 3)], axis=0)
    total = np.zeros(count + REACH)
    known = np.zeros(count + REACH)
    for week in range(1, WEEKS + 1):
        earlier = smooth[: max(0, count + REACH - week * WEEK)]
        told = ~np.isnan(earlier)
        total[week * WEEK : week * WEEK + len(earlier)] += np.where(told, earlier, 0.0)
        known[week * WEEK : week * WEEK + len(earlier)] += told
    return total / (known + 2.0)
