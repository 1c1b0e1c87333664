"""What measures a profiled job's power: NVML, RAPL, an exporter, the agent, an assumption, a fake.

`auto` takes what is there: NVML, and the processors' counters where they may be read. Invariant:
nothing is simulated or assumed unless the job file or `--fake-gpus` asks for it by name, and every
draw says what it is.
"""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from wattmesh.controller.process.children import wait_for
from wattmesh.controller.profile.job import PowerKind, ProfileJob
from wattmesh.controller.profile.measuring.windows import Draw
from wattmesh.controller.profile.power.agent_page import BOOKED_S, AgentPage
from wattmesh.controller.profile.power.clocks import ActuatorClocks, Clocks, FakeClocks, NoClocks
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.catalogue import PowerScope
from wattmesh.telemetry.energy.burst import HZ, UPDATE_S, Burst, Figure
from wattmesh.telemetry.fake_nvml import DEMO_BOARD, FOLDER_VARIABLE, FakeGpu, FakeNvml
from wattmesh.telemetry.readings import (
    Closes,
    Component,
    PowerReading,
    PowerSource,
    Quality,
    component_of,
    merged_quality,
)
from wattmesh.telemetry.sources.nvml import Nvml
from wattmesh.telemetry.sources.nvml_source import NvmlSource
from wattmesh.telemetry.sources.prometheus import PrometheusSource
from wattmesh.telemetry.sources.rapl import ROOT, RaplSource

OPEN_LIMIT_S = 30.0
RAPL_UPDATE_S = 0.001
"""RAPL's counters change about every millisecond."""

FAKE_HZ = 50.0
"""A fake counter is always up to date, so how often it is read bounds the error."""

EXPORTERS = ("dcgm", "wattmesh", "kepler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drivers:
    """What the driver says of the GPUs; "" where nothing does."""

    models: str = ""
    vbios: str = ""
    driver: str = ""


@dataclass(slots=True)
class PowerMeter:
    """Context manager that samples all sources of a job until it is left.

    Attributes:
        gpus: devices that are GPUs, in the order of ranks where the job names none.
        hosts: processors and memory.
        environment: what the job must be started with.
        fakes: fake GPUs, in the order of ranks.
        clocks: what locks the GPUs' clocks.
        clockless: why no point's clock can be locked here; "" where it can.
    """

    job: ProfileJob
    folder: Path
    gpus: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    fakes: tuple[FakeGpu, ...] = ()
    clocks: Clocks = field(default_factory=NoClocks)
    clockless: str = ""
    drivers: Drivers = field(default_factory=Drivers)
    _bursts: list[Burst] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _why: str = ""

    def __enter__(self) -> Self:
        """Open what the job file asks for, and begin to sample.

        Raises:
            InputInvalid: it does not answer; the message says what to do.
        """
        try:
            self._open()
            self._open_clocks()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def scope(self) -> PowerScope:
        """What the watts contain."""
        return PowerScope.NODE if self.hosts else PowerScope.GPU

    @property
    def is_static(self) -> bool:
        """Whether the watts are assumed."""
        return self.job.power.kind is PowerKind.STATIC

    @property
    def words(self) -> str:
        """What measures, for people."""
        kind = self.job.power.kind
        if self.is_static:
            return f"{self.job.power.watts:g} W per GPU, assumed"
        parts = [f"{len(self.gpus)} GPUs"] if self.gpus else []
        parts += [f"{len(self.hosts)} counters of the host"] if self.hosts else []
        return f"{' and '.join(parts)} ({kind})"

    def idle(self, seconds: float) -> tuple[float | None, float | None]:
        """Read for so long; return the mean watts of one GPU and of the host, None: not read."""
        if self.is_static:
            return self.job.power.idle_watts, None
        time.sleep(seconds)
        end_s = time.monotonic()
        figures = self.figures(end_s - seconds, end_s - seconds / 10)
        gpus = [_power_w(figures.get(each)) for each in self.gpus[: self.job.processes]]
        hosts = [_power_w(figures.get(each)) for each in self.hosts]
        known = [each for each in gpus if each is not None]
        gpu_w = sum(known) / len(known) if known else None
        host_w = sum(each or 0.0 for each in hosts) if hosts and None not in hosts else None
        return gpu_w, host_w

    def strangers(self, named: Sequence[str]) -> str:
        """Say that what is read are not the GPUs that the job names; "" where they may be.

        `named`: of the ranks that train; empty where the job names none.
        """
        if not self.gpus or self.fakes:
            return ""
        others = [each for each in named if each and each not in self.gpus]
        if others:
            return (
                f"the job computes on {others[0]}, and job.power reads {len(self.gpus)} other GPUs "
                f"({self.gpus[0]}, ...): read the power of the job's own"
            )
        kind, many = self.job.power.kind, len(self.gpus)
        if kind is PowerKind.PROMETHEUS and not any(named) and many > self.job.processes:
            return (
                f"the server gives {many} GPUs, the job has {self.job.processes} processes and "
                "names none of its GPUs: narrow them down with [power] selector"
            )
        return ""

    def trouble(self) -> str:
        """Say why readings are missing; "" where none are."""
        return "; ".join(each.trouble for each in self._bursts if each.trouble)

    def draw(self, used: Sequence[str], held: int, start_s: float, end_s: float) -> Draw | None:
        """Return what was drawn in a window.

        Args:
            used: GPUs that train; empty: the first of `gpus` are taken for `held` of them.
            held: how many GPUs train.
            start_s: where the window begins (monotonic).
            end_s: where it ends.

        Returns:
            None where some device was not read throughout, or not yet.
        """
        seconds = end_s - start_s
        if self.is_static:
            return Draw(
                gpu_j=self.job.power.watts * held * seconds,
                host_j=None,
                error_j=0.0,
                parked_w=self.job.power.idle_watts,
                quality=str(Quality.STATIC),
            )
        figures = self.figures(start_s, end_s)
        active = tuple(used) or self.gpus[:held]
        needed = (*active, *self.hosts)
        found = [figures[each] for each in needed if each in figures]
        if len(found) < len(needed) or any(each.energy_j is None for each in found):
            return None
        others = (
            figures[each]
            for each in self.gpus[: self.job.processes]
            if each not in active and each in figures
        )
        parked = [each.power_w for each in others if each.power_w is not None]
        return Draw(
            gpu_j=_sum(figures, active),
            host_j=_sum(figures, self.hosts),
            error_j=math.fsum(each.error_j for each in found),
            parked_w=sum(parked) / len(parked) if parked else None,
            quality=merged_quality(each.quality for each in found),
        )

    def all_j(self, start_s: float, end_s: float) -> float | None:
        """Return what all the job's devices drew; None where that is not known."""
        if self.is_static:
            return self.job.power.watts * self.job.processes * (end_s - start_s)
        draw = self.draw(self.gpus[: self.job.processes], self.job.processes, start_s, end_s)
        return None if draw is None else draw.energy_j

    def known_until_s(self, used: Sequence[str], held: int) -> float:
        """Return up to when these GPUs and the host were read; arguments as in `draw`."""
        needed = () if self.is_static else (*(used or self.gpus[:held]), *self.hosts)
        newest = [burst.newest_s(each) for each in needed for burst in self._bursts]
        return min((each for each in newest if each is not None), default=math.inf)

    def readings(
        self, gpus: Sequence[str], start_s: float, end_s: float
    ) -> dict[str, Sequence[PowerReading]]:
        """Return what was read of these GPUs in a time, where anything was."""
        return {
            gpu: found
            for burst in self._bursts
            for gpu in gpus
            if (found := burst.readings(gpu, start_s, end_s))
        }

    def figures(self, start_s: float, end_s: float) -> dict[str, Figure]:
        """Return the energy of every device in a window."""
        return {
            name: found
            for burst in self._bursts
            for name, found in burst.figures(start_s, end_s).items()
        }

    def _open(self) -> None:
        kind = self.job.power.kind
        if kind is PowerKind.STATIC:
            return
        if kind is PowerKind.FAKE:
            self._open_fake()
        elif kind is PowerKind.RAPL:
            self._open_host(required=True)
        elif kind is PowerKind.PROMETHEUS:
            self._open_exporter()
        elif kind is PowerKind.AGENT:
            self._open_agent()
        else:
            self._open_gpus(required=kind is PowerKind.NVML)
            self._open_host(required=False)
        if not self._bursts:
            raise InputInvalid(
                f"no power can be read on this machine ({self._why}); say in the job file where it "
                'comes from: power = "agent" or "prometheus", "static" with [power] watts, or '
                '"fake" for simulated GPUs.'
            )
        # One reading before the first window begins.
        wait_for(
            lambda: all(each.looked for each in self._bursts),
            limit_s=OPEN_LIMIT_S,
            what="The first reading of power",
        )

    def _open_clocks(self) -> None:
        """Ask for an actuator where a point needs one."""
        if self.fakes:
            self.clocks = FakeClocks(self.fakes)
        elif self._may_lock():
            clocks = ActuatorClocks(self.job.power.actuator, patience_s=self.job.silence_limit_s)
            self.clockless = clocks.refused()
            if not self.clockless:
                self.clocks = self._stack.enter_context(clocks)

    def _may_lock(self) -> bool:
        """Tell whether some point has a clock, or the search may propose one."""
        search = self.job.search
        proposed = search is not None and bool(search.clocks_mhz)
        return proposed or any(each.clock_mhz is not None for each in self.job.points)

    def _open_fake(self) -> None:
        folder = (self.folder / "gpus").resolve()
        # A paced step is shorter than the update interval of a real board's counter.
        fake = FakeNvml.create(folder, self.job.processes, DEMO_BOARD, update_ms=0)
        self._stack.callback(fake.close)
        self.fakes = tuple(fake.gpus)
        self.environment = {FOLDER_VARIABLE: str(folder)}
        source = NvmlSource(fake.library)
        self._sample(source, 0.0, hz=FAKE_HZ)
        self.gpus = tuple(each.uuid for each in fake.gpus)
        self.drivers = _drivers(fake.library, self.gpus)

    def _open_gpus(self, *, required: bool) -> None:
        library = Path(self.job.power.library) if self.job.power.library else None
        source = NvmlSource(library)
        try:
            wait_for_gpus(source)
        except SourceUnavailable as error:
            source.close()
            if required:
                raise InputInvalid(
                    f"the GPUs' power cannot be read: {error}; correct that, or job.power"
                ) from error
            self._why = str(error)
            return
        self._sample(source, UPDATE_S)
        self.drivers = _drivers(library, self.gpus)

    def _open_host(self, *, required: bool) -> None:
        source = RaplSource(Path(self.job.power.powercap or ROOT))
        try:
            source.read()
        except SourceUnavailable as error:
            if required:
                raise InputInvalid(f"the host's power cannot be read: {error}") from error
            self._why = f"{self._why}; {error}" if self._why else str(error)
            return
        self._sample(source, RAPL_UPDATE_S)

    def _open_agent(self) -> None:
        source = AgentPage(self.job.power.url)
        try:
            source.read()
        except SourceUnavailable as error:
            raise InputInvalid(f"the GPUs' power cannot be read: {error}") from error
        # Read sooner, the page's counter would stand still and then jump by more than is plausible.
        self._sample(source, BOOKED_S, hz=1 / BOOKED_S)

    def _open_exporter(self) -> None:
        said = []
        for exporter in EXPORTERS:
            power = self.job.power
            source = PrometheusSource(power.url, exporter, power.selector, every_s=power.every_s)
            try:
                wait_for_gpus(source)
            except SourceUnavailable as error:
                said.append(str(error))
                source.close()
                continue
            self._sample(source, BOOKED_S)
            return
        raise InputInvalid(f"{self.job.power.url} gives no GPU's power: {said[0]}")

    def _sample(self, source: PowerSource, update_s: float, *, hz: float = HZ) -> None:
        if isinstance(source, Closes):
            self._stack.callback(source.close)
        burst = Burst(source, hz=hz, update_s=update_s)
        self._stack.enter_context(burst)
        self._bursts.append(burst)
        names = source.gpu_uuids()
        self.gpus += tuple(each for each in names if component_of(each) is Component.GPU)
        self.hosts += tuple(each for each in names if component_of(each) is not Component.GPU)


def wait_for_gpus(source: PowerSource) -> None:
    """Read until the source gives a device that tells something.

    Raises:
        SourceUnavailable: it does not.
    """
    deadline_s = time.monotonic() + OPEN_LIMIT_S / 3
    while True:
        try:
            if any(each.tells for each in source.read()):
                return
            why = SourceUnavailable("no GPU tells its power or energy")
        except SourceUnavailable as error:
            why = error
        if isinstance(source, NvmlSource) or time.monotonic() > deadline_s:
            raise why
        time.sleep(0.2)


def _power_w(found: Figure | None) -> float | None:
    return None if found is None else found.power_w


def _sum(figures: dict[str, Figure], names: Sequence[str]) -> float | None:
    """Add up some devices' joules; None without any."""
    if not names:
        return None
    return math.fsum(figures[each].energy_j or 0.0 for each in names)


def _drivers(library: Path | None, gpus: Sequence[str]) -> Drivers:
    """Ask the driver for what a fingerprint holds; what it does not tell stays empty."""
    with Nvml.open(library) as nvml:
        models, vbios = [], []
        nvml.uuids()
        for uuid in gpus:
            with suppress(SourceUnavailable):
                models.append(nvml.name(uuid))
            with suppress(SourceUnavailable):
                vbios.append(nvml.vbios(uuid))
        return Drivers(
            models=", ".join(sorted(set(models))),
            vbios=", ".join(sorted(set(vbios))),
            driver=nvml.driver_version,
        )
