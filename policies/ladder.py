"""What decisions may rest on when signals grow old. Pure.

Best first: a forecast that the provider issued (at most a day old), a profile of the stored history
(at most three days old), a static number, nothing. On the first two runs are moved; on a static
number, which knows no better hour, and on nothing at all, everything holds.

Invariant: the slots come from one forecast; two are never mixed. Only the running slot may be what
was observed, for that is what holds now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.policies.decision import CarbonView, IntensitySlot, Rung
from wattmesh.quantities import duration

OLDEST = {Rung.ISSUED: timedelta(hours=24), Rung.PROFILE: timedelta(hours=72)}
"""How old a forecast may be: since it was issued, or since the end of the history it is made of."""

DAY_S = 86_400.0
ACTS = (Rung.ISSUED, Rung.PROFILE)
"""Rungs on which runs are moved."""

CHANGE_INTERVALS = 2
"""Intervals of the signal that must pass after a change of rung before anything is moved."""


class ForecastCandidate(Protocol):
    """A forecast as it was issued."""

    @property
    def id(self) -> int:
        """What the journal knows it by."""
        ...

    @property
    def rung(self) -> Rung:
        """ISSUED or PROFILE."""
        ...

    @property
    def source(self) -> str:
        """Who made it."""
        ...

    @property
    def issued_at(self) -> datetime:
        """When it was issued; of a profile the end of the history it is made of."""
        ...

    @property
    def slots(self) -> tuple[IntensitySlot, ...]:
        """What it says, without gaps."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStanding:
    """What decisions rest on.

    Attributes:
        slots: the running slot first, without gaps; on the rung NONE it alone, or nothing.
        source: who made the slots ahead. `forecast`: the id of that issue; None without one.
        why: a clause on why it is no better rung; "" on the best.
    """

    rung: Rung
    slots: tuple[IntensitySlot, ...] = ()
    source: str = ""
    issued_at: datetime | None = None
    forecast: int | None = None
    why: str = ""


def stand(
    candidates: Sequence[ForecastCandidate],
    *,
    running: IntensitySlot | None,
    static: bool,
    now: datetime,
    day_s: float = DAY_S,
) -> LadderStanding:
    """Climb the ladder.

    Args:
        candidates: the newest forecast of every source.
        running: what was observed of the interval that holds `now`; None: nothing yet.
        static: `running` is a static number.
        now: aware.
        day_s: length of the signal's day; shorter in a recording that plays compressed.
    """
    if running is not None and static:
        why = f"{figure(running)} is a static number, which knows no better hour"
        return LadderStanding(rung=Rung.STATIC, slots=(running,), source="static", why=why)
    for rung in ACTS:
        usable = [
            each
            for each in candidates
            if each.rung is rung and now - each.issued_at <= OLDEST[rung] * (day_s / DAY_S)
        ]
        for each in sorted(usable, key=lambda it: (it.issued_at, it.id), reverse=True):
            slots = ahead(each.slots, running, now)
            if slots:
                return LadderStanding(
                    rung=rung,
                    slots=slots,
                    source=each.source,
                    issued_at=each.issued_at,
                    forecast=each.id,
                    why=_why_not_best(rung, candidates, now),
                )
    return LadderStanding(
        rung=Rung.NONE,
        slots=() if running is None else (running,),
        why="no forecast is young enough and reaches over now",
    )


def ahead(
    slots: Sequence[IntensitySlot], running: IntensitySlot | None, now: datetime
) -> tuple[IntensitySlot, ...]:
    """Give the running slot and what follows it in one forecast; empty where that has a gap."""
    at = now if running is None else running.end
    later = [each for each in slots if each.end > at]
    if running is None:
        return tuple(later) if later and later[0].start <= now else ()
    if not later or later[0].start > at:
        return ()
    return (running, replace(later[0], start=at), *later[1:])


def waits(view: CarbonView) -> str:
    """Say that the signal changed too short ago to move anything; "" when it did not."""
    since_s, least_s = view.since_change_s, CHANGE_INTERVALS * view.interval_s
    if since_s is None or since_s >= least_s:
        return ""
    return (
        f"what is known of the grid changed to {NAMES[view.rung]} {duration(since_s)} ago, and "
        f"{duration(least_s)} must pass before anything is moved on it"
    )


def figure(slot: IntensitySlot) -> str:
    """Write an intensity."""
    return f"{slot.g_per_kwh:.0f} g/kWh"


NAMES = {
    Rung.ISSUED: "an issued forecast",
    Rung.PROFILE: "a profile of its last days",
    Rung.STATIC: "a static number",
    Rung.NONE: "nothing",
}


def _why_not_best(rung: Rung, candidates: Sequence[ForecastCandidate], now: datetime) -> str:
    if rung is Rung.ISSUED:
        return ""
    issued = [each for each in candidates if each.rung is Rung.ISSUED]
    if not issued:
        return "the provider offers no forecast, so a profile of its last days stands in"
    newest = max(issued, key=lambda each: each.issued_at)
    age = duration(max(0.0, (now - newest.issued_at).total_seconds()))
    return (
        f"the newest forecast of {newest.source} is {age} old or ended, so a profile of its last "
        "days stands in"
    )
