"""Sensors that have stopped: the driver answers, but with the same bits for ever. Pure.

An energy counter moves while anything is powered at all, busy or idle. So one that stands still
beside an unchanged power is a sensor that has stopped, and both say nothing any more. A power alone
that does not change proves nothing: it may be constant.
"""

from dataclasses import dataclass, replace

from wattmesh.telemetry.readings import PowerReading

STALE_S = 5.0
"""So long the same bits are believed; real sensors move every 0.1 s."""

STOPPED = "its sensor has stopped"
"""How the trouble of such a reading begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One device's newest bits.

    Attributes:
        bits: counter, power and average power. `since_s`: when they were first seen, monotonic.
    """

    bits: tuple[int | None, float | None, float | None] | None = None
    since_s: float = 0.0

    def seen(self, reading: PowerReading) -> "tuple[Watch, PowerReading]":
        """Give the watch after a reading, and the reading without what is not believed of it."""
        bits = (reading.energy_mj, reading.power_w, reading.average_power_w)
        if bits != self.bits or reading.energy_mj is None or not reading.power_w:
            return Watch(bits=bits, since_s=reading.monotonic_s), reading
        still_s = reading.monotonic_s - self.since_s
        if still_s <= STALE_S:
            return self, reading
        trouble = (
            f"{STOPPED}: counter and power have not changed for {still_s:.0f} s at "
            f"{reading.power_w:.0f} W; look at `nvidia-smi -q -d POWER`"
        )
        return self, replace(
            reading, energy_mj=None, power_w=None, average_power_w=None, trouble=trouble
        )
