"""Processors and DRAM through RAPL: the energy counters of Linux's powercap tree.

Only packages and DRAM are read: `core` and `uncore` are parts of their package, and `psys` contains
all of them, so adding those would count twice. The counters wrap at `max_energy_range_uj`, after
minutes on a big machine; the ledger's rules handle that (`PowerReading.wraps_mj`).

Layout: https://docs.kernel.org/power/powercap/powercap.html
"""

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.readings import Component, PowerReading, Quality, moment_of_read, utc_now

ROOT = Path("/sys/class/powercap")
UJ_PER_MJ = 1000
LONGEST_MEAN_S = 60.0
"""A mean over a longer time is not the present power, and the counter may have wrapped in it."""

MOST_OVER_LIMIT, MOST_W = 4.0, 10_000.0
"""The most that a zone draws on the mean of two readings: times its long-term limit (turbo is some
1.3 to 2 times that), or watts where it tells none."""

WAY_OUT = (
    "since Linux 5.10 only root may: let the service read it, e.g. AmbientCapabilities="
    "CAP_DAC_READ_SEARCH in its unit, or a udev rule that gives energy_uj to its group"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One RAPL counter.

    Attributes:
        name: device name in ledger rows, e.g. "cpu:n1:package-0".
        wraps_uj: the value at which it wraps to zero.
        limit_w: the long-term power limit; None: not known.
    """

    name: str
    component: Component
    folder: Path
    wraps_uj: int
    limit_w: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A counter's value, and when it was read (monotonic)."""

    energy_uj: int
    at_s: float


class RaplSource:
    """The counters of one machine (`PowerSource`). One thread reads it."""

    def __init__(self, root: Path = ROOT, host: str = "") -> None:
        """Read below `root`; every reading lists the zones again, because modules may be unloaded.

        Args:
            root: the powercap tree.
            host: host part of the device names; default this machine's.
        """
        self._root = root
        self._host = host or platform.node()
        self._before: dict[str, _Look] = {}

    @property
    def name(self) -> str:
        """The source's name on screens and in ledger rows."""
        return "rapl"

    def gpu_uuids(self) -> Sequence[str]:
        """List the zones' names."""
        return [zone.name for zone in zones(self._root, self._host)]

    def read(self) -> Sequence[PowerReading]:
        """Read every zone once; one that cannot be read is left out.

        Raises:
            SourceUnavailable: there is no zone, or none can be read.
        """
        found = zones(self._root, self._host)
        if not found:
            raise SourceUnavailable(
                f"no RAPL zone in {self._root}: the machine has none, or the kernel module "
                "intel_rapl_msr is not loaded (it serves AMD too); set power.rapl to false"
            )
        readings, troubles = [], []
        for zone in found:
            try:
                readings.append(self._reading(zone))
            except (OSError, ValueError) as error:
                troubles.append(error)
        if not readings:
            raise SourceUnavailable(_why_unread(found[0], troubles[0]))
        return readings

    def _reading(self, zone: Zone) -> PowerReading:
        """Read one zone; its power is the mean since the last reading."""
        before_s = time.monotonic()
        energy_uj = _number(zone.folder / "energy_uj")
        now_s, unsure_s = moment_of_read(before_s)
        before = self._before.get(zone.name)
        self._before[zone.name] = now = _Look(energy_uj=energy_uj, at_s=now_s)
        return PowerReading(
            gpu_uuid=zone.name,
            at=utc_now(),
            monotonic_s=now_s,
            power_w=mean_power_w(before, now, zone) if before else None,
            energy_mj=energy_uj // UJ_PER_MJ,
            clock_mhz=None,
            power_limit_w=zone.limit_w,
            source=self.name,
            quality=Quality.MEASURED,
            component=zone.component,
            wraps_mj=zone.wraps_uj // UJ_PER_MJ,
            unsure_s=unsure_s,
        )


def mean_power_w(before: _Look, now: _Look, zone: Zone) -> float | None:
    """Mean power between two readings; None when they are too close or too far apart.

    A counter that began again at 0 looks like one that wrapped; then the mean is beyond what the
    zone can draw, and not known.
    """
    length_s = now.at_s - before.at_s
    if not 0 < length_s <= LONGEST_MEAN_S:
        return None
    mean_w = (now.energy_uj - before.energy_uj) % zone.wraps_uj / 1e6 / length_s
    most_w = MOST_OVER_LIMIT * zone.limit_w if zone.limit_w else MOST_W
    return mean_w if mean_w <= most_w else None


def zones(root: Path, host: str) -> list[Zone]:
    """Find the packages and DRAM below `root`; anything else is left out."""
    each = (_zone(folder, host) for folder in sorted(root.glob("intel-rapl:*")))
    return [zone for zone in each if zone is not None]


def _zone(folder: Path, host: str) -> Zone | None:
    """Read one zone; None when it is not a package or DRAM."""
    try:
        said = (folder / "name").read_text().strip()
        wraps_uj = _number(folder / "max_energy_range_uj")
        if said.startswith("package"):
            component, place = Component.CPU, said
        elif said == "dram":
            package = folder.parent / folder.name.rpartition(":")[0]
            component, place = Component.DRAM, (package / "name").read_text().strip()
        else:
            return None
    except (OSError, ValueError):
        return None
    if wraps_uj <= 0:
        return None
    return Zone(
        name=f"{component}:{host}:{place}",
        component=component,
        folder=folder,
        wraps_uj=wraps_uj,
        limit_w=_limit_w(folder),
    )


def _limit_w(folder: Path) -> float | None:
    """The long-term power limit; None where there is none."""
    try:
        limit_uw = _number(folder / "constraint_0_power_limit_uw")
    except (OSError, ValueError):
        return None
    return limit_uw / 1e6 if limit_uw > 0 else None


def _number(path: Path) -> int:
    return int(path.read_text())


def _why_unread(zone: Zone, error: Exception) -> str:
    path = zone.folder / "energy_uj"
    if isinstance(error, PermissionError):
        return f"{path} may not be read: {WAY_OUT}"
    return f"{path} cannot be read ({error})"
