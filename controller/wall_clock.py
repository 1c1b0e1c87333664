"""Notice when the wall clock is stepped: durations come from monotonic time, so only facts shift.

Invariant: pure; a step is reported once, and slow drift (NTP slewing) never is.
"""

from dataclasses import dataclass
from datetime import datetime

STEP_S = 2.0
"""Smaller changes between two looks are drift, slewing or a slow scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Both clocks at one moment."""

    now: datetime
    monotonic_s: float


def stepped_s(before: Look | None, after: Look) -> float:
    """Give how far the wall clock was stepped between two looks, in seconds; 0 when it was not."""
    if before is None:
        return 0.0
    wall_s = (after.now - before.now).total_seconds()
    step_s = wall_s - (after.monotonic_s - before.monotonic_s)
    return step_s if abs(step_s) >= STEP_S else 0.0


def step_sentence(step_s: float, now: datetime) -> str:
    """Say what happened, and what it means."""
    way = "forward" if step_s > 0 else "back"
    return (
        f"The wall clock was stepped {way} by {abs(step_s):.0f} s and reads {now:%Y-%m-%d %H:%M:%S}"
        " UTC now. Energy is booked by monotonic time, so none is lost or counted twice; check the"
        " time service if nobody did this on purpose."
    )
