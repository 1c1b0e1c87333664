"""What is true now of power: facts, each with its unit, its source and its age.

SI units in the names, times aware UTC. Invariant: unknown is never zero; a value that is not known
is None, and whoever books it counts unobserved seconds instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

J_PER_KWH = 3_600_000


class Quality(StrEnum):
    """How a number came to be."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    PROVISIONAL = "provisional"
    SIMULATED = "simulated"
    STATIC = "static"
    FORECAST = "forecast"


FLAGS = (Quality.ESTIMATED, Quality.PROVISIONAL, Quality.SIMULATED)
"""What a number may be beside measured; several may hold, and none takes another's place."""


SPREAD = "spread"
"""Beside its flags, of an estimated amount: it is right over a longer time, over whose slots it was
laid evenly, so it tells of none of them alone what was drawn in it. No screen shows the word."""


def merged_quality(words: Iterable[str]) -> str:
    """Give the quality of a sum: every flag that any part has, as `estimated+simulated`.

    Args:
        words: qualities of the parts, each itself such a text; a declared number (`static`) is an
            estimate, "" says nothing.
    """
    known = {each for word in words for each in word.split("+")}
    if known & {str(Quality.STATIC), SPREAD}:
        known.add(str(Quality.ESTIMATED))
    told = (*FLAGS, SPREAD)
    return "+".join(str(each) for each in told if str(each) in known) or str(Quality.MEASURED)


def flags_of(*words: str) -> tuple[str, ...]:
    """Give the flags that any of these qualities has, each once."""
    merged = merged_quality(words).split("+")
    return tuple(each for each in merged if each in FLAGS)


class Component(StrEnum):
    """What a reading is of."""

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
        at: wall time, aware UTC. `monotonic_s`: the same moment on the sampler's own clock; every
            duration comes from here.
        energy_mj: the device's energy counter in millijoules since its last reset; None where the
            device has none.
        power_w: power now; None when it could not be read. `average_power_w`: over the last second
            or so, where the device tells both.
        power_limit_w: the limit that is enforced, whoever set it; `requested_limit_w`: the one that
            was last asked for through this interface (they differ under an out-of-band cap).
        highest_limit_w: the highest that can be set on the board.
        reasons: why the clock is what it is, NVML's clocks event reason bits; None: not known.
        utilization: share of time at work, 0 to 1.
        shared: why the device cannot belong to one run alone ("mig", "vgpu", ...); "" when it can.
        wraps_mj: the counter goes back to 0 after this many millijoules (RAPL); None: it does not.
        every_s: how often the source learns anything new; 0: whenever it is asked.
        trouble: why power and counter are not told although the device answers; "" when they are.
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
    trouble: str = ""

    @property
    def tells(self) -> bool:
        """Whether anything can be booked from it: a power or a counter."""
        return self.power_w is not None or self.energy_mj is not None


class PowerSource(Protocol):
    """Where power readings come from: NVML, counters of the kernel, an exporter, ..."""

    @property
    def name(self) -> str:
        """What screens and rows call this source."""
        ...

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices this source can see now."""
        ...

    def read(self) -> Sequence[PowerReading]:
        """Read every device once; a device that does not answer is left out.

        Raises:
            SourceUnavailable: nothing could be read at all.
        """
        ...


@runtime_checkable
class Explains(Protocol):
    """A source that knows why something of it was not read."""

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why, by device or by source; empty when all is well."""
        ...


@runtime_checkable
class Closes(Protocol):
    """A source that holds something open."""

    def close(self) -> None:
        """Let go of it."""
        ...


def component_of(device: str) -> Component:
    """Tell what a device is by its name (see `PowerReading.gpu_uuid`)."""
    kind = device.partition(":")[0]
    hosts = {each.value: each for each in Component if each is not Component.GPU}
    return hosts.get(kind, Component.GPU)


def utc_now() -> datetime:
    """Give the wall time as aware UTC."""
    return datetime.now(UTC)
