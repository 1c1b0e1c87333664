"""A year of an invented cluster: its time, its GPUs, its runs, and what each truly drew.

Power is constant between two moments of the world, in whole milliwatts, and every moment is whole
seconds, so that the true energy of any stretch is a whole number of nanojoules. Invariant: what is
kept here as true is never asked of the daemon, and the daemon sees it only as readings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from wattmesh.controller.process.loops import Clock
from wattmesh.errors import SourceUnavailable
from wattmesh.integrations.carbon.grid_server.grids import noise
from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.readings import PowerReading, Quality

HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
A, B = Layout(tp=2), Layout(dp_shard=2)
POWER_MW = {A: 700_000, B: 550_000}
"""Of one GPU, by layout: two GPUs draw what the catalogue says of the point."""

TOKENS_PER_S = {A: 100_000, B: 80_000}
IDLE_MW = 90_000
SWITCH_MW = 120_000
"""Of one GPU while its run is moved: nothing is trained."""

LIMIT_W = 750.0
PUE = 1.25
"""Joules of the facility for one of its GPUs; every gram is of the facility."""

CATALOGUE = """\
[job]
name = "{name}"
tokens_total = {tokens}
reference = "A"
release = "held"
embodied_g_per_gpu_hour = 10
[switch]
layout_s = 60.0
layout_energy_j = 50000
source = "measured"
[[point]]
id = "A"
gpus = 2
layout = {{ tp = 2 }}
tokens_per_s = 100000
power_w = 1400
equivalence = "exact"
evidence = "validated"
[[point]]
id = "B"
gpus = 2
layout = {{ dp_shard = 2 }}
tokens_per_s = 80000
power_w = 1100
equivalence = "exact"
evidence = "validated"
"""


@dataclass(slots=True)
class Time:
    """The one clock of the world: the daemon's, the providers' and the GPUs'."""

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
class Move:
    """A switch: nothing is trained from `at` to `until`; then the run goes on in `layout`."""

    at: datetime
    until: datetime
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run as it truly goes.

    Attributes:
        layout: at which it trains from the first token to the first of its `moves`.
        away: it is killed at the first moment and launched again at the second.
    """

    name: str
    gpus: tuple[str, ...]
    start: datetime
    tokens_total: int
    layout: Layout
    away: tuple[datetime, datetime] | None = None
    moves: tuple[Move, ...] = ()

    def layout_at(self, now: datetime) -> Layout:
        """Give the layout at a moment; while it is moved, the one before."""
        past = [each.layout for each in self.moves if each.until <= now]
        return past[-1] if past else self.layout

    def moving(self, now: datetime) -> bool:
        """Whether a switch is under way."""
        return any(each.at <= now < each.until for each in self.moves)

    def trained(self, now: datetime) -> int:
        """Give the tokens trained up to a moment."""
        found = sum(
            max(timedelta(), min(now, end) - start) // timedelta(seconds=1) * TOKENS_PER_S[layout]
            for start, end, layout in self._stages()
        )
        return min(self.tokens_total, found)

    def _stages(self) -> Iterator[tuple[datetime, datetime, Layout]]:
        """Give the stretches in which it trains, as long as there is work; the last has no end."""
        pauses = [(each.at, each.until, each.layout) for each in self.moves]
        if self.away is not None:
            pauses.append((*self.away, self.layout_at(self.away[0])))
        at, layout = self.start, self.layout
        for start, end, after in sorted(pauses, key=lambda each: each[0]):
            yield at, start, layout
            at, layout = end, after
        yield at, datetime.max.replace(tzinfo=UTC), layout

    @property
    def end(self) -> datetime:
        """When its last token is trained."""
        left = self.tokens_total
        for start, end, layout in self._stages():
            needed = timedelta(seconds=-(-left // TOKENS_PER_S[layout]))
            if start + needed <= end:
                return start + needed
            left -= (end - start) // timedelta(seconds=1) * TOKENS_PER_S[layout]
        raise AssertionError("the last stage has no end")

    def trains(self, now: datetime) -> bool:
        """Whether its processes live."""
        gone = self.away is not None and self.away[0] <= now < self.away[1]
        return self.start <= now < self.end and not gone

    def holds(self, now: datetime) -> bool:
        """Whether its GPUs are its own, launched or not."""
        return self.start <= now < self.end


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
class World:
    """The cluster.

    Attributes:
        silent: no GPU answers between two such moments; counters run on.
        unread: a GPU does not answer between two moments, and its counter begins anew after them.
        never: GPUs that nobody reads.
        drift: from the first on, working GPUs draw so many thousandths of what they did.
    """

    time: Time
    jobs: Sequence[Job]
    gpus: Sequence[str]
    silent: Sequence[tuple[datetime, datetime]] = ()
    unread: Sequence[tuple[str, datetime, datetime]] = ()
    never: Sequence[str] = ()
    drift: tuple[datetime, int] | None = None
    stretches: list[Stretch] = field(default_factory=list)
    _energy_nj: dict[str, int] = field(default_factory=dict)

    def moments(self, start: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
        """Give the moments at which something happens, and those of the steps, in order."""
        own = {each.start for each in self.jobs} | {each.end for each in self.jobs}
        own |= {at for each in self.jobs if each.away for at in each.away}
        own |= {at for span in self.silent for at in span}
        own |= {at for _, *span in self.unread for at in span}
        own |= {at for each in self.jobs for at in all_looks(each)}
        own |= {self.drift[0]} if self.drift else set()
        count = -((start - end) // step)
        steps = {start + i * step for i in range(count)} | {end}
        yield from sorted(at for at in own | steps if start <= at <= end)

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
        job = next((each for each in self.jobs if gpu in each.gpus and each.holds(now)), None)
        if job is None:
            silent = any(start <= now < end for start, end in self.silent)
            # While nobody reads it, only the mean is known: it draws the same all the time.
            breath = 0.0 if silent else noise(gpu, "idle", now)
            return IDLE_MW + round(5_000 * breath), ""
        if not job.trains(now):
            return IDLE_MW, None
        if job.moving(now):
            return SWITCH_MW, job.name
        return POWER_MW[job.layout_at(now)] * self.factor_milli(now) // 1000, job.name


class InventedPower:
    """The world's GPUs as a power source."""

    name = "invented"

    def __init__(self, world: World) -> None:
        """Take the world."""
        self._world = world

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices."""
        return [gpu for gpu in self._world.gpus if gpu not in self._world.never]

    def read(self) -> Sequence[PowerReading]:
        """Read every device once."""
        return self._world.readings()


def looks(move: Move) -> tuple[datetime, datetime, datetime]:
    """Give the moments of a switch at which everybody looks: its borders, the next whole hour."""
    after = move.until.replace(minute=0, second=0, microsecond=0) + HOUR
    return move.at, move.until, after


def all_looks(job: Job) -> set[datetime]:
    """Give those of a run that is moved, and of its first two borders of hours and its last one.

    Between the first two a whole slot is measured where it was submitted, as it is where a daemon
    samples every few seconds; at the last is its last mark.
    """
    found = {at for move in job.moves for at in looks(move)}
    if not found:
        return found
    first = job.start.replace(minute=0, second=0, microsecond=0) + HOUR
    return found | {first, first + HOUR, job.end.replace(minute=0, second=0, microsecond=0)}


def at(text: str) -> datetime:
    """Read a moment, UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
