"""Computes the energy of one GPU between two readings: the rules of the energy ledger. Pure.

The first rule that applies counts:

(a) the counter rose by a plausible amount: that is the energy, however long the gap (a hardware
    counter covers an outage of ours);
(b) the counter fell (a driver reload), rose by an impossible amount, or stood still although power
    flows (a frozen sensor): it is not used;
(c) without a usable counter: the mean of both powers times the time, over at most `hold_s`;
(d) without a power either: unobserved, with the power limit as upper bound.

Invariant: `MeterState.counter_mj` is the counter value up to which energy is booked. While the
counter does not answer and power is integrated, it is extrapolated (`guessed_mj`); when the counter
answers again, only the difference is booked. So all pieces sum up to the counter's rise, to the
millijoule.

The counter belongs to one source, and counters of two sources are never compared. What a stand-in
source reads extrapolates the first counter; after `ADOPT_US` the stand-in becomes the source.

A reset during an outage, after which the counter passed its old value again, looks like a counter
that ran on; `CounterBaseline.boot_id` tells the two apart.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from wattmesh.telemetry.energy.ledger import NO_COUNTER, CounterBaseline
from wattmesh.telemetry.readings import PowerReading, Quality, merged_quality

IMPLAUSIBLE_FACTOR = 1.5
IMPLAUSIBLE_MJ = 50_000
"""A counter that rose by more than limit x time x 1.5 + 50 J is not used (firmware glitches of
terajoules have been reported)."""

UNKNOWN_LIMIT_W = 1600.0
"""Upper bound for a device with an unknown limit: no current board draws more."""

HALF_NJ_PER_MJ = 2_000_000

STILL_US = 250_000
"""Counters are updated every 20 to 100 ms (measured on V100 to H100): one that stands still for
longer while power flows is frozen."""

ADOPT_US = 600 * 1_000_000
"""A source that stood in for so long replaces the first one, whose counter is dropped."""

STALE = "stale counter"
"""`EnergyPiece.note` of a counter that stood still."""

HOLD_PERIODS = 2.5
"""A power reading of a source with long periods is used for so many of them."""


def micros(monotonic_s: float) -> int:
    """Convert a monotonic time to whole microseconds; lengths are differences of these."""
    return round(monotonic_s * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPiece:
    """The energy of one GPU since the piece before.

    Attributes:
        length_us: its duration; with `recovers` the unobserved time before is not included.
        energy_mj: None when not observed.
        upper_mj: upper bound of an energy that was not observed, else 0.
        recovers: the energy includes that of the time before, which was booked as unobserved.
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
class MeterState:
    """The state of one GPU at the moment up to which everything is booked.

    Attributes:
        monotonic_us: that moment.
        power_w: the power then; None when not known.
        counter_mj: see the module; None when there is no counter to continue from.
        counter_source: source of the counter; "" when not known: then the first to answer counts.
        standin_source, standin_mj: the source that stands in, and its own counter's last value.
        guessed_mj, guessed_us: how far `counter_mj` was extrapolated beyond the counter's last
            value, and for how long it has not answered. `guessed_mj` >= 0; it stays > 0 after an
            extrapolation that was too high, until the counter has caught up.
        dark_us: time booked as unobserved since the last reading.
        still_us: how long the counter has not changed.
        unsure_us: the counter may have been read so much earlier or later than we know.
        limit_w: the power limit now.
        span_w: the highest limit since the reading before.
        highest_w: the highest limit that the board accepts; None: not known.
        carry: remainder of integrated power below one millijoule, in half nanojoules.
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
    unsure_us: int = 0
    span_w: float | None = None
    highest_w: float | None = None
    carry: int = 0

    @classmethod
    def first(cls, reading: PowerReading) -> Self:
        """Begin with a device's first reading; the energy before it stays unknown."""
        return cls(
            monotonic_us=micros(reading.monotonic_s),
            power_w=_power(reading),
            counter_mj=_counter(reading),
            limit_w=reading.power_limit_w,
            highest_w=reading.highest_limit_w,
            source=reading.source,
            quality=reading.quality,
            unsure_us=micros(reading.unsure_s),
            counter_source="" if _counter(reading) is None else reading.source,
        )

    @classmethod
    def resumed(cls, baseline: CounterBaseline, monotonic_us: int | None = None) -> Self:
        """Continue from a booked baseline.

        Args:
            baseline: as it was booked.
            monotonic_us: for a baseline of another boot, its moment on this boot's clock; its
                counter is then void.
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

    def advanced(
        self, reading: PowerReading, *, hold_us: int
    ) -> "tuple[MeterState, EnergyPiece] | None":
        """Return the meter at a newer reading and the energy up to it; None if not newer.

        Args:
            reading: of the same GPU, on the same monotonic clock.
            hold_us: longest time for which a power reading is used.
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
            unsure_us=max(micros(reading.unsure_s), self.unsure_us if self.guessed_us else 0),
        )
        hold_us = max(hold_us, round(HOLD_PERIODS * micros(reading.every_s)))
        if self._is_foreign(reading):
            return self._by_other_source(after, reading, length_us, hold_us)
        return self._by_own_source(after, reading, length_us, hold_us)

    def _span_w(self, reading: PowerReading) -> float | None:
        """The highest limit in force up to a reading; None when none is known.

        A cap that was set or lifted in between must not make a correct counter look implausible.
        Without an earlier limit, e.g. after an outage of ours, it is the highest settable one.
        """
        before_w = reading.highest_limit_w if self.limit_w is None else self.limit_w
        return max((each for each in (before_w, reading.power_limit_w) if each), default=None)

    def _is_foreign(self, reading: PowerReading) -> bool:
        if self.counter_mj is None or not self.counter_source:
            return False
        return reading.source != self.counter_source

    def _by_own_source(
        self, after: "MeterState", reading: PowerReading, length_us: int, hold_us: int
    ) -> tuple["MeterState", EnergyPiece]:
        silent_us = length_us + self.dark_us + self.guessed_us + self.still_us
        silent_us += self.unsure_us + micros(reading.unsure_s)
        counter_mj, note = self._shown_mj(reading), ""
        if counter_mj is not None and self.counter_mj is not None:
            note = after._disbelief(counter_mj, silent_us, reading.wraps_mj)
            if not note and self._stands_still(counter_mj, reading, length_us):
                counter_mj, note = None, STALE
            elif not note:
                return after._counted(counter_mj, length_us, recovers=self.dark_us > 0)
        if counter_mj is not None:  # no earlier value, or a rejected one: continue from this one
            after = after._begun(_counter(reading), reading.source)
        silent = counter_mj is None
        made = self._by_power(after, length_us, hold_us, silent=silent, note=note)
        if made is not None:
            return made
        if note == STALE:  # it covers this time when it moves again
            after = after._guessed(0, length_us + self.dark_us)
        elif silent:  # unobserved, and no counter to cover it later
            after = after._begun(None, "")
        return after, after._unobserved(length_us, note)

    def _by_other_source(
        self, after: "MeterState", reading: PowerReading, length_us: int, hold_us: int
    ) -> tuple["MeterState", EnergyPiece]:
        """Book a reading of a stand-in source, as an extrapolation of the counter."""
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
        self, after: "MeterState", moved_mj: int, length_us: int
    ) -> "tuple[MeterState, EnergyPiece] | None":
        """Rule (a) for the counter of a stand-in; None when its rise is not plausible."""
        if not 0 <= moved_mj <= after._most_mj(length_us + self.dark_us):
            return None
        after = replace(after._guessed(moved_mj, length_us + self.dark_us), carry=0)
        return after, after._piece(length_us, moved_mj, after.quality)

    def _by_power(
        self, after: "MeterState", length_us: int, hold_us: int, *, silent: bool, note: str
    ) -> "tuple[MeterState, EnergyPiece] | None":
        """Rule (c): book the mean power; None without a power, or after too long a gap.

        A `silent` counter is extrapolated by the same energy.
        """
        powers = [each for each in (self.power_w, after.power_w) if each is not None]
        if not powers or length_us > hold_us:
            return None
        twice_mean_mw = sum(round(2000 * each) for each in powers) // len(powers)
        energy_mj, carry = divmod(self.carry + twice_mean_mw * length_us, HALF_NJ_PER_MJ)
        if silent:
            after = after._guessed(energy_mj, length_us + self.dark_us)
        after = replace(after, carry=carry)
        return after, after._piece(length_us, energy_mj, _with_estimated(after.quality), note=note)

    def _shown_mj(self, reading: PowerReading) -> int | None:
        """The counter of a reading; one that wraps is continued from its last value."""
        counter_mj = _counter(reading)
        if counter_mj is None or self.counter_mj is None or not reading.wraps_mj:
            return counter_mj
        last_mj = self.counter_mj - self.guessed_mj
        return last_mj + (counter_mj - last_mj) % reading.wraps_mj

    def _stands_still(self, counter_mj: int, reading: PowerReading, length_us: int) -> bool:
        """Tell whether a counter stood still although power flowed or is not known."""
        known = [each for each in (self.power_w, _power(reading)) if each is not None]
        least_mj = round(min(known, default=UNKNOWN_LIMIT_W) * length_us / 1000)
        if reading.every_s or self.still_us + length_us <= STILL_US or least_mj < 2:
            return False  # an exporter may update less often than it is scraped
        return counter_mj == (self.counter_mj or 0) - self.guessed_mj

    def unseen(self, monotonic_us: int) -> "tuple[MeterState, EnergyPiece]":
        """Advance to a moment at which the device did not answer; the time is unobserved.

        When its counter answers again, the next piece has `recovers` set and covers this time.
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

    def uncounted(self) -> "MeterState":
        """Return the meter without a counter; what is booked stays."""
        return replace(self._begun(None, ""), dark_us=0)

    def _begun(self, counter_mj: int | None, source: str) -> "MeterState":
        """Restart from another counter, or from none."""
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

    def _guessed(self, energy_mj: int, silent_us: int) -> "MeterState":
        """Extrapolate the counter, if there is one."""
        if self.counter_mj is None:
            return self
        return replace(
            self,
            counter_mj=self.counter_mj + energy_mj,
            guessed_mj=self.guessed_mj + energy_mj,
            guessed_us=self.guessed_us + silent_us,
        )

    def _disbelief(self, counter_mj: int, silent_us: int, wraps_mj: int | None) -> str:
        """Say why a counter is not used; "" when it is."""
        moved_mj = counter_mj - (self.counter_mj or 0) + self.guessed_mj
        if moved_mj < 0:
            return "counter reset"
        most_mj = self._most_mj(silent_us)
        if wraps_mj is not None and most_mj >= wraps_mj:
            return "counter wrapped"  # the number of wraps is ambiguous
        return "implausible counter" if moved_mj > most_mj else ""

    def _most_mj(self, silent_us: int) -> float:
        """The largest plausible rise of a counter in a time."""
        return IMPLAUSIBLE_FACTOR * self._upper_mj(silent_us) + IMPLAUSIBLE_MJ

    def _counted(
        self, counter_mj: int, length_us: int, *, recovers: bool
    ) -> tuple["MeterState", EnergyPiece]:
        """Rule (a): book the counter's rise beyond what is booked already."""
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
    ) -> EnergyPiece:
        return EnergyPiece(
            length_us=length_us,
            energy_mj=energy_mj,
            unobserved_ms=0,
            upper_mj=0,
            source=self.source,
            quality=quality,
            recovers=recovers,
            note=note,
        )

    def _unobserved(self, length_us: int, note: str) -> EnergyPiece:
        """Rule (d), for the time up to this meter's moment."""
        ends_us = self.monotonic_us
        return EnergyPiece(
            length_us=length_us,
            energy_mj=None,
            # Difference of rounded moments, not a rounded length, so that short times sum up
            # exactly.
            unobserved_ms=ends_us // 1000 - (ends_us - length_us) // 1000,
            upper_mj=self._upper_mj(length_us),
            source=self.source,
            quality=_with_estimated(self.quality),
            note=note,
        )

    def _upper_mj(self, length_us: int) -> int:
        """Upper bound of the energy in a time.

        The highest settable limit counts where it is known: a cap may end between two readings.
        """
        known_w = [each for each in (self.highest_w, self.span_w or self.limit_w) if each]
        limit_mw = math.ceil(1000 * max(known_w, default=UNKNOWN_LIMIT_W))
        return -(-limit_mw * length_us // 1_000_000)


def _with_estimated(quality: str) -> str:
    return merged_quality((quality, Quality.ESTIMATED))


def _power(reading: PowerReading) -> float | None:
    """The power of a reading; None when it is negative, infinite or NaN."""
    power_w = reading.power_w
    if power_w is None or not math.isfinite(power_w) or power_w < 0:
        return None
    return power_w


def _counter(reading: PowerReading) -> int | None:
    """The counter of a reading; None when it is negative."""
    counter_mj = reading.energy_mj
    return None if counter_mj is None or counter_mj < 0 else counter_mj
