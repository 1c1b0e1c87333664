"""Detects sensors that have stopped: the driver answers, but always with the same values. Pure.

An energy counter moves whenever the board is powered, busy or idle. So a counter that stands still
while the power does not change means that the sensor has stopped, and neither value may be used. An
unchanged power alone proves nothing: the load may be constant.
"""

from dataclasses import dataclass, replace

from wattmesh.telemetry.readings import PowerReading

STALE_S = 5.0
"""How long unchanged values are used; real sensors change every 0.1 s."""

STOPPED = "its sensor has stopped"
"""Prefix of the trouble of such a reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorWatch:
    """The newest distinct values of one device.

    Attributes:
        bits: counter, power and average power.
        since_s: when they were first read, monotonic. `look_at`: the vendor's command to look with.
    """

    bits: tuple[int | None, float | None, float | None] | None = None
    since_s: float = 0.0
    look_at: str = "nvidia-smi -q -d POWER"

    def after(self, reading: PowerReading) -> "tuple[SensorWatch, PowerReading]":
        """Return the next watch, and the reading without values of a stopped sensor."""
        bits = (reading.energy_mj, reading.power_w, reading.average_power_w)
        if bits != self.bits or reading.energy_mj is None or not reading.power_w:
            return replace(self, bits=bits, since_s=reading.monotonic_s), reading
        still_s = reading.monotonic_s - self.since_s
        if still_s <= STALE_S:
            return self, reading
        trouble = (
            f"{STOPPED}: counter and power have not changed for {still_s:.0f} s at "
            f"{reading.power_w:.0f} W; look at `{self.look_at}`"
        )
        return self, replace(
            reading, energy_mj=None, power_w=None, average_power_w=None, trouble=trouble
        )
