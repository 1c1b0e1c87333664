"""The runs of an invented cluster: each is replay's simulated run, taking orders from a daemon.

Speed, power, save steps, switches that take time and fail and the way back after a kill are those
of `wattmesh.controller.replay.world`. Its figures are chosen so that all that happens does so at a
whole second (the end at a quarter of one) and every power is whole milliwatts. Invariant: nothing
here asks the daemon; a run is told what was ordered, and keeps what truly became of it.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from wattmesh.controller.replay.grid import GridSeries
from wattmesh.controller.replay.world import Loss, Noise, Scene, World
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState

HOUR = timedelta(hours=1)
A, B = Layout(tp=2), Layout(dp_shard=2)
POINTS = {"A": A, "B": B}
POWER_MW = {A: 700_000, B: 550_000}
"""Of one GPU, by layout: two GPUs draw what the catalogue says of the point."""

TOKENS_PER_S = {A: 100_000, B: 80_000}
IDLE_MW = 90_000
LEAST_J = 1e-3
"""Of a stretch of one run: what a row of the ledger is rounded to."""

BOUNDARY_EVERY = 150
STEP_TOKENS = 400_000
"""A save step every 600 s at A, every 750 s at B."""

CATALOGUE = """\
[job]
name = "{name}"
tokens_total = {tokens}
global_batch = 100
seq_len = 4000
reference = "A"
release = "held"
idle_power_w_per_gpu = 90
embodied_g_per_gpu_hour = 10
[switch]
layout_s = 60.0
layout_energy_j = 48000
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a scenario says of one run.

    Attributes:
        layout: at which it is submitted.
        away: it is killed at the first moment and launched again at the second.
        movable: its loader can seek, so that the daemon may move it.
        asked: when an operator asks for which point.
        noise: how its switches fail.
    """

    name: str
    gpus: tuple[str, ...]
    start: datetime
    deadline: datetime
    tokens_total: int
    layout: Layout
    away: tuple[datetime, datetime] | None = None
    movable: bool = False
    asked: tuple[tuple[datetime, str], ...] = ()
    noise: Noise = field(default_factory=Noise)

    @property
    def catalogue(self) -> str:
        """The file that the daemon reads, too."""
        return CATALOGUE.format(name=self.name, tokens=self.tokens_total)

    def scene(self) -> Scene:
        """Give the job as replay's simulated run takes it; nobody asks for its grams there."""
        loss = None
        if self.away is not None:
            gone, back = self.away
            loss = Loss(
                at_s=(gone - self.start).total_seconds(),
                outage_s=(back - gone).total_seconds(),
                gpus=len(self.gpus),
            )
        return Scene(
            catalogue=catalogue_file.parse(self.catalogue.encode(), self.name),
            grid=GridSeries(name="", kind="average", start=self.start, step=HOUR, values=(1.0,)),
            start=self.start,
            deadline=self.deadline,
            tokens=self.tokens_total,
            first=next(point for point, layout in POINTS.items() if layout == self.layout),
            boundary_every=BOUNDARY_EVERY,
            noise=self.noise,
            loss=loss,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A switch as it truly went: nothing is trained from `at` to `until`.

    Attributes:
        switch_id: of the order that was taken.
        layout: in which the run goes on; the one before if the switch failed.
        end: what the run reports in the end.
    """

    switch_id: str
    at: datetime
    until: datetime
    layout: Layout
    end: SwitchState


class Run:
    """One run as it truly goes, up to the newest moment it was let go on to."""

    def __init__(self, job: Job) -> None:
        """Take its scenario; nothing is trained yet."""
        self.job = job
        self.moves: list[Move] = []
        self._world = World(job.scene())
        self._switch_id = ""

    def go_on(self, until: datetime) -> None:
        """Train, and begin and end what was ordered, up to a moment before which nothing changes.

        That is held against the energy which the simulated run itself adds up.
        """
        world, until_s = self._world, (until - self.job.start).total_seconds()
        if world.done or until_s <= 0:
            return
        known_j = world.state.energy_j + world.power_w * (until_s - world.state.at_s)
        while world.state.at_s < until_s and not world.done:
            world.go_to(min(until_s, world.next_s()))
            if len(world.state.switched_s) > len(self.moves):
                self._note()
        assert abs(world.state.energy_j - known_j) < LEAST_J, f"{self.job.name}: changed by {until}"

    def _note(self) -> None:
        """Keep what will become of the switch that begins now."""
        state = self._world.state
        move = Move(
            switch_id=self._switch_id,
            at=self._world.now,
            until=self._world.scene.moment(state.busy_until_s or 0.0),
            layout=state.point.layout if state.fails else POINTS[state.target or ""],
            end=SwitchState.ROLLED_BACK if state.fails else SwitchState.CONFIRMED,
        )
        self.moves.append(move)

    def take(self, switch_id: str, point: str) -> None:
        """Take an order, to be carried out at the next save step; once taken, it is not again."""
        if switch_id != self._switch_id:
            self._switch_id = switch_id
            self._world.order(point)

    @property
    def tokens(self) -> int:
        """Tokens trained so far."""
        return int(self._world.state.tokens)

    @property
    def end(self) -> datetime:
        """When its last token is trained, if nothing happens any more but what goes on."""
        world, state = self._world, self._world.state
        left_s = (self.job.tokens_total - state.tokens) / state.point.tokens_per_s
        stands_s = max(state.at_s, state.busy_until_s or 0.0, state.out_until_s or 0.0)
        return world.scene.moment(stands_s + left_s)

    def holds(self, now: datetime) -> bool:
        """Whether its GPUs are its own, launched or not."""
        return self.job.start <= now and not self._world.done

    def trains(self, now: datetime) -> bool:
        """Whether its processes live."""
        away = self.job.away
        return self.holds(now) and not (away and away[0] <= now < away[1])

    def moving(self, now: datetime) -> bool:
        """Whether a switch is under way."""
        return any(each.at <= now < each.until for each in self.moves)

    def layout_at(self, now: datetime) -> Layout:
        """Give the layout at a moment; while it is moved, the one before."""
        past = [each.layout for each in self.moves if each.until <= now]
        return past[-1] if past else self.job.layout

    @property
    def power_mw(self) -> int:
        """What each of its GPUs draws from now on, while working as its catalogue says."""
        return round(1000 * self._world.power_w / len(self.job.gpus))

    def looks(self) -> set[datetime]:
        """Give when everybody looks at a run that may be moved, as far as that is known.

        At the borders of its switches and the next whole hour; at its last whole hour, where its
        last mark is; and at its first two: between those a whole slot is measured where it was
        submitted, as it is where a daemon samples every few seconds.
        """
        if not self.job.movable:
            return set()
        first = after(self.job.start)
        borders = {at for each in self.moves for at in (each.at, each.until, after(each.until))}
        return borders | {first, first + HOUR, after(self.end) - HOUR}

    def next_at(self, now: datetime) -> datetime:
        """Give the next moment at which something happens to it."""
        job, state = self.job, self._world.state
        if self._world.done:
            return datetime.max.replace(tzinfo=UTC)
        found = {job.start, self.end, *(job.away or ()), *(at for at, _ in job.asked)}
        if state.target is not None or state.busy_until_s is not None:
            found.add(self._world.scene.moment(self._world.next_s()))
        return min(at for at in found | self.looks() if at > now)


def after(now: datetime) -> datetime:
    """Give the whole hour after a moment."""
    return now.replace(minute=0, second=0, microsecond=0) + HOUR
