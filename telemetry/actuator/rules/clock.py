"""Reads the clocks that leases are measured on."""

import time
from datetime import UTC, datetime
from pathlib import Path

from wattmesh.telemetry.actuator.rules.leases import BootTime

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def moment() -> BootTime:
    """Read the wall clock, CLOCK_BOOTTIME and the boot's id."""
    return BootTime(
        wall=datetime.now(UTC),
        boot_s=time.clock_gettime(time.CLOCK_BOOTTIME),
        boot_id=BOOT_ID.read_text().strip(),
    )
