"""What a rival rule may look at, and what it answers. Types only.

Invariant: a rule is a function of one `RivalInputs` and nothing else; it knows the grid ahead only
as the forecast that every policy is given.
"""

from collections.abc import Callable
from dataclasses import dataclass

SLEEP = ""
"""Answer of a rule that wants the run suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedPoint:
    """A point as rules see it. `power_w`: charged there, idle GPUs that the job holds included."""

    id: str
    layout: str
    gpus: int
    clock_mhz: int | None
    tokens_per_s: float
    power_w: float

    @property
    def j_per_token(self) -> float:
        """Joules per token."""
        return self.power_w / self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class IntensityAhead:
    """Some time at one intensity."""

    seconds: float
    g_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalInputs:
    """What is known now.

    Attributes:
        ahead: from now to the deadline without a gap, the first as measured.
        tokens_left, time_left_s: work, and time until the deadline less what switches may take.
        tokens_total, time_total_s: the same when the run began.
        points: that may be chosen, slowest first.
        current: id of the point the run is at; "" while it sleeps.
        switch_s, switch_j: of one layout switch.
        past: intensities of the last days, oldest first; may be empty.
    """

    ahead: tuple[IntensityAhead, ...]
    tokens_left: float
    time_left_s: float
    tokens_total: float
    time_total_s: float
    points: tuple[RatedPoint, ...]
    current: str
    switch_s: float
    switch_j: float
    past: tuple[float, ...] = ()

    @property
    def g_per_kwh(self) -> float:
        """Intensity now."""
        return self.ahead[0].g_per_kwh

    @property
    def fastest(self) -> RatedPoint:
        """The fastest point; of equally fast ones the thriftiest."""
        return max(self.points, key=lambda each: (each.tokens_per_s, -each.power_w))

    def full_clock(self) -> tuple[RatedPoint, ...]:
        """Give the points at the fastest's clock, fewest GPUs first: what scaling alone can do."""
        clock = self.fastest.clock_mhz
        alike = [each for each in self.points if each.clock_mhz == clock]
        return tuple(sorted(alike, key=lambda each: (each.gpus, each.tokens_per_s)))


RivalRule = Callable[[RivalInputs], str]
"""Gives the id of the point to be at from now on, or SLEEP."""
