"""A recorded grid as replay needs it: a value for every interval, and grams over any time. I/O in.

Invariant: every value is one that was recorded and found plausible; a gap takes the value before
it, and `filled` counts these, so that they are not taken for measured.
"""

from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter
from wattmesh.integrations.carbon.reading.trace import load
from wattmesh.policies.decision import IntensitySlot


@dataclass(frozen=True, kw_only=True)
class GridSeries:
    """One series on one grid of time.

    Attributes:
        name: of the trace. `kind`: average or marginal. `zone`: as the trace spells it.
        values: g/kWh, one for each `step` from `start` on.
        filled: intervals that were missing or not plausible.
    """

    name: str
    kind: str
    start: datetime
    step: timedelta
    values: tuple[float, ...]
    filled: int = 0
    zone: str = ""

    @property
    def end(self) -> datetime:
        """When the last interval is over."""
        return self.start + len(self.values) * self.step

    @cached_property
    def slots(self) -> tuple[IntensitySlot, ...]:
        """All intervals."""
        return tuple(
            IntensitySlot(
                start=self.start + n * self.step,
                end=self.start + (n + 1) * self.step,
                g_per_kwh=value,
            )
            for n, value in enumerate(self.values)
        )

    def index(self, at: datetime) -> int:
        """Give the index of the interval that holds `at`, or of the nearest one."""
        return min(len(self.values) - 1, max(0, (at - self.start) // self.step))

    @cached_property
    def _burnt(self) -> tuple[float, ...]:
        """Intensity integrated up to each border, g/kWh x s."""
        step_s = self.step.total_seconds()
        return (0.0, *accumulate(value * step_s for value in self.values))

    def burnt(self, at: datetime) -> float:
        """Give the intensity integrated from the start until `at`, g/kWh x s."""
        index = self.index(at)
        into_s = (at - self.start - index * self.step).total_seconds()
        return self._burnt[index] + self.values[index] * into_s


def read(path: Path) -> GridSeries:
    """Read a trace file (`wattmesh.integrations.carbon.reading.trace`).

    Raises:
        InputInvalid: it is not a trace, or no value in it is plausible.
    """
    trace = load(path)
    kind = trace.signal.kind
    judge = PlausibilityFilter(kind)
    known = {
        row.start: row.g_per_kwh
        for row in trace.rows
        if row.g_per_kwh is not None and not judge.fault(row.start, row.g_per_kwh)
    }
    if not known:
        raise InputInvalid(f"{path} has no value that can be believed")
    values: list[float] = []
    start = min(known)  # before it there is nothing that a gap could take
    filled, last = 0, known[start]
    for n in range((trace.end - start) // trace.step):
        value = known.get(start + n * trace.step)
        filled += value is None
        last = last if value is None else value
        values.append(last)
    return GridSeries(
        name=path.name.removesuffix(".gz").removesuffix(".csv"),
        kind=kind,
        start=start,
        step=trace.step,
        values=tuple(values),
        filled=filled,
        zone=trace.signal.zone,
    )


def starts(
    grid: GridSeries,
    *,
    window: timedelta,
    history: timedelta,
    count: int,
    since: datetime | None = None,
) -> list[datetime]:
    """Spread `count` starts evenly over a trace, on its whole hours, each with its history.

    None is before `since`.

    Returns:
        Fewer where the trace is short; none where not even one window fits.
    """
    first, last = grid.start + history, grid.end - window
    if since is not None:
        first = max(first, grid.start + -((grid.start - since) // grid.step) * grid.step)
    if last < first or count < 1:
        return []
    hour = timedelta(hours=1)
    found = [first + (last - first) * n / max(1, count - 1) for n in range(count)]
    whole = [grid.start + ((each - grid.start) // hour) * hour for each in found]
    return sorted({max(first, each) for each in whole})


def cut(grid: GridSeries, start: datetime, end: datetime) -> tuple[IntensitySlot, ...]:
    """Give the intervals that overlap [start, end), whole."""
    high = bisect_left(grid.slots, end, key=lambda slot: slot.start)
    return grid.slots[grid.index(start) : high]
