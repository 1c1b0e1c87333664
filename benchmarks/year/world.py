"""A year of an invented cluster: its time, its GPUs, and what each truly drew.

Power is constant between two moments of the cluster, in whole milliwatts, and every moment is whole
microseconds, so that the true energy of any stretch is a whole number of nanojoules. Invariant:
what is kept here as true is never asked of the daemon, and the daemon sees it only as readings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from benchmarks.year.run import IDLE_MW, Run
from wattmesh.controller.process.loops import Clock
from wattmesh.errors import SourceUnavailable
from wattmesh.integrations.carbon.grid_server.grids import noise
from wattmesh.telemetry.readings import PowerReading, Quality

MICROSECOND = timedelta(microseconds=1)
LIMIT_W = 750.0
PUE = 1.25
"""Joules of the facility for one of its GPUs; every gram is of the facility."""


@dataclass(slots=True)
class Time:
    """The one clock of the scenario: the daemon's, the providers' and the GPUs'."""

    now: datetime
    _began: datetime = field(init=False)

    def __post_init__(self) -> None:
        """Begin a minute after boot."""
        self._began = self.now - timedelta(minutes=1)

    @property
    def clock(self) -> Clock:
        """The clock that parts of the daemon take."""
        return Clock(monotonic=self.monotonic_s, now=lambda: self.now)

    def monotonic_s(self) -> float:
        """Give seconds since boot."""
        return (self.now - self._began).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What one GPU truly drew between two moments.

    Attributes:
        run: for whom; None: not decided here.
        dark: nobody ever learns of it.
    """

    gpu: str
    start: datetime
    end: datetime
    power_mw: int
    run: str | None
    dark: bool = False

    def energy_nj(self, start: datetime, end: datetime) -> int:
        """Give the energy of the part in [start, end): mW times microseconds."""
        length = min(end, self.end) - max(start, self.start)
        return self.power_mw * max(0, length // MICROSECOND)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """The cluster.

    Attributes:
        silent: no GPU answers between two such moments; counters run on.
        unread: a GPU does not answer between two moments, and its counter begins anew after them.
        never: GPUs that nobody reads.
        drift: from the first on, working GPUs draw so many thousandths of what they did.
    """

    time: Time
    runs: Sequence[Run]
    gpus: Sequence[str]
    silent: Sequence[tuple[datetime, datetime]] = ()
    unread: Sequence[tuple[str, datetime, datetime]] = ()
    never: Sequence[str] = ()
    drift: tuple[datetime, int] | None = None
    stretches: list[Stretch] = field(default_factory=list)
    _energy_nj: dict[str, int] = field(default_factory=dict)

    def moments(self, start: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
        """Give the moments at which something happens, and those of the steps, in order.

        What happens next is asked for only when the moment before it has been lived through.
        """
        own = {at for span in self.silent for at in span}
        own |= {at for _, *span in self.unread for at in span}
        own |= {self.drift[0]} if self.drift else set()
        now = start
        while now < end:
            yield now
            steps = start + ((now - start) // step + 1) * step
            coming = (each.next_at(now) for each in self.runs)
            now = min(end, steps, *coming, *(at for at in own if at > now))
        yield end

    def go_on(self, until: datetime) -> None:
        """Let time pass, with every GPU drawing what it draws at the beginning."""
        now = self.time.now
        for gpu in self.gpus:
            power_mw, run = self._draws(gpu, now)
            stretch = Stretch(
                gpu=gpu, start=now, end=until, power_mw=power_mw, run=run, dark=self._dark(gpu, now)
            )
            self.stretches.append(stretch)
            self._energy_nj[gpu] = self._energy_nj.get(gpu, 0) + stretch.energy_nj(now, until)
            if any(gpu == which and end == until for which, _, end in self.unread):
                self._energy_nj[gpu] = 0
        for each in self.runs:
            each.go_on(until)
        self.time.now = until

    def _dark(self, gpu: str, now: datetime) -> bool:
        """Whether what a GPU draws from now on is never learnt."""
        gone = any(gpu == which and start <= now < end for which, start, end in self.unread)
        return gone or gpu in self.never

    def factor_milli(self, now: datetime) -> int:
        """Give the thousandths of their first watts that working GPUs draw."""
        return self.drift[1] if self.drift and now >= self.drift[0] else 1000

    def readings(self) -> list[PowerReading]:
        """Read every GPU's counter.

        Raises:
            SourceUnavailable: they are silent.
        """
        now = self.time.now
        if any(start < now < end for start, end in self.silent):
            raise SourceUnavailable("the invented GPUs do not answer")
        return [
            PowerReading(
                gpu_uuid=gpu,
                at=now,
                monotonic_s=self.time.monotonic_s(),
                power_w=self._draws(gpu, now)[0] / 1000,
                energy_mj=self._energy_nj.get(gpu, 0) // 1_000_000,
                clock_mhz=None,
                power_limit_w=LIMIT_W,
                highest_limit_w=LIMIT_W,
                source="invented",
                quality=Quality.MEASURED,
            )
            for gpu in self.gpus
            if gpu not in self.never
            and not any(gpu == who and start < now < end for who, start, end in self.unread)
        ]

    def _draws(self, gpu: str, now: datetime) -> tuple[int, str | None]:
        """Give (what a GPU draws from now on, for whom)."""
        run = next((each for each in self.runs if gpu in each.job.gpus and each.holds(now)), None)
        if run is None:
            silent = any(start <= now < end for start, end in self.silent)
            # While nobody reads it, only the mean is known: it draws the same all the time.
            breath = 0.0 if silent else noise(gpu, "idle", now)
            return IDLE_MW + round(5_000 * breath), ""
        if not run.trains(now):
            return run.power_mw, None
        factor = 1000 if run.moving(now) else self.factor_milli(now)
        return run.power_mw * factor // 1000, run.job.name


class InventedPower:
    """The cluster's GPUs as a power source."""

    name = "invented"

    def __init__(self, cluster: Cluster) -> None:
        """Take the cluster."""
        self._cluster = cluster

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices."""
        return [gpu for gpu in self._cluster.gpus if gpu not in self._cluster.never]

    def read(self) -> Sequence[PowerReading]:
        """Read every device once."""
        return self._cluster.readings()


def at(text: str) -> datetime:
    """Read a moment, UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
