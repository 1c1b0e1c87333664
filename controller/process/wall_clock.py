"""Notice when the wall clock is stepped, while a daemon runs or while none did. Pure.

Durations come from monotonic time, so a step shifts only dates. Invariant: a step is reported once,
and slow drift (NTP slewing) never is.
"""

from dataclasses import dataclass
from datetime import datetime

from wattmesh.quantities import duration

STEP_S = 2.0
"""Smaller changes between two looks are drift, slewing or a slow scheduler."""

REBOOT_S = 60.0
"""Over a reboot the hardware clock (RTC) keeps the time, and may lose this much."""

LONG_AWAY_S = 86_400.0
"""Where only dates tell how long no daemon ran, a longer gap is taken for a step forward."""

_NO = ("", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Both clocks at one moment."""

    now: datetime
    monotonic_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """A step of the wall clock by `step_s`; 0 where no daemon ran and its size is not known."""

    step_s: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRecord:
    """Both clocks as a daemon of this machine last wrote them down.

    Attributes:
        boot_id: the boot in which `monotonic_s` counts; it means nothing in another.
        held_s: seconds that were left of the hold after a step; `why` gives its reason.
        stepped_s: sum of the steps of the wall clock that still held.
    """

    at: datetime
    monotonic_s: float
    boot_id: str
    held_s: float = 0.0
    why: str = ""
    stepped_s: float = 0.0


def stepped_s(before: ClockReading | None, after: ClockReading) -> float:
    """Give how far the wall clock was stepped between two looks, in seconds; 0 when it was not."""
    if before is None:
        return 0.0
    wall_s = (after.now - before.now).total_seconds()
    step_s = wall_s - (after.monotonic_s - before.monotonic_s)
    return step_s if abs(step_s) >= STEP_S else 0.0


def step_clause(step_s: float, now: datetime) -> str:
    """Say what happened to the clock."""
    way = "forward" if step_s > 0 else "back"
    far = duration(abs(step_s))
    exact = "" if far.endswith(" s") else f" ({abs(step_s):.0f} s)"
    return f"The wall clock was stepped {way} by {far}{exact} to {_read(now)}"


def step_sentence(step_s: float, now: datetime) -> str:
    """Say what happened, and what it means."""
    return (
        f"{step_clause(step_s, now)}. Energy is booked by monotonic time, so none is lost or "
        "counted twice; check the time service if nobody did this on purpose."
    )


def while_away(
    known: ClockRecord | None, newest: datetime | None, look: ClockReading, boot_id: str
) -> tuple[str, float]:
    """Say how the wall clock was stepped while no daemon ran here, as a clause; "" if it was not.

    Args:
        known: the newest mark of this machine.
        newest: the newest date that the journal has of anything; asked where there is no mark.
        look: both clocks now.
        boot_id: the boot now; "" where the kernel names none.

    Returns:
        The clause, and the step in seconds; where only dates tell, all the time between them.
    """
    if known is not None and boot_id and known.boot_id == boot_id:
        step_s = stepped_s(ClockReading(now=known.at, monotonic_s=known.monotonic_s), look)
        return (f"{step_clause(step_s, look.now)}, while no daemon ran", step_s) if step_s else _NO
    before = known.at if known is not None else newest
    if before is None:
        return _NO
    away_s = (look.now - before).total_seconds()
    if -REBOOT_S <= away_s <= LONG_AWAY_S:
        return _NO
    where = "earlier" if away_s < 0 else "later"
    clause = (
        f"The wall clock stood at {_read(look.now)} when the daemon started, "
        f"{duration(abs(away_s))} {where} than the newest entry of the journal"
    )
    return clause, away_s


def left_s(known: ClockRecord, look: ClockReading, boot_id: str) -> float:
    """Give the seconds left of a hold that was written down; after a reboot all of it is left."""
    if not boot_id or known.boot_id != boot_id:
        return known.held_s
    return known.held_s - max(0.0, look.monotonic_s - known.monotonic_s)


def _read(now: datetime) -> str:
    return f"{now:%Y-%m-%d %H:%M:%S} UTC"
