"""How much one GPU drew between two looks at it: the rules of the energy ledger. Pure.

First of these that applies:

(a) the counter moved forwards by a plausible amount: that is the energy, however long nobody
    looked (a hardware counter covers an outage of ours);
(b) it moved backwards (a driver reload), or by an impossible amount: not believed;
(c) no counter, or not believed: the mean of both powers times the time, over at most `hold_s`;
(d) nothing known: unobserved, with the power limit as the upper estimate.

Invariant: `Meter.counter_mj` is the counter up to which energy is booked. While the counter is
silent and power is integrated, it moves along (`guessed_mj`); when the counter speaks again, only
the difference is booked. So the sum of all pieces is what the counter moved, to the millijoule.

A reset that nobody watched, and after which the counter has passed its old value again, cannot be
told from a counter that ran on; `CounterBaseline.boot_id` is there to say so.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from wattmesh.telemetry.ledger import NO_COUNTER, CounterBaseline
from wattmesh.telemetry.readings import PowerReading, Quality

IMPLAUSIBLE_FACTOR = 1.5
IMPLAUSIBLE_MJ = 50_000
"""A counter that moved by more than limit x time x 1.5 + 50 J is not believed (firmware glitches of
terajoules are on record)."""

UNKNOWN_LIMIT_W = 1600.0
"""Upper estimate for a device that does not tell its limit: no board of today draws more."""

HALF_NJ_PER_MJ = 2_000_000


def micros(monotonic_s: float) -> int:
    """Give a monotonic time in whole microseconds; lengths are differences of these."""
    return round(monotonic_s * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one GPU drew in the time since the piece before.

    Attributes:
        length_us: the time it is of; with `recovers`, without the dark time before.
        energy_mj: None when not observed. `upper_mj`: the most it can have been then, else 0.
        recovers: the energy is of the dark time before too, which was booked as unobserved.
        note: why the counter was not used ("counter reset", "implausible counter"); "" otherwise.
    """

    length_us: int
    energy_mj: int | None
    unobserved_ms: int
    upper_mj: int
    source: str
    quality: Quality
    recovers: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """One GPU up to the moment up to which everything about it is booked.

    Attributes:
        monotonic_us: that moment.
        power_w: then; None when not known.
        counter_mj: see the module; None when there is none to go on from.
        guessed_mj, guessed_us: how far `counter_mj` is from what the counter last said, and for
            how long it has been silent. The former is < 0 never while silent, and > 0 also when a
            guess turned out too high: then the counter has to catch up first.
        dark_us: time booked as unobserved since the last reading.
        carry: half nanojoules of integrated power below one millijoule.
    """

    monotonic_us: int
    power_w: float | None
    counter_mj: int | None
    limit_w: float | None
    source: str
    quality: Quality
    guessed_mj: int = 0
    guessed_us: int = 0
    dark_us: int = 0
    carry: int = 0

    @classmethod
    def first(cls, reading: PowerReading) -> Self:
        """Begin with a device's first reading; what it drew before is nobody's to know."""
        return cls(
            monotonic_us=micros(reading.monotonic_s),
            power_w=_power(reading),
            counter_mj=_counter(reading),
            limit_w=reading.power_limit_w,
            source=reading.source,
            quality=reading.quality,
        )

    @classmethod
    def resumed(cls, baseline: CounterBaseline, monotonic_us: int | None = None) -> Self:
        """Go on from what was booked.

        Args:
            baseline: as it was booked.
            monotonic_us: its moment on this boot's clock, when it is of another boot: then its
                counter says nothing any more.
        """
        counted = monotonic_us is None and baseline.energy_mj != NO_COUNTER
        return cls(
            monotonic_us=micros(baseline.monotonic_s) if monotonic_us is None else monotonic_us,
            power_w=None,
            counter_mj=baseline.energy_mj if counted else None,
            limit_w=None,
            source="",
            quality=Quality.ESTIMATED,
        )

    def advanced(self, reading: PowerReading, *, hold_us: int) -> "tuple[Meter, Piece] | None":
        """Give the meter at a new reading, and what was drawn up to it; None if it is not newer.

        Args:
            reading: of the same GPU, on the same monotonic clock.
            hold_us: longest time that a power is believed to last.
        """
        length_us = micros(reading.monotonic_s) - self.monotonic_us
        if length_us <= 0:
            return None
        after = replace(
            self,
            monotonic_us=self.monotonic_us + length_us,
            power_w=_power(reading),
            limit_w=reading.power_limit_w or self.limit_w,
            source=reading.source,
            quality=reading.quality,
            dark_us=0,
        )
        counter_mj, note = _counter(reading), ""
        if counter_mj is not None and self.counter_mj is not None:
            note = after._disbelief(counter_mj, length_us + self.dark_us + self.guessed_us)
            if not note:
                return after._counted(counter_mj, length_us, recovers=self.dark_us > 0)
        if counter_mj is not None:  # none to compare with, or not believed: begin again from it
            after = replace(after, counter_mj=counter_mj, guessed_mj=0, guessed_us=0)
        powers = [each for each in (self.power_w, after.power_w) if each is not None]
        if powers and length_us <= hold_us:
            return after._integrated(powers, length_us, silent=counter_mj is None, note=note)
        if counter_mj is None:  # dark, and the counter did not say what happened meanwhile
            after = replace(after, counter_mj=None, guessed_mj=0, guessed_us=0)
        return after, after._unobserved(length_us, note)

    def unseen(self, monotonic_us: int) -> "tuple[Meter, Piece]":
        """Give the meter at a moment at which the device did not answer; the time is unobserved.

        When its counter answers again, `Piece.recovers` says that it covered this time.
        """
        length_us = monotonic_us - self.monotonic_us
        after = replace(
            self, monotonic_us=monotonic_us, power_w=None, dark_us=self.dark_us + length_us
        )
        return after, after._unobserved(length_us, "")

    def uncounted(self) -> "Meter":
        """Give the meter without a counter to go on from; what is booked stands."""
        return replace(self, counter_mj=None, guessed_mj=0, guessed_us=0, dark_us=0)

    def _disbelief(self, counter_mj: int, silent_us: int) -> str:
        """Say why a counter is not believed; "" when it is."""
        moved_mj = counter_mj - (self.counter_mj or 0) + self.guessed_mj
        if moved_mj < 0:
            return "counter reset"
        most_mj = IMPLAUSIBLE_FACTOR * self._upper_mj(silent_us) + IMPLAUSIBLE_MJ
        return "implausible counter" if moved_mj > most_mj else ""

    def _counted(self, counter_mj: int, length_us: int, *, recovers: bool) -> tuple["Meter", Piece]:
        """Rule (a): book what the counter moved beyond what is booked already."""
        booked_mj = self.counter_mj or 0
        after = replace(
            self,
            counter_mj=max(counter_mj, booked_mj),
            guessed_mj=max(0, booked_mj - counter_mj),
            guessed_us=0,
            carry=0,
        )
        return after, Piece(
            length_us=length_us,
            energy_mj=max(0, counter_mj - booked_mj),
            unobserved_ms=0,
            upper_mj=0,
            source=self.source,
            quality=self.quality,
            recovers=recovers,
        )

    def _integrated(
        self, powers: list[float], length_us: int, *, silent: bool, note: str
    ) -> tuple["Meter", Piece]:
        """Rule (c): book the mean power; a silent counter is taken to move along."""
        twice_mean_mw = sum(round(2000 * each) for each in powers) // len(powers)
        energy_mj, carry = divmod(self.carry + twice_mean_mw * length_us, HALF_NJ_PER_MJ)
        after = replace(self, carry=carry)
        if silent and self.counter_mj is not None:
            after = replace(
                after,
                counter_mj=self.counter_mj + energy_mj,
                guessed_mj=self.guessed_mj + energy_mj,
                guessed_us=self.guessed_us + length_us,
            )
        return after, Piece(
            length_us=length_us,
            energy_mj=energy_mj,
            unobserved_ms=0,
            upper_mj=0,
            source=self.source,
            quality=_estimated(self.quality),
            note=note,
        )

    def _unobserved(self, length_us: int, note: str) -> Piece:
        """Rule (d), for the time up to this meter's moment."""
        ends_us = self.monotonic_us
        return Piece(
            length_us=length_us,
            energy_mj=None,
            # By moments and not by lengths, so that many short times sum up exactly.
            unobserved_ms=ends_us // 1000 - (ends_us - length_us) // 1000,
            upper_mj=self._upper_mj(length_us),
            source=self.source,
            quality=_estimated(self.quality),
            note=note,
        )

    def _upper_mj(self, length_us: int) -> int:
        """Give the most that can have been drawn in a time."""
        limit_mw = math.ceil(1000 * (self.limit_w or UNKNOWN_LIMIT_W))
        return -(-limit_mw * length_us // 1_000_000)


def _estimated(quality: Quality) -> Quality:
    """Give the quality of an estimate; what is simulated says so always."""
    return quality if quality is Quality.SIMULATED else Quality.ESTIMATED


def _power(reading: PowerReading) -> float | None:
    """Give the power if it is one."""
    power_w = reading.power_w
    if power_w is None or not math.isfinite(power_w) or power_w < 0:
        return None
    return power_w


def _counter(reading: PowerReading) -> int | None:
    """Give the counter if it is one."""
    counter_mj = reading.energy_mj
    return None if counter_mj is None or counter_mj < 0 else counter_mj
