"""This machine's AMD GPUs, through AMD SMI (the package `amdsmi` of the site's ROCm).

Invariant: a board is read once. Partitions of one board (CPX, DPX) share its sensor, so the first
one stands for it and is marked shared. A counter is used only after it agreed with power, since
some boards count in another unit than they say.

Interface: https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TextIO, TypeVar, cast

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.readings import PowerReading, Quality, moment_of_read, utc_now
from wattmesh.telemetry.sources.gpu_threads import DEADLINE_S, GpuDevice, ThreadedGpus
from wattmesh.telemetry.sources.stale import SensorWatch

T = TypeVar("T")
log = logging.getLogger(__name__)

COUNTER_SOURCE, POWER_SOURCE = "amdsmi", "amdsmi-power"
"""Source names in ledger rows: by the board's counter; no counter to trust, so power is integrated.
"""

TRIAL_S = 10.0
LEAST_RATIO, MOST_RATIO = 0.67, 1.5
"""How long a counter is compared with power before it counts, and within which it agrees: a unit
that is wrong is wrong by far more, and both come from one sensor."""

SLOW_EVERY_S = 5.0
HIGHEST_POWER_W = 10_000.0
BLANKS = (0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF)
"""AMD SMI's "not available", in fields of three widths."""

UJ_PER_MJ = 1000.0
UW_PER_W = 1e6

INSTALL = (
    "AMD SMI cannot be loaded ({}); install ROCm's amd-smi-lib and the amdsmi package of the same "
    "version (`pip install /opt/rocm/share/amd_smi`), and set ROCM_PATH if it is not /opt/rocm"
)


class AmdFailed(SourceUnavailable):
    """AMD SMI answered with an error."""


class AmdSource(ThreadedGpus):
    """AMD SMI as a `PowerSource`."""

    def __init__(self, *, deadline_s: float = DEADLINE_S, trial_s: float = TRIAL_S) -> None:
        """Prepare; the first reading opens AMD SMI, and later ones retry until it is open.

        Args:
            deadline_s: longest duration of `read`, and of `compute_pids`.
            trial_s: how long a counter is compared with power before it counts.
        """
        super().__init__(
            COUNTER_SOURCE,
            lambda: _Library(trial_s),
            look_at="amd-smi list",
            deadline_s=deadline_s,
        )


class _Quiet:
    """Standard output without what this thread prints; others print on while it imports."""

    def __init__(self, whole: Any) -> None:
        self._whole, self._thread = whole, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._whole.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Board:
    """A board at its PCI device.

    Attributes:
        first: address of the processor that stands for it.
        uuid: what that one tells. `name`: the same, unless another board tells it too.
    """

    first: str
    uuid: str
    name: str


class _Library:
    """AMD SMI as a library of GPUs."""

    def __init__(self, trial_s: float) -> None:
        self._trial_s = trial_s
        self._devices: dict[str, AmdDevice] = {}
        self._boards: dict[str, _Board] = {}
        try:
            # Without its library the package prints, and raises whatever comes first.
            with redirect_stdout(cast("TextIO", _Quiet(sys.stdout))):
                self._smi: Any = import_module("amdsmi")
        except Exception as error:
            raise SourceUnavailable(INSTALL.format(f"{type(error).__name__}: {error}")) from None
        self._call("initialise", "amdsmi_init")

    def reopen(self) -> None:
        # Handles are of one initialisation: one of an earlier may be another board's by now.
        for device in self._devices.values():
            device.handles = ()
        # Shutting down fails where the driver went away; initialising says whether it is back.
        self.close()
        self._call("initialise", "amdsmi_init")

    def close(self) -> None:
        with suppress(AmdFailed):
            self._call("shut down", "amdsmi_shut_down")

    def devices(self) -> Mapping[str, GpuDevice]:
        taken: set[str] = set()
        for place, processors in self._processors().items():
            known = self._boards.get(place)
            first = known.first if known else processors[0][0]
            handles = [handle for at, handle in processors if at == first]
            if not handles:
                continue  # another partition in its place would be the same board anew
            try:
                uuid = str(self._call("name a GPU", "amdsmi_get_gpu_device_uuid", handles[0]))
            except AmdFailed:
                continue
            if known is None or known.uuid != uuid:
                known = _Board(first=first, uuid=uuid, name=_free(uuid, place, taken))
                self._boards[place] = known
            taken.add(known.name)
            if known.name not in self._devices:
                self._devices[known.name] = AmdDevice(
                    smi=self._smi,
                    call=self._call,
                    handles=(),
                    uuid=known.name,
                    quality=self._quality(handles[0]),
                    trial_s=self._trial_s,
                )
            others = (handle for at, handle in processors if at != first)
            self._devices[known.name].handles = (*handles, *others)
        return {name: each for name, each in self._devices.items() if each.handles}

    def _processors(self) -> Mapping[str, list[tuple[str, Any]]]:
        """List (address, handle) of the processors that answer, by their board's PCI device."""
        boards: dict[str, list[tuple[str, Any]]] = {}
        for handle in self._call("list GPUs", "amdsmi_get_processor_handles"):
            try:
                address = str(self._call("find a GPU", "amdsmi_get_gpu_device_bdf", handle))
            except AmdFailed:
                continue  # lost; the others may answer
            # Partitions of a board are functions of its one PCI device.
            boards.setdefault(address.rpartition(".")[0], []).append((address, handle))
        return boards

    def _quality(self, handle: Any) -> Quality:
        """Say whether the driver is a fake one, whose readings are simulated."""
        try:
            told = self._call("name the driver", "amdsmi_get_gpu_driver_info", handle)
        except AmdFailed:
            return Quality.MEASURED
        fake = "fake" in str(told.get("driver_version", "")).lower()
        return Quality.SIMULATED if fake else Quality.MEASURED

    def _call(self, what: str, name: str, *arguments: Any) -> Any:
        """Call AMD SMI.

        Raises:
            AmdFailed: it answers with an error, or this version has no such call.
        """
        try:
            return getattr(self._smi, name)(*arguments)
        except Exception as error:
            said = " ".join(str(getattr(error, "err_info", error)).split())
            raise AmdFailed(f"AMD SMI could not {what}: {said or type(error).__name__}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A counter beside power since `began_s`: joules by each, and the newest look."""

    began_s: float
    began_mj: int
    at_s: float
    power_w: float
    integral_j: float = 0.0

    def after(self, at_s: float, power_w: float) -> "_Trial":
        """Add the time since the newest look, by the mean of both powers."""
        passed_j = (at_s - self.at_s) * (self.power_w + power_w) / 2
        return replace(self, at_s=at_s, power_w=power_w, integral_j=self.integral_j + passed_j)


@dataclass(slots=True)
class AmdDevice:
    """Reads one board; one thread calls `read`.

    Attributes:
        handles: its processors: one, or its partitions; none while it is lost.
        counts: whether its counter agreed with power; None: not known yet.
    """

    smi: Any
    call: Callable[..., Any]
    handles: tuple[Any, ...]
    uuid: str
    quality: Quality
    trial_s: float
    counts: bool | None = None
    trial: _Trial | None = None
    slow_at_s: float = -math.inf
    utilization: float | None = None
    limit_w: float | None = None
    watch: SensorWatch = field(
        default_factory=lambda: SensorWatch(look_at="amd-smi metric --power --energy")
    )

    def read(self) -> PowerReading:
        """Read the board.

        Raises:
            AmdFailed: it tells neither power nor energy.
        """
        handle, failures = self._listed()[0], []
        before_s = time.monotonic()
        power_w = energy_mj = None
        try:
            power_w = self._ask(_power_w, "read power", "amdsmi_get_power_info", handle)
        except AmdFailed as error:
            failures.append(error)
        if self.counts is not False:
            try:
                energy_mj = self._ask(_energy_mj, "read energy", "amdsmi_get_energy_count", handle)
            except AmdFailed as error:
                failures.append(error)
        (monotonic_s, unsure_s), at = moment_of_read(before_s), utc_now()
        if power_w is None and energy_mj is None and failures:
            raise failures[0]
        self._judge(monotonic_s, power_w, energy_mj)
        if monotonic_s - self.slow_at_s >= SLOW_EVERY_S:
            self.slow_at_s = monotonic_s
            self._look(handle)
        reading = PowerReading(
            gpu_uuid=self.uuid,
            at=at,
            monotonic_s=monotonic_s,
            power_w=power_w,
            energy_mj=energy_mj if self.counts else None,
            clock_mhz=self._clock_mhz(handle),
            power_limit_w=self.limit_w,
            utilization=self.utilization,
            shared="partitions" if len(self.handles) > 1 else "",
            source=COUNTER_SOURCE if self.counts else POWER_SOURCE,
            quality=self.quality,
            unsure_s=unsure_s,
        )
        self.watch, reading = self.watch.after(reading)
        return reading

    def pids(self) -> tuple[int, ...]:
        """List the processes on the board, ascending.

        Raises:
            AmdFailed: it does not answer.
        """
        found = (
            self._ask(_pids, "list processes", "amdsmi_get_gpu_process_list", handle)
            for handle in self._listed()
        )
        return tuple(sorted(set().union(*found)))

    def _listed(self) -> tuple[Any, ...]:
        """Give its processors.

        Raises:
            AmdFailed: it was not found when the library was initialised last.
        """
        handles = self.handles
        if not handles:
            raise AmdFailed("AMD SMI does not list it any more; look at `amd-smi list`")
        return handles

    def _ask(self, read: Callable[[Any], T], what: str, name: str, *arguments: Any) -> T:
        """Call AMD SMI and read its answer.

        Raises:
            AmdFailed: it answers with an error, or with something else than versions known to us.
        """
        told = self.call(what, name, *arguments)
        try:
            return read(told)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise AmdFailed(f"AMD SMI could not {what}: it answered {told!r:.80}") from None

    def _judge(self, at_s: float, power_w: float | None, energy_mj: int | None) -> None:
        """Compare a counter on trial with power; what is missing for long begins the trial anew."""
        if self.counts is not None or power_w is None or energy_mj is None:
            return
        trial = self.trial
        if trial is None or energy_mj < trial.began_mj or at_s - trial.at_s > self.trial_s:
            self.trial = _Trial(began_s=at_s, began_mj=energy_mj, at_s=at_s, power_w=power_w)
            return
        self.trial = trial = trial.after(at_s, power_w)
        if at_s - trial.began_s < self.trial_s or trial.integral_j <= 0:
            return
        ratio = (energy_mj - trial.began_mj) / 1000 / trial.integral_j
        self.counts = LEAST_RATIO <= ratio <= MOST_RATIO
        if not self.counts:
            log.warning(
                "%s: its energy counter moves %.2g times as fast as its power says; its power is "
                "integrated instead",
                self.uuid,
                ratio,
            )

    def _look(self, handle: Any) -> None:
        """Read what changes slowly; None where this board does not have it."""
        self.utilization = self.limit_w = None
        with suppress(AmdFailed):
            percent = self._ask(
                _field("gfx_activity"), "read activity", "amdsmi_get_gpu_activity", handle
            )
            self.utilization = percent / 100 if percent is not None and percent <= 100 else None
        with suppress(AmdFailed):
            limit_uw = self._ask(
                _field("power_cap"), "read the cap", "amdsmi_get_power_cap_info", handle
            )
            # Some versions tell watts here: what is then below a watt is not known.
            if limit_uw is not None and UW_PER_W <= limit_uw <= HIGHEST_POWER_W * UW_PER_W:
                self.limit_w = limit_uw / UW_PER_W

    def _clock_mhz(self, handle: Any) -> int | None:
        try:
            kind = self.smi.AmdSmiClkType.GFX
            clock_mhz = self._ask(
                _field("clk"), "read the clock", "amdsmi_get_clock_info", handle, kind
            )
        except (AmdFailed, AttributeError):
            return None
        return None if clock_mhz is None else int(clock_mhz)


def _free(uuid: str, place: str, taken: Collection[str]) -> str:
    """Name a board: as it tells, unless another one tells the same (without a serial number)."""
    if uuid not in taken:
        return uuid
    log.warning("two boards tell the UUID %s; the one at %s is named with its address", uuid, place)
    return f"{uuid}-{place.replace(':', '-')}"


def _field(name: str) -> Callable[[Any], float | None]:
    """Read a number of an answer by its name."""
    return lambda told: _number(told.get(name))


def _pids(told: Any) -> frozenset[int]:
    """Read the processes of a list of processes."""
    return frozenset(int(each["pid"]) for each in told)


def _power_w(told: Mapping[str, Any]) -> float | None:
    """Read the board's power: present where the board tells it, else its mean of a second."""
    names = ("current_socket_power", "average_socket_power", "socket_power")
    each_w = (_number(told.get(name)) for name in names)
    return next((w for w in each_w if w is not None and 0 < w <= HIGHEST_POWER_W), None)


def _energy_mj(told: Mapping[str, Any]) -> int | None:
    """Read the counter: ticks times the microjoules of one."""
    ticks, tick_uj = (
        _number(told.get("energy_accumulator")),
        _number(told.get("counter_resolution")),
    )
    if ticks is None or tick_uj is None or ticks <= 0 or tick_uj <= 0:
        return None
    return int(ticks * tick_uj / UJ_PER_MJ)


def _number(value: Any) -> float | None:
    """Read a number; None where the library says "N/A", or fills the field with ones."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return None if value in BLANKS else float(value)
