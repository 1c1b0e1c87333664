"""Reads one GPU through NVML, and chooses which fields and calls to use.

Invariant: a device's counter always comes from the same field. Fields 191 and 83 count alike on
most boards but not on all: the one that answered first is kept, and has its own source name in
ledger rows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from wattmesh.telemetry.readings import PowerReading, Quality, moment_of_read, utc_now
from wattmesh.telemetry.sources.nvml import (
    ENERGY,
    ENFORCED_LIMIT,
    POWER_AVERAGE,
    POWER_INSTANT,
    REQUESTED_LIMIT,
    TOTAL_ENERGY,
    BoardLimits,
    DeviceLost,
    DriverGone,
    NotSupported,
    Nvml,
    NvmlFailed,
)
from wattmesh.telemetry.sources.stale import SensorWatch

T = TypeVar("T")

FIELDS = (ENERGY, TOTAL_ENERGY, POWER_INSTANT, POWER_AVERAGE, ENFORCED_LIMIT, REQUESTED_LIMIT)

SLOW_EVERY_S = 5.0
"""Temperature, utilization and sharing change slowly, and are slow to read on some boards."""

FIELD_SOURCE, CALL_SOURCE, POWER_SOURCE = "nvml", "nvml-total", "nvml-power"
"""Source names in ledger rows: counter from field 191; counter from field 83 or its equivalent
call; no counter, so power is integrated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReadings:
    """Values that are read every `SLOW_EVERY_S`; None: not known."""

    at_s: float = float("-inf")
    temperature_c: float | None = None
    utilization: float | None = None
    limits: BoardLimits | None = None
    shared: str = ""


@dataclass(slots=True)
class NvmlDevice:
    """Reads one GPU; one thread calls `read`.

    Attributes:
        ids: the fields that the device has.
        counter: field of the energy counter; 0: its own call; None: not known yet, or there is no
            counter (`counts` False).
    """

    nvml: Nvml
    uuid: str
    quality: Quality
    ids: tuple[int, ...] = FIELDS
    counter: int | None = None
    counts: bool = True
    slow: SlowReadings = field(default_factory=SlowReadings)
    watch: SensorWatch = field(default_factory=SensorWatch)

    def read(self) -> PowerReading:
        """Read the device: one call for all its fields, and a few cheap calls.

        Raises:
            NvmlFailed: the device (`DeviceLost`) or the driver (`DriverGone`) does not answer.
        """
        before_s = time.monotonic()
        told = self._fields()
        energy_mj = self._energy(told)
        (monotonic_s, unsure_s), at = moment_of_read(before_s), utc_now()
        instant, average = told.get(POWER_INSTANT), told.get(POWER_AVERAGE)
        power_w = _watts(instant if instant is not None else average)
        if power_w is None:
            power_w = self._maybe(self.nvml.power_w)
        if monotonic_s - self.slow.at_s >= SLOW_EVERY_S:
            self.slow = self._look(monotonic_s)
        limits = self.slow.limits
        reading = PowerReading(
            gpu_uuid=self.uuid,
            at=at,
            monotonic_s=monotonic_s,
            power_w=power_w,
            average_power_w=_watts(average),
            energy_mj=energy_mj,
            clock_mhz=self._maybe(self.nvml.sm_clock_mhz),
            power_limit_w=_watts(told.get(ENFORCED_LIMIT))
            or (limits.enforced_w if limits else None),
            highest_limit_w=limits.max_w if limits else None,
            requested_limit_w=_watts(told.get(REQUESTED_LIMIT)),
            reasons=self._maybe(self.nvml.reasons),
            temperature_c=self.slow.temperature_c,
            utilization=self.slow.utilization,
            shared=self.slow.shared,
            source=self._source(),
            quality=self.quality,
            unsure_s=unsure_s,
        )
        self.watch, reading = self.watch.after(reading)
        return reading

    def pids(self) -> tuple[int, ...]:
        """List the processes with a compute context on the device, ascending.

        Raises:
            NvmlFailed: it does not answer.
        """
        return self.nvml.compute_pids(self.uuid)

    def _fields(self) -> dict[int, int]:
        """Read the fields that the device has; the first time, all of them."""
        if not self.ids:
            return {}
        try:
            return self.nvml.fields(self.uuid, self.ids)
        except NotSupported:  # the driver has no such call
            self.ids = ()
            return {}

    def _energy(self, told: dict[int, int]) -> int | None:
        """Read the counter, always from the same field; None when it has no value now."""
        if not self.counts:
            return None
        if self.counter is None:
            for each in (ENERGY, TOTAL_ENERGY):
                if each in told:
                    self.counter = each
                    self.ids = tuple(i for i in self.ids if i not in (ENERGY, TOTAL_ENERGY))
                    self.ids = (each, *self.ids)
                    return told[each]
        elif self.counter:
            return told.get(self.counter)
        try:
            energy_mj = self.nvml.energy_mj(self.uuid)
        except NotSupported:
            self.counts = False
            return None
        except (DeviceLost, DriverGone):
            raise
        except NvmlFailed:
            return None
        self.counter = 0
        return energy_mj

    def _source(self) -> str:
        if not self.counts:
            return POWER_SOURCE
        return CALL_SOURCE if self.counter in (0, TOTAL_ENERGY) else FIELD_SOURCE

    def _look(self, now_s: float) -> SlowReadings:
        return SlowReadings(
            at_s=now_s,
            temperature_c=self._maybe(self.nvml.temperature_c),
            utilization=self._maybe(self.nvml.utilization),
            limits=self._maybe(self.nvml.limits),
            shared=self._maybe(self.nvml.shared) or "",
        )

    def _maybe(self, call: Callable[[str], T]) -> T | None:
        """Call a getter; None when this board or driver does not have it.

        Raises:
            NvmlFailed: the device or the driver is gone.
        """
        try:
            return call(self.uuid)
        except (DeviceLost, DriverGone):
            raise
        except NvmlFailed:
            return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
