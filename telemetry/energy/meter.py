"""How much one GPU drew between two looks at it: the rules of the energy ledger. Pure.

First of these that applies:

(a) the counter moved forwards by a plausible amount: that is the energy, however long nobody
    looked (a hardware counter covers an outage of ours);
(b) it moved backwards (a driver reload), or by an impossible amount, or not at all although power
    flows (a frozen sensor): not believed;
(c) no counter, or not believed: the mean of both powers times the time, over at most `hold_s`;
(d) nothing known: unobserved, with the power limit as the upper estimate.

Invariant: `Meter.counter_mj` is the counter up to which energy is booked. While the counter is
silent and power is integrated, it moves along (`guessed_mj`); when the counter speaks again, only
the difference is booked. So the sum of all pieces is what the counter moved, to the millijoule.

It is the counter of one source. Another source that stands in for it is a guess like any other:
counters of two sources are never compared. One that has stood in for `ADOPT_US` becomes the source.

A reset that nobody watched, and after which the counter has passed its old value again, cannot be
told from a counter that ran on; `CounterBaseline.boot_id` is there to say so.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from wattmesh.telemetry.energy.ledger import NO_COUNTER, CounterBaseline
from wattmesh.telemetry.readings import PowerReading, Quality, merged_quality

IMPLAUSIBLE_FACTOR = 1.5
IMPLAUSIBLE_MJ = 50_000
"""A counter that moved by more than limit x time x 1.5 + 50 J is not believed (firmware glitches of
terajoules are on record)."""

UNKNOWN_LIMIT_W = 1600.0
"""Upper estimate for a device that does not tell its limit: no board of today draws more."""

HALF_NJ_PER_MJ = 2_000_000

STILL_US = 250_000
"""Counters move every 20 to 100 ms (research on V100 to H100): one that stands still for longer
while power flows is frozen."""

ADOPT_US = 600 * 1_000_000
"""A source that stood in for so long is gone on with; the other's counter is given up."""

STALE = "stale counter"
"""The note of a piece whose counter stood still."""

HOLD_PERIODS = 2.5
"""The power of a source that rarely learns anything is believed for so many of its periods."""


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
        note: why the counter was not used ("counter reset", "implausible counter", "counter
            wrapped", "stale counter"); "" otherwise.
    """

    length_us: int
    energy_mj: int | None
    unobserved_ms: int
    upper_mj: int
    source: str
    quality: str
    recovers: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """One GPU up to the moment up to which everything about it is booked.

    Attributes:
        monotonic_us: that moment.
        power_w: then; None when not known.
        counter_mj: see the module; None when there is none to go on from. `counter_source`: whose;
            "" when that is not known, and whoever speaks first is believed.
        standin_source, standin_mj: who speaks instead, and what its own counter said last.
        guessed_mj, guessed_us: how far `counter_mj` is from what the counter last said, and for
            how long it has been silent. The former is < 0 never while silent, and > 0 also when a
            guess turned out too high: then the counter has to catch up first.
        dark_us: time booked as unobserved since the last reading.
        still_us: for how long the counter has shown the same.
        limit_w: the power limit now. `span_w`: the highest since the moment before. `highest_w`:
            the highest that can be set on the board; None: not known.
        carry: half nanojoules of integrated power below one millijoule.
    """

    monotonic_us: int
    power_w: float | None
    counter_mj: int | None
    limit_w: float | None
    source: str
    quality: str
    counter_source: str = ""
    standin_source: str = ""
    standin_mj: int | None = None
    guessed_mj: int = 0
    guessed_us: int = 0
    dark_us: int = 0
    still_us: int = 0
    span_w: float | None = None
    highest_w: float | None = None
    carry: int = 0

    @classmethod
    def first(cls, reading: PowerReading) -> Self:
        """Begin with a device's first reading; what it drew before is nobody's to know."""
        return cls(
            monotonic_us=micros(reading.monotonic_s),
            power_w=_power(reading),
            counter_mj=_counter(reading),
            limit_w=reading.power_limit_w,
            highest_w=reading.highest_limit_w,
            source=reading.source,
            quality=reading.quality,
            counter_source="" if _counter(reading) is None else reading.source,
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
            counter_source=baseline.source if counted else "",
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
            span_w=self._span_w(reading),
            highest_w=reading.highest_limit_w or self.highest_w,
            source=reading.source,
            quality=reading.quality,
            standin_source="",
            standin_mj=None,
            dark_us=0,
        )
        hold_us = max(hold_us, round(HOLD_PERIODS * micros(reading.every_s)))
        if self._is_foreign(reading):
            return self._stood_in(after, reading, length_us, hold_us)
        return self._spoke(after, reading, length_us, hold_us)

    def _span_w(self, reading: PowerReading) -> float | None:
        """Give the highest limit that held up to a reading; None when none is known.

        A cap that came or went in between must not make an honest counter implausible. Without a
        limit from before, e.g. after an outage of ours, it is the highest that can be set.
        """
        before_w = reading.highest_limit_w if self.limit_w is None else self.limit_w
        return max((each for each in (before_w, reading.power_limit_w) if each), default=None)

    def _is_foreign(self, reading: PowerReading) -> bool:
        """Say whether a reading is not of the source whose counter is booked up to."""
        if self.counter_mj is None or not self.counter_source:
            return False
        return reading.source != self.counter_source

    def _spoke(
        self, after: "Meter", reading: PowerReading, length_us: int, hold_us: int
    ) -> tuple["Meter", Piece]:
        """Book a reading of the source whose counter is booked up to."""
        silent_us = length_us + self.dark_us + self.guessed_us
        counter_mj, note = self._shown_mj(reading), ""
        if counter_mj is not None and self.counter_mj is not None:
            note = after._disbelief(counter_mj, silent_us, reading.wraps_mj)
            if not note and self._stands_still(counter_mj, reading, length_us):
                counter_mj, note = None, STALE
            elif not note:
                return after._counted(counter_mj, length_us, recovers=self.dark_us > 0)
        if counter_mj is not None:  # none to compare with, or not believed: begin again from it
            after = after._begun(_counter(reading), reading.source)
        silent = counter_mj is None
        made = self._by_power(after, length_us, hold_us, silent=silent, note=note)
        if made is not None:
            return made
        if note == STALE:  # it will say when it moves again
            after = after._guessed(0, length_us + self.dark_us)
        elif silent:  # dark, and the counter did not say what happened meanwhile
            after = after._begun(None, "")
        return after, after._unobserved(length_us, note)

    def _stood_in(
        self, after: "Meter", reading: PowerReading, length_us: int, hold_us: int
    ) -> tuple["Meter", Piece]:
        """Book a reading of another source, as a guess at what the silent counter will say."""
        told_mj = _counter(reading)
        after = replace(after, standin_source=reading.source, standin_mj=told_mj)
        made = None
        known = self.standin_mj is not None and self.standin_source == reading.source
        if told_mj is not None and known:
            made = self._by_standin(after, told_mj - (self.standin_mj or 0), length_us)
        made = made or self._by_power(after, length_us, hold_us, silent=True, note="")
        if made is None:
            after = after._begun(told_mj, reading.source)
            return after, after._unobserved(length_us, "")
        after, piece = made
        if told_mj is not None and after.guessed_us > ADOPT_US:
            after = after._begun(told_mj, reading.source)
        return after, piece

    def _by_standin(
        self, after: "Meter", moved_mj: int, length_us: int
    ) -> "tuple[Meter, Piece] | None":
        """Rule (a) for a stand-in's own counter; None when that is not to be believed."""
        if not 0 <= moved_mj <= after._most_mj(length_us + self.dark_us):
            return None
        after = replace(after._guessed(moved_mj, length_us + self.dark_us), carry=0)
        return after, after._piece(length_us, moved_mj, after.quality)

    def _by_power(
        self, after: "Meter", length_us: int, hold_us: int, *, silent: bool, note: str
    ) -> "tuple[Meter, Piece] | None":
        """Rule (c): book the mean power; None when no power is known, or for too long.

        When the counter was `silent`, it is taken to have moved along.
        """
        powers = [each for each in (self.power_w, after.power_w) if each is not None]
        if not powers or length_us > hold_us:
            return None
        twice_mean_mw = sum(round(2000 * each) for each in powers) // len(powers)
        energy_mj, carry = divmod(self.carry + twice_mean_mw * length_us, HALF_NJ_PER_MJ)
        if silent:
            after = after._guessed(energy_mj, length_us + self.dark_us)
        after = replace(after, carry=carry)
        return after, after._piece(length_us, energy_mj, _estimated(after.quality), note=note)

    def _shown_mj(self, reading: PowerReading) -> int | None:
        """Give the counter of a reading, one that wraps continued from what it last said."""
        counter_mj = _counter(reading)
        if counter_mj is None or self.counter_mj is None or not reading.wraps_mj:
            return counter_mj
        last_mj = self.counter_mj - self.guessed_mj
        return last_mj + (counter_mj - last_mj) % reading.wraps_mj

    def _stands_still(self, counter_mj: int, reading: PowerReading, length_us: int) -> bool:
        """Say whether a counter did not move although power flowed, or nobody knows of none."""
        known = [each for each in (self.power_w, _power(reading)) if each is not None]
        least_mj = round(min(known, default=UNKNOWN_LIMIT_W) * length_us / 1000)
        if reading.every_s or self.still_us + length_us <= STILL_US or least_mj < 2:
            return False  # an exporter may learn more seldom than it is scraped
        return counter_mj == (self.counter_mj or 0) - self.guessed_mj

    def unseen(self, monotonic_us: int) -> "tuple[Meter, Piece]":
        """Give the meter at a moment at which the device did not answer; the time is unobserved.

        When its counter answers again, `Piece.recovers` says that it covered this time.
        """
        length_us = monotonic_us - self.monotonic_us
        after = replace(
            self,
            monotonic_us=monotonic_us,
            power_w=None,
            span_w=None,
            dark_us=self.dark_us + length_us,
        )
        return after, after._unobserved(length_us, "")

    def uncounted(self) -> "Meter":
        """Give the meter without a counter to go on from; what is booked stands."""
        return replace(self._begun(None, ""), dark_us=0)

    def _begun(self, counter_mj: int | None, source: str) -> "Meter":
        """Give the meter that goes on from another counter, or from none."""
        return replace(
            self,
            counter_mj=counter_mj,
            counter_source="" if counter_mj is None else source,
            standin_source="",
            standin_mj=None,
            guessed_mj=0,
            guessed_us=0,
            still_us=0,
        )

    def _guessed(self, energy_mj: int, silent_us: int) -> "Meter":
        """Give the meter whose counter, if it has one, is taken to have moved along."""
        if self.counter_mj is None:
            return self
        return replace(
            self,
            counter_mj=self.counter_mj + energy_mj,
            guessed_mj=self.guessed_mj + energy_mj,
            guessed_us=self.guessed_us + silent_us,
        )

    def _disbelief(self, counter_mj: int, silent_us: int, wraps_mj: int | None) -> str:
        """Say why a counter is not believed; "" when it is."""
        moved_mj = counter_mj - (self.counter_mj or 0) + self.guessed_mj
        if moved_mj < 0:
            return "counter reset"
        most_mj = self._most_mj(silent_us)
        if wraps_mj is not None and most_mj >= wraps_mj:
            return "counter wrapped"  # nobody can tell how often
        return "implausible counter" if moved_mj > most_mj else ""

    def _most_mj(self, silent_us: int) -> float:
        """Give the most that a counter that is believed moves in a time."""
        return IMPLAUSIBLE_FACTOR * self._upper_mj(silent_us) + IMPLAUSIBLE_MJ

    def _counted(self, counter_mj: int, length_us: int, *, recovers: bool) -> tuple["Meter", Piece]:
        """Rule (a): book what the counter moved beyond what is booked already."""
        booked_mj = self.counter_mj or 0
        moved = counter_mj != booked_mj - self.guessed_mj
        after = replace(
            self,
            still_us=0 if moved else self.still_us + length_us,
            counter_mj=max(counter_mj, booked_mj),
            counter_source=self.source,
            guessed_mj=max(0, booked_mj - counter_mj),
            guessed_us=0,
            carry=0,
        )
        energy_mj = max(0, counter_mj - booked_mj)
        return after, after._piece(length_us, energy_mj, self.quality, recovers=recovers)

    def _piece(
        self,
        length_us: int,
        energy_mj: int,
        quality: str,
        *,
        recovers: bool = False,
        note: str = "",
    ) -> Piece:
        """Give a piece that was observed, up to this meter's moment."""
        return Piece(
            length_us=length_us,
            energy_mj=energy_mj,
            unobserved_ms=0,
            upper_mj=0,
            source=self.source,
            quality=quality,
            recovers=recovers,
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
        """Give the most that can have been drawn in a time.

        By the highest limit where it is known: while nobody looks, a cap may end.
        """
        known_w = [each for each in (self.highest_w, self.span_w or self.limit_w) if each]
        limit_mw = math.ceil(1000 * max(known_w, default=UNKNOWN_LIMIT_W))
        return -(-limit_mw * length_us // 1_000_000)


def _estimated(quality: str) -> str:
    """Give the quality of an estimate; what is simulated says so too."""
    return merged_quality((quality, Quality.ESTIMATED))


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
