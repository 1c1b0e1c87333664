"""Devices that nothing measures, at the power that the settings assume for them.

Invariant: every reading is flagged `estimated`, and `sources.Chain` prefers any measuring source.
"""

import time
from collections.abc import Sequence

from wattmesh.telemetry.readings import PowerReading, Quality, utc_now


class StaticPower:
    """A constant power for some devices (`PowerSource`)."""

    def __init__(self, gpu_uuids: Sequence[str], power_w: float) -> None:
        """Assume `power_w` (> 0) for each device."""
        self._gpu_uuids = tuple(gpu_uuids)
        self._power_w = power_w

    @property
    def name(self) -> str:
        """The source's name on screens and in ledger rows."""
        return "static"

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices."""
        return self._gpu_uuids

    def read(self) -> Sequence[PowerReading]:
        """Return each device's assumed power, at the present time."""
        now_s, at = time.monotonic(), utc_now()
        return [
            PowerReading(
                gpu_uuid=uuid,
                at=at,
                monotonic_s=now_s,
                power_w=self._power_w,
                energy_mj=None,
                clock_mhz=None,
                power_limit_w=None,
                source=self.name,
                quality=Quality.ESTIMATED,
            )
            for uuid in self._gpu_uuids
        ]
