"""Compares a device's energy counter with the integral of its power, hour by hour. Pure.

Both come from the same sensor on two paths, so a difference means that one of them is wrong
(counters at 0.57 of the power have been reported). Invariant: an interval counts only if both
values are known at both of its ends, so resets, outages and changes of source do not move the
ratio.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from wattmesh.telemetry.energy.meter import (
    IMPLAUSIBLE_FACTOR,
    IMPLAUSIBLE_MJ,
    UNKNOWN_LIMIT_W,
    micros,
)
from wattmesh.telemetry.readings import PowerReading

WINDOW_US = 3600 * 1_000_000
EARLY_US = 600 * 1_000_000
"""The first hour's ratio is used from here on: counter and power are each updated every 0.1 s."""

LEAST_RATIO, MOST_RATIO = 0.9, 1.1


class Correction(StrEnum):
    """Why a device's counter reading was not used as it is."""

    RESET = "reset"
    IMPLAUSIBLE = "implausible"
    STALE = "stale"
    LOST = "lost"


NOTES = {
    "counter reset": Correction.RESET,
    "implausible counter": Correction.IMPLAUSIBLE,
    "stale counter": Correction.STALE,
}
"""From `EnergyPiece.note` to a correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """The comparison for one device up to its newest reading.

    Attributes:
        counted_mj, integral_mj: energy over `window_us` by the counter and by integrated power.
        hour: the ratio of the newest complete hour; None before the first.
    """

    source: str
    at_us: int
    counter_mj: int | None
    power_w: float | None
    window_us: int = 0
    counted_mj: int = 0
    integral_mj: float = 0.0
    hour: float | None = None

    @classmethod
    def first(cls, reading: PowerReading) -> "CrossCheck":
        """Begin with a device's first reading."""
        return cls(
            source=reading.source,
            at_us=micros(reading.monotonic_s),
            counter_mj=reading.energy_mj,
            power_w=_power_w(reading),
        )

    def followed(self, reading: PowerReading, *, hold_us: int) -> "CrossCheck":
        """Add the next reading of the device.

        Args:
            reading: newer, on the same monotonic clock; an older one changes nothing.
            hold_us: longest interval between two readings that is integrated.
        """
        now = CrossCheck.first(reading)
        length_us = now.at_us - self.at_us
        if length_us <= 0:
            return self
        kept = replace(
            self,
            source=now.source,
            at_us=now.at_us,
            counter_mj=now.counter_mj,
            power_w=now.power_w,
        )
        most_w = IMPLAUSIBLE_FACTOR * (reading.power_limit_w or UNKNOWN_LIMIT_W)
        most_mj = most_w * length_us / 1000 + IMPLAUSIBLE_MJ
        moved_mj = self._moved_mj(now, most_mj) if length_us <= hold_us else None
        if moved_mj is None or self.power_w is None or now.power_w is None:
            return kept
        added = replace(
            kept,
            window_us=self.window_us + length_us,
            counted_mj=self.counted_mj + moved_mj,
            integral_mj=self.integral_mj + (self.power_w + now.power_w) / 2 * length_us / 1000,
        )
        if added.window_us < WINDOW_US:
            return added
        return replace(added, window_us=0, counted_mj=0, integral_mj=0.0, hour=added._so_far)

    @property
    def ratio(self) -> float | None:
        """Counter over integral, of the newest hour or of enough of the first one."""
        if self.hour is not None:
            return self.hour
        return self._so_far if self.window_us >= EARLY_US else None

    @property
    def trusted(self) -> bool:
        """Tell whether the ratio is within bounds, or not known yet."""
        return self.ratio is None or LEAST_RATIO <= self.ratio <= MOST_RATIO

    @property
    def _so_far(self) -> float | None:
        """Counter over integral of the current, incomplete hour."""
        return self.counted_mj / self.integral_mj if self.integral_mj > 0 else None

    def _moved_mj(self, now: "CrossCheck", most_mj: float) -> int | None:
        """How far the counter moved; None after a reset, a jump or a change of source."""
        if self.counter_mj is None or now.counter_mj is None or self.source != now.source:
            return None
        moved_mj = now.counter_mj - self.counter_mj
        return moved_mj if 0 <= moved_mj <= most_mj else None


def sentence(gpu: str, check: CrossCheck) -> str:
    """Say what is wrong with a device's counter and what to do; "" when nothing is."""
    if check.ratio is None or check.trusted:
        return ""
    return (
        f"{gpu}: its energy counter gives {check.ratio:.2f} of its power x time over the newest "
        f"hour (expected {LEAST_RATIO:g} to {MOST_RATIO:g}); its joules may be wrong by as much. "
        "Compare both with `nvidia-smi -q -d POWER`, then reload the driver or exchange the board."
    )


def _power_w(reading: PowerReading) -> float | None:
    """The power that integrates best: the mean of the last second, where the board has it."""
    average_w = reading.average_power_w
    power_w = reading.power_w if average_w is None else average_w
    return power_w if power_w is not None and 0 <= power_w < float("inf") else None
