"""What a replayed policy is told of the grid ahead: our own forecast, the truth, yesterday, a file.

Invariant: except in `perfect`, `perfect-24h` and `own-24h`, which tell the truth always, for a day
and after a day, no forecast contains anything recorded after the running interval; all calls for
the same interval get the same slots.
"""

import csv
import gzip
import io
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from wattmesh.controller.replay.grid import GridSeries, cut
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.trace import MOST_BYTES
from wattmesh.named_file import read_named
from wattmesh.policies.decision import Climatology, IntensitySlot
from wattmesh.policies.forecast.climatology import climatology_of, extended
from wattmesh.policies.forecast.predict import Lessons, predict, teach
from wattmesh.policies.forecast.series import Observed

Slots = tuple[IntensitySlot, ...]

HISTORY = timedelta(days=365)
"""The longest history that our own forecast gets."""

AHEAD_H = 72.0
LONGEST = timedelta(days=30)
"""The furthest that a plan looks ahead."""

DAY, HOUR = timedelta(days=1), timedelta(hours=1)


class ReplayForecast(Protocol):
    """Tells what is known of the grid at a moment."""

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Give the running interval as recorded, then the forecast up to `end` at most."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfectForecast:
    """The truth: a bound on what forecasts can do."""

    grid: GridSeries

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Give the recorded values."""
        return cut(self.grid, now, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceForecast:
    """Each hour as the same hour of the last known day."""

    grid: GridSeries

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Repeat the last 24 h until `end`."""
        grid, index = self.grid, self.grid.index(now)
        per_day = max(1, DAY // grid.step)
        day = grid.values[max(0, index - per_day + 1) : index + 1]
        running = grid.slots[index]
        count = max(1, -((running.start - end) // grid.step))
        return tuple(
            IntensitySlot(
                start=running.start + n * grid.step,
                end=running.start + (n + 1) * grid.step,
                # The running interval is the newest of the day that repeats.
                g_per_kwh=day[(n - 1) % len(day)],
            )
            for n in range(count)
        )


class OwnForecast:
    """Our own forecast, made from the recorded history before now, and kept for further calls."""

    def __init__(self, grid: GridSeries) -> None:
        """Make a new forecast at most once an hour; until then the newest is cut shorter."""
        self._grid = grid
        self._made: dict[datetime, Slots] = {}
        self._taught: tuple[datetime, Lessons | None, Climatology | None] | None = None

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Forecast from what was recorded up to the running interval, which is known."""
        grid = self._grid
        running = grid.slots[grid.index(now)]
        asked = grid.start + ((running.end - grid.start) // HOUR) * HOUR
        if asked not in self._made:
            self._made[asked] = self._predict(asked)
        return joined((running,), self._made[asked])

    def _predict(self, at: datetime) -> Slots:
        """Forecast what comes after `at`, knowing all values before it."""
        grid = self._grid
        known = (at - grid.start) // grid.step
        first = max(0, known - HISTORY // grid.step)
        start, values = grid.start + first * grid.step, grid.values[first:known]
        observed = Observed(start=start, interval_s=grid.step.total_seconds(), values=values)
        if self._taught is None or not timedelta() <= at - self._taught[0] < DAY:
            self._taught = (at, teach(observed), climatology_of(observed))
        _, lessons, climatology = self._taught
        slots = predict(observed, now=at, hours=AHEAD_H, lessons=lessons).slots
        return extended(slots, climatology, at, at + LONGEST) if climatology else slots


@dataclass(frozen=True, slots=True, kw_only=True)
class ForesightForecast:
    """The truth for some time ahead, then another forecast: what would a better one be worth?

    Attributes:
        sight: how far ahead the truth is known.
    """

    grid: GridSeries
    sight: timedelta
    beyond: ReplayForecast

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Give the recorded values within sight, then the other forecast."""
        seen = cut(self.grid, now, now + self.sight)
        return joined(seen, self.beyond.slots(now, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class HindsightBeyond:
    """A forecast for some time ahead, then the truth: what do its errors in that time cost?"""

    grid: GridSeries
    reach: timedelta
    near: ReplayForecast

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Give the other forecast within reach, and the recorded values after."""
        told = [each for each in self.near.slots(now, end) if each.start < now + self.reach]
        return joined(tuple(told), cut(self.grid, told[-1].end, max(end, told[-1].end)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedForecasts:
    """Forecasts from a file, each used from when it was issued until the next one."""

    grid: GridSeries
    issued: tuple[datetime, ...]
    points: tuple[Slots, ...]

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Give the running interval and what the newest forecast says after it."""
        running = self.grid.slots[self.grid.index(now)]
        found = bisect_right(self.issued, now) - 1
        if found < 0:
            return (running,)
        return joined((running,), self.points[found])


def joined(known: Slots, told: Slots) -> Slots:
    """Give the known slots, then those told of later time, unless there is a gap between."""
    last = known[-1].end
    later = [each for each in told if each.end > last]
    if not later or later[0].start > last:
        return known
    return (*known, replace(later[0], start=last), *later[1:])


def from_file(path: Path, grid: GridSeries) -> RecordedForecasts:
    """Read forecasts: a trace file with one more column, `generated_at_utc`.

    Raises:
        InputInvalid: the file is not of that kind; the message names the row.
    """
    try:
        data = read_named(path, MOST_BYTES)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InputInvalid(f"{path} is larger than {MOST_BYTES >> 20} MiB; cut it")
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputInvalid(f"{path} cannot be read as forecasts: {error}") from error
    issues: dict[datetime, list[tuple[datetime, float]]] = {}
    rows = csv.DictReader(line for line in io.StringIO(text) if not line.startswith("#"))
    for number, row in enumerate(rows, start=2):
        try:
            issued_at, start = (_moment(row[key]) for key in ("generated_at_utc", "timestamp_utc"))
            value = float(row["carbon_intensity_gco2eq_per_kwh"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputInvalid(
                f"{path}, row {number} is no forecast ({error!r}); it needs generated_at_utc, "
                "timestamp_utc and carbon_intensity_gco2eq_per_kwh"
            ) from error
        issues.setdefault(issued_at, []).append((start, value))
    if not issues:
        raise InputInvalid(f"{path} holds no forecast")
    ordered = sorted(issues)
    return RecordedForecasts(
        grid=grid,
        issued=tuple(ordered),
        points=tuple(_slots_of_issue(sorted(issues[each]), grid.step) for each in ordered),
    )


def _moment(text: str) -> datetime:
    """Read a time that names its zone."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return at.astimezone(UTC)


def _slots_of_issue(points: list[tuple[datetime, float]], step: timedelta) -> Slots:
    """Make the slots of one issue, up to its first gap."""
    slots: list[IntensitySlot] = []
    for start, value in points:
        if slots and slots[-1].end != start:
            break
        slots.append(IntensitySlot(start=start, end=start + step, g_per_kwh=value))
    return tuple(slots)


def maker(mode: str) -> Callable[[GridSeries], ReplayForecast]:
    """Give the function that makes a grid's forecast.

    Args:
        mode: `own`, `perfect`, `persist`, `perfect-24h`, `own-24h` (or other hours), or the path of
            a file.
    """
    if hours_of(mode) is not None:
        return lambda grid: mended(mode, grid, OwnForecast(grid))
    kinds: dict[str, Callable[[GridSeries], ReplayForecast]] = {
        "own": OwnForecast,
        "perfect": lambda grid: PerfectForecast(grid=grid),
        "persist": lambda grid: PersistenceForecast(grid=grid),
    }
    return kinds.get(mode) or (lambda grid: from_file(Path(mode), grid))


def mended(mode: str, grid: GridSeries, own: ReplayForecast) -> ReplayForecast:
    """Put the truth into our own forecast where the mode says so; elsewhere it stays as it is."""
    hours = hours_of(mode)
    if hours is None:
        return own
    if mode.startswith("perfect"):
        return ForesightForecast(grid=grid, sight=hours, beyond=own)
    return HindsightBeyond(grid=grid, reach=hours, near=own)


def hours_of(mode: str) -> timedelta | None:
    """Read for how long `perfect-24h` or `own-24h` holds; None for another mode."""
    found = re.fullmatch(r"(?:perfect|own)-(\d{1,4})h", mode)
    return timedelta(hours=int(found[1])) if found else None
