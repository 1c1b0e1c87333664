"""Power readings, each with its unit, its source and its time, and the protocol of sources.

SI units in the names, aware UTC times. Invariant: unknown is never zero; an unknown value is None,
and the ledger books unobserved seconds for it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

J_PER_KWH = 3_600_000


class Quality(StrEnum):
    """How a value was obtained."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    PROVISIONAL = "provisional"
    SIMULATED = "simulated"
    STATIC = "static"
    FORECAST = "forecast"


FLAGS = (Quality.ESTIMATED, Quality.PROVISIONAL, Quality.SIMULATED)
"""Flags of a value that is not simply measured. Several may apply, and none replaces another."""


SPREAD = "spread"
"""An extra mark on an estimated amount that was spread evenly over several slots: it is right for
all of them together, not for each one. No screen shows it."""


def merged_quality(words: Iterable[str]) -> str:
    """Return the quality of a sum: the flags of all parts, as `estimated+simulated`.

    Args:
        words: qualities of the parts, each in that form; `static` (a declared number) counts as
            estimated, "" adds nothing.
    """
    known = {each for word in words for each in word.split("+")}
    if known & {str(Quality.STATIC), SPREAD}:
        known.add(str(Quality.ESTIMATED))
    told = (*FLAGS, SPREAD)
    return "+".join(str(each) for each in told if str(each) in known) or str(Quality.MEASURED)


def flags_of(*words: str) -> tuple[str, ...]:
    """Return the flags of these qualities, each once."""
    merged = merged_quality(words).split("+")
    return tuple(each for each in merged if each in FLAGS)


class Component(StrEnum):
    """The kind of device that a reading is of."""

    GPU = "gpu"
    CPU = "cpu"
    DRAM = "dram"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """One device at one moment.

    Attributes:
        gpu_uuid: the device: a GPU's UUID (`GPU-...`, `MIG-...`); other components are named
            `<component>:<host>:<zone>`, e.g. `cpu:n1:package-0`.
        at: wall time, aware UTC.
        monotonic_s: the same moment on the sampler's monotonic clock; durations come from it.
        energy_mj: the device's energy counter in millijoules since its last reset; None where the
            device has none.
        power_w: power now; None when it could not be read.
        average_power_w: mean of about the last second, where the device has both.
        power_limit_w: the limit in force, whoever set it.
        requested_limit_w: the limit last requested through this interface (it differs under an
            out-of-band cap).
        highest_limit_w: the highest limit that the board accepts.
        reasons: NVML's clocks event reason bits; None: not known.
        utilization: share of time in which a kernel ran, 0 to 1.
        shared: why the device cannot belong to one run alone ("mig", "vgpu", ...); "" when it can.
        wraps_mj: the counter wraps to 0 after this many millijoules (RAPL); None: it does not.
        every_s: update interval of the source; 0: every reading is new.
        unsure_s: the values may have been taken so much earlier or later than `monotonic_s`: half
            of the time that reading them took.
        trouble: why power and counter are missing although the device answers; "" when they are
            not.
    """

    gpu_uuid: str
    at: datetime
    monotonic_s: float
    power_w: float | None
    energy_mj: int | None
    clock_mhz: int | None
    power_limit_w: float | None
    source: str
    quality: Quality
    component: Component = Component.GPU
    average_power_w: float | None = None
    requested_limit_w: float | None = None
    highest_limit_w: float | None = None
    reasons: int | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    shared: str = ""
    wraps_mj: int | None = None
    every_s: float = 0.0
    unsure_s: float = 0.0
    trouble: str = ""

    @property
    def tells(self) -> bool:
        """Tell whether anything can be booked from it: a power or a counter."""
        return self.power_w is not None or self.energy_mj is not None


class PowerSource(Protocol):
    """A source of power readings: NVML, kernel counters, an exporter, ..."""

    @property
    def name(self) -> str:
        """The source's name on screens and in ledger rows."""
        ...

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices that the source has now."""
        ...

    def read(self) -> Sequence[PowerReading]:
        """Read every device once; a device that does not answer is left out.

        Raises:
            SourceUnavailable: nothing could be read at all.
        """
        ...


@runtime_checkable
class Explains(Protocol):
    """A source that can say why something was not read."""

    @property
    def troubles(self) -> Mapping[str, str]:
        """Reasons by device or source; empty when everything was read."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A source with resources to release."""

    def close(self) -> None:
        """Release them."""
        ...


def component_of(device: str) -> Component:
    """Derive the component from a device's name (see `PowerReading.gpu_uuid`)."""
    return _HOSTS.get(device.partition(":")[0], Component.GPU)


_HOSTS = {each.value: each for each in Component if each is not Component.GPU}


def moment_of_read(before_s: float) -> tuple[float, float]:
    """Give the moment of a read that has just ended, and how unsure it is.

    Args:
        before_s: when it began, monotonic.

    Returns:
        `monotonic_s` and `unsure_s` of a reading.
    """
    after_s = time.monotonic()
    return (before_s + after_s) / 2, (after_s - before_s) / 2


def utc_now() -> datetime:
    """Return the wall time as aware UTC."""
    return datetime.now(UTC)
