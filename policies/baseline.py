"""The baseline: what a run would have drawn at the point it was submitted at. Pure.

The baseline's clock starts with the run and stops only for outages that we did not cause; never
for switches, rollbacks, checkpoints or waits of ours. It advances and draws as the catalogue says,
corrected by the speed and the watts measured at the point the run is really at, until its work is
done (docs/carbon-accounting.md; DESIGN 4.1).

Invariant: tokens are whole and energy is whole millijoules; how often the baseline is reckoned
changes its tokens by one at most.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

LOWEST_RATIO, HIGHEST_RATIO = 0.5, 1.5
"""A measured ratio outside is a fault of the measurement or of the catalogue, and is cut here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The submitted point. `power_w`: charged to the run there, idle held GPUs included."""

    tokens_per_s: float
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What the baseline trained and drew over some time. `used`: the time that took."""

    tokens: int
    energy_mj: int
    used: timedelta


def trusted_ratio(measured: float | None, catalogue: float | None, before: float) -> float:
    """Give the ratio to correct by: measured over catalogue, or the one before if not known."""
    if not measured or not catalogue:
        return before
    return min(HIGHEST_RATIO, max(LOWEST_RATIO, measured / catalogue))


def active(
    start: datetime, end: datetime, outage: tuple[datetime, datetime] | None
) -> tuple[tuple[datetime, datetime], ...]:
    """Give the parts of [start, end) in which the baseline's clock runs.

    An outage that ends before it begins (the wall clock was stepped back in it) took no time.
    """
    if end <= start:
        return ()
    if outage is None or outage[1] <= max(start, outage[0]) or outage[0] >= end:
        return ((start, end),)
    parts = ((start, max(start, outage[0])), (min(end, outage[1]), end))
    return tuple(part for part in parts if part[1] > part[0])


def advance(
    length: timedelta, pace: Pace, tokens_left: int, *, speed: float = 1.0, drift: float = 1.0
) -> Done:
    """Let the baseline run for `length`, or until its work is done.

    Only whole tokens are reckoned, and the time they took; the rest of `length` is left for the
    next call. So no token is lost however often it is called (docs/carbon-accounting.md).

    Args:
        length: how long; nothing is done in a negative time.
        pace: the submitted point.
        tokens_left: of the work.
        speed: measured tokens/s over the catalogue's, at the point the run is at.
        drift: measured watts over the catalogue's, there.
    """
    rate = pace.tokens_per_s * speed
    tokens = max(0, min(tokens_left, math.floor(rate * length.total_seconds())))
    used = min(max(length, timedelta()), timedelta(seconds=tokens / rate))
    microjoules = pace.power_w * drift * (used / timedelta(microseconds=1))
    return Done(tokens=tokens, energy_mj=round(microjoules / 1000), used=used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot of the baseline's ledger. `carbon_ug` None: it has no price yet."""

    tokens: int
    carbon_ug: int | None


def grams_at(slots: Sequence[Slot], tokens: int) -> tuple[int | None, bool]:
    """Give (micrograms of the baseline when it had trained `tokens`, whether it has got there).

    Whole slots count whole; the slot in which the number is reached counts by its share of tokens,
    rounded down. None where a slot on the way has no price yet.
    """
    left, carbon_ug = tokens, 0
    for slot in slots:
        if left <= 0:
            break
        if slot.carbon_ug is None:
            return None, False
        if slot.tokens <= left:
            carbon_ug += slot.carbon_ug
        else:
            carbon_ug += slot.carbon_ug * left // slot.tokens
        left -= slot.tokens
    return carbon_ug, left <= 0


def price_ug(energy_mj: int, g_milli_per_kwh: int, pue_milli: int = 1000) -> int:
    """Give whole micrograms, half up: mJ x mg/kWh x PUE / 3.6e6."""
    return (energy_mj * g_milli_per_kwh * pue_milli + 1_800_000_000) // 3_600_000_000


def total(parts: Iterable[int | None]) -> int:
    """Sum what is known."""
    return sum(part for part in parts if part is not None)
