"""A training run in pure arithmetic, under a virtual clock: replay's, and the benchmark year's.

It knows nothing of any policy: it trains, takes orders at boundaries (clock changes and wake-ups
at once), lets switches take their time and fail, and charges every second at the recorded
intensity of the grid. Time is seconds from the start of the run.

Invariant: every second from start to finish is charged, switches and waits included; GPUs that are
given back or lost are charged to nobody here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from random import Random
from typing import Protocol

from wattmesh.controller.replay.grid import GridSeries
from wattmesh.policies.guard import FAILED_SWITCH
from wattmesh.policies.speed import SpeedWatch, watch
from wattmesh.policies.switch_time import SwitchKind, SwitchRecord, catalogued_s
from wattmesh.reconfig.catalogue import PAUSED, Catalogue, OperatingPoint, Release
from wattmesh.telemetry.readings import J_PER_KWH

KEPT = 50
"""The most switches that are remembered, as in the journal."""

TICK = 1e-6
"""Moments closer than this, in seconds, are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What goes wrong by chance, the same for every policy.

    Attributes:
        throughput: the most of its catalogue speed that a run loses in an hour, as a share; speed
            is never above the catalogue's, which is that of an undisturbed run.
        switch_failure: chance that a switch fails.
        failed_s: seconds until it trains again after a failed switch; None: twice the switch.
        clock_late_s: the most seconds until a changed clock is in force; until then the run is no
            faster than at the slowest clock of its layout.
        slower: by point id, the share of its catalogue speed that it lacks on these machines.
        told_share: share of a switch after which the run reports its new layout, before the first
            step at normal pace.
        salt: of the run, so that runs have different noise.
    """

    throughput: float = 0.0
    switch_failure: float = 0.0
    failed_s: float | None = None
    clock_late_s: float = 0.0
    slower: Mapping[str, float] = field(default_factory=dict)
    told_share: float = 1.0
    seed: int = 0
    salt: str = ""

    def until_s(self, at_s: float) -> float:
        """Give up to when the speed stays as it is at `at_s`."""
        return (at_s // 3600 + 1) * 3600.0 if self.throughput else inf

    def signal(self, at_s: float) -> str:
        """Say what is wrong with the grid's signal; "" for nothing."""
        return ""

    def speed(self, at_s: float) -> float:
        """Share of catalogue speed in the hour that holds `at_s`."""
        if not self.throughput:
            return 1.0
        return (
            1.0 - self.throughput * Random(f"speed {self.seed} {self.salt} {at_s // 3600}").random()
        )

    def takes(self, switch: int) -> float:
        """Share of the catalogue's (cold) switch seconds that a run's n-th switch takes."""
        return 1.0

    def fails(self, switch: int) -> bool:
        """Say whether a run's n-th switch fails."""
        if not self.switch_failure:
            return False
        return Random(f"switch {self.seed} {self.salt} {switch}").random() < self.switch_failure

    def late_s(self, at_s: float) -> float:
        """Seconds until the clock that is changed at `at_s` is in force."""
        if not self.clock_late_s:
            return 0.0
        return self.clock_late_s * Random(f"clock {self.seed} {self.salt} {at_s}").random()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Nodes that are lost for good.

    Attributes:
        at_s: when. `outage_s`: seconds until the run trains again on what is left.
        gpus: number left; the run continues at the fastest point that fits on them.
    """

    at_s: float
    outage_s: float
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run on one grid, whatever the policy does.

    Attributes:
        first: id of the point it begins at. `boundary_every`: steps from checkpoint to checkpoint.
        margin: hourly change of speed that is expected, down and up (`policy.guard_margin`).
        loss: of nodes; None: none are lost.
        resizes: whether the run goes to other sizes as other jobs, each of which waits
            `reacquire_s` of the catalogue for its GPUs.
    """

    catalogue: Catalogue
    grid: GridSeries
    start: datetime
    deadline: datetime
    tokens: float
    first: str
    boundary_every: int
    margin: float = 0.02
    noise: Noise = field(default_factory=Noise)
    loss: Loss | None = None
    resizes: bool = False

    @property
    def gpus(self) -> int:
        """GPUs the run was launched on."""
        return max(point.gpus for point in self.catalogue.points)

    def moment(self, at_s: float) -> datetime:
        """Give the time on the virtual clock, so many seconds after the start."""
        return self.start + timedelta(seconds=at_s)

    @property
    def interval_tokens(self) -> float:
        """Tokens from boundary to boundary."""
        return float(self.boundary_every * self.catalogue.global_batch * self.catalogue.seq_len)


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state of the run.

    Attributes:
        point: where it trains, or trained before it went to sleep. `asleep`: it does not train.
        target: of its open order, "" for sleep; None without one. `ordered_s`: since when.
        busy_until_s: end of the switch under way; None: none. `fails`: it will fail. `told_s`: when
            the run reports the new layout; None: it has done so.
        switches: as they were measured, newest first. `told_at_s`: when each was reported.
        watched: speeds as they were measured.
        frozen: why it is frozen; "" while it is not.
        switched_s: begins of switches. `changed_s`: end of the last; `clock_s`: last clock change,
            in force from `clock_from_s` on.
        measured: tokens/s over the last whole boundary interval.
        out_until_s: end of the outage after nodes were lost; None: none were, so far.
    """

    point: OperatingPoint
    gpus: int
    at_s: float = 0.0
    tokens: float = 0.0
    energy_j: float = 0.0
    carbon_g: float = 0.0
    frozen: str = ""
    asleep: bool = False
    asleep_since_s: float = 0.0
    target: str | None = None
    ordered_s: float = 0.0
    busy_until_s: float | None = None
    told_s: float | None = None
    busy_w: float = 0.0
    fails: bool = False
    failed: int = 0
    switched_s: tuple[float, ...] = ()
    clock_changes: int = 0
    changed_s: float | None = None
    clock_s: float | None = None
    clock_from_s: float = 0.0
    out_until_s: float | None = None
    boundary_tokens: float = 0.0
    interval_began: tuple[float, float] | None = None
    measured: float | None = None
    switches: tuple[SwitchRecord, ...] = ()
    told_at_s: tuple[float, ...] = ()
    watched: SpeedWatch = field(default_factory=SpeedWatch)


class Driver(Protocol):
    """Steers the run."""

    def look(self, world: "World") -> None:
        """Look at the run, and give orders."""
        ...


def run(scene: Scene, driver: Driver, *, cycle_s: float) -> RunState:
    """Run the world under a driver until its work is done; give the final state."""
    world = World(scene)
    look_s = 0.0
    while not world.done:
        if world.state.at_s >= look_s - TICK:
            driver.look(world)
            look_s = world.state.at_s + cycle_s
        world.go_to(min(look_s, world.next_s()))
    return world.state


class World:
    """The run, which moves from event to event."""

    def __init__(self, scene: Scene) -> None:
        """Start at the first point, with a boundary just passed."""
        self.scene = scene
        self.state = RunState(
            point=scene.catalogue.point(scene.first),
            gpus=scene.gpus,
            boundary_tokens=scene.interval_tokens,
            interval_began=(0.0, 0.0),
        )
        self._took_s = 0.0
        self._unmeasured_s = 0.0

    @property
    def done(self) -> bool:
        """Whether all tokens are trained."""
        return self.state.tokens >= self.scene.tokens * (1 - 1e-12)

    @property
    def now(self) -> datetime:
        """The time on the virtual clock."""
        return self.scene.moment(self.state.at_s)

    def freeze(self, reason: str) -> None:
        """Freeze the run."""
        self.state.frozen = reason

    def let_go(self) -> None:
        """Release the clock of the run's GPUs."""
        home = self.scene.catalogue.find(self.state.point.layout)
        if home is not None:
            self.order(home.id)

    def order(self, wish: str) -> None:
        """Take an order to a point, or to sleep (""), for the next boundary.

        Clock changes and wake-ups begin at once.
        """
        state = self.state
        if (state.busy_until_s is not None and state.target is not None) or self._nodes_are_lost:
            return
        if wish == ("" if state.asleep else state.point.id):
            return
        if not state.asleep and wish and self._layout(wish) == state.point.layout:
            self._change_clock(self.scene.catalogue.point(wish))
            return
        state.target, state.ordered_s = wish, state.at_s
        if state.asleep:
            self._begin_switch()

    def next_s(self) -> float:
        """Give the next moment at which something happens without an order."""
        state, loss = self.state, self.scene.loss
        moments = [state.clock_from_s] if state.clock_from_s > state.at_s else []
        moments.append(self.scene.noise.until_s(state.at_s))
        if loss is not None and state.out_until_s is None:
            moments.append(loss.at_s)
        if self._nodes_are_lost and state.out_until_s is not None:
            moments.append(state.out_until_s)
        elif state.busy_until_s is not None:
            moments.append(state.busy_until_s if state.told_s is None else state.told_s)
        elif not state.asleep:
            goal = min(state.boundary_tokens, self.scene.tokens)
            moments.append(state.at_s + max(0.0, goal - state.tokens) / self._speed())
        return max(state.at_s, min(moments, default=inf))

    def go_to(self, to_s: float) -> None:
        """Train and charge until `to_s`, then carry out what is due."""
        state, loss = self.state, self.scene.loss
        self._charge(state.at_s, to_s)
        state.tokens += self._speed() * (to_s - state.at_s)
        state.at_s = to_s
        if loss is not None and state.out_until_s is None and to_s >= loss.at_s - TICK:
            self._lose_nodes(loss)
        elif state.busy_until_s is not None:
            if state.told_s is not None and to_s >= state.told_s - TICK:
                self._tell()
            if to_s >= state.busy_until_s - TICK:
                self._resume()
        elif not state.asleep and state.tokens >= state.boundary_tokens * (1 - 1e-12):
            self._boundary()

    def _size(self, point: str) -> int:
        return self.scene.catalogue.point(point).gpus

    def _layout(self, point: str) -> object:
        return self.scene.catalogue.point(point).layout

    @property
    def _nodes_are_lost(self) -> bool:
        until_s = self.state.out_until_s
        return until_s is not None and self.state.at_s < until_s - TICK

    def _speed(self) -> float:
        """Tokens per second now; 0 while it sleeps, switches or stands still."""
        state = self.state
        if state.asleep or state.busy_until_s is not None or self._nodes_are_lost:
            return 0.0
        tokens_per_s = self._undisturbed(state.point)
        if state.at_s < state.clock_from_s - TICK:
            points = self.scene.catalogue.points
            alike = [each for each in points if each.layout == state.point.layout]
            tokens_per_s = min(map(self._undisturbed, alike))
        return tokens_per_s * self.scene.noise.speed(state.at_s)

    def _undisturbed(self, point: OperatingPoint) -> float:
        """Tokens per second of a point on these machines."""
        return point.tokens_per_s * (1.0 - self.scene.noise.slower.get(point.id, 0.0))

    @property
    def power_w(self) -> float:
        """Watts that are charged to the run now."""
        state, catalogue = self.state, self.scene.catalogue
        if state.busy_until_s is not None:
            return state.busy_w
        if not state.asleep and not self._nodes_are_lost:
            return catalogue.held_power_w(state.point, state.gpus)
        if catalogue.release is Release.RELEASED:
            return 0.0
        return state.gpus * catalogue.idle_power_w_per_gpu

    def _charge(self, from_s: float, to_s: float) -> None:
        power_w, grid, moment = self.power_w, self.scene.grid, self.scene.moment
        burnt = grid.burnt(moment(to_s)) - grid.burnt(moment(from_s))
        self.state.energy_j += power_w * (to_s - from_s)
        self.state.carbon_g += power_w * burnt / J_PER_KWH

    def _change_clock(self, target: OperatingPoint) -> None:
        """Change the clock; that may cost seconds without a token."""
        state, switch = self.state, self.scene.catalogue.switch
        seconds = catalogued_s(switch, state.point.id, target.id, SwitchKind.CLOCK)
        state.target = None
        state.clock_changes += 1
        self._wish_clock()
        state.watched = replace(state.watched, stay=None)
        if seconds:
            state.busy_w = self.power_w
            ends_s = max(state.at_s, state.busy_until_s or 0.0) + seconds
            state.busy_until_s = state.told_s = ends_s
            state.target = target.id
            state.fails = False
            return
        state.point = target

    def _wish_clock(self) -> None:
        """Put another clock in force, now or a little later."""
        state = self.state
        state.clock_s = state.at_s
        state.clock_from_s = state.at_s + self.scene.noise.late_s(state.at_s)

    def _lose_nodes(self, loss: Loss) -> None:
        """Lose nodes: a switch under way is void, and the rest trains on after the outage."""
        state = self.state
        fit = [each for each in self.scene.catalogue.points if each.gpus <= loss.gpus]
        state.point = max(fit, key=lambda each: each.tokens_per_s)
        state.gpus, state.asleep, state.fails = loss.gpus, False, False
        state.target = state.busy_until_s = state.interval_began = state.measured = None
        state.told_s, state.watched = None, SpeedWatch()
        state.out_until_s = state.at_s + loss.outage_s
        state.boundary_tokens = state.tokens + self.scene.interval_tokens

    def _boundary(self) -> None:
        """Pass a checkpoint: measure the speed, and begin an ordered switch."""
        state = self.state
        if state.interval_began is not None:
            began_s, tokens = state.interval_began
            state.measured = (state.tokens - tokens) / (state.at_s - began_s)
        state.interval_began = (state.at_s, state.tokens)
        state.boundary_tokens = state.tokens + self.scene.interval_tokens
        self._watch()
        if state.target is not None:
            self._begin_switch()

    def _watch(self) -> None:
        """Measure what a daemon measures: speeds of points, and switches that are now complete."""
        state, scene = self.state, self.scene
        if state.switches and not state.switches[0].complete:
            newest = replace(state.switches[0], at_pace_s=self._took_s - self._unmeasured_s)
            state.switches = (newest, *state.switches[1:])
        if state.at_s < state.clock_from_s - TICK:
            return
        state.watched = watch(
            state.watched,
            point=state.point.id,
            at_s=state.at_s,
            tokens=state.tokens,
            step=round(state.tokens / scene.interval_tokens * scene.boundary_every),
            least_steps=scene.boundary_every,
            margin=scene.margin,
        )

    def _begin_switch(self) -> None:
        state = self.state
        origin = PAUSED if state.asleep else state.point.id
        number = len(state.switched_s)
        seconds, wait_s, energy_j = self._cost(origin, state.target or PAUSED)
        seconds *= self.scene.noise.takes(number)
        state.fails = self.scene.noise.fails(number) or self._lacks_gpus(state.target)
        state.switched_s = (*state.switched_s, state.at_s)
        state.busy_w = energy_j / (seconds + wait_s) if seconds + wait_s else 0.0
        if not seconds + wait_s:
            index = self.scene.grid.index(self.scene.moment(state.at_s))
            state.energy_j += energy_j
            state.carbon_g += energy_j * self.scene.grid.values[index] / J_PER_KWH
        self._took_s = wait_s + seconds
        # What a run measures of a switch does not hold the wait of its next job.
        self._unmeasured_s = wait_s if self.scene.resizes else 0.0
        told_s = self._took_s * self.scene.noise.told_share
        if state.fails:
            failed_s = self.scene.noise.failed_s
            failed_s = FAILED_SWITCH * seconds if failed_s is None else failed_s
            self._took_s = told_s = wait_s + failed_s + (wait_s if self.scene.resizes else 0.0)
        state.busy_until_s, state.told_s = state.at_s + self._took_s, state.at_s + told_s
        state.watched = replace(state.watched, stay=None)

    def _lacks_gpus(self, target: str | None) -> bool:
        return bool(target) and self.scene.catalogue.point(target or "").gpus > self.state.gpus

    def _cost(self, origin: str, target: str) -> tuple[float, float, float]:
        """Give seconds of a switch and of the wait for given-back GPUs before it, and joules."""
        catalogue = self.scene.catalogue
        switch, before_w = catalogue.switch, self.power_w
        pair = switch.between(origin, target)
        known = [catalogue.point(each) for each in (origin, target) if each != PAUSED]
        if pair is not None:
            seconds, energy_j = pair.seconds, pair.energy_j
        else:
            thirsty_w = max(catalogue.held_power_w(each, self.state.gpus) for each in known)
            seconds = switch.layout_s
            energy_j = switch.layout_energy_j or thirsty_w * seconds
        used = [catalogue.point(each).gpus if each != PAUSED else 0 for each in (origin, target)]
        wait_s = 0.0
        queues = self.scene.resizes and 0 < used[1] < used[0]
        if catalogue.release is Release.RELEASED and (used[1] > used[0] or queues):
            wait_s = switch.reacquire_s or 0.0
        return seconds, wait_s, energy_j + wait_s * before_w

    def _tell(self) -> None:
        """Arrive at the new point, fall asleep, or stay after a failure, and report it."""
        state = self.state
        origin = PAUSED if state.asleep else state.point.id
        layout_changed = state.asleep or not state.target
        if state.target:
            target = self.scene.catalogue.point(state.target)
            layout_changed |= target.layout != state.point.layout
        if state.fails:
            state.failed += 1
        elif state.target == "":
            state.asleep, state.asleep_since_s = True, state.at_s
        elif state.target is not None:
            before, state.point = state.point, self.scene.catalogue.point(state.target)
            state.asleep = False
            if layout_changed and before.clock_mhz != state.point.clock_mhz:
                self._wish_clock()
        if layout_changed and not state.fails:
            state.failed, state.changed_s = 0, state.at_s
            self._record(origin, state.target or PAUSED)
        state.target = state.told_s = state.interval_began = state.measured = None

    def _record(self, origin: str, target: str) -> None:
        """Record what the run reports of a switch; it is complete only after the first step."""
        state = self.state
        restarts = PAUSED in (origin, target) or (
            self.scene.resizes and self._size(origin) != self._size(target)
        )
        took_s = state.at_s - state.switched_s[-1] - self._unmeasured_s
        record = SwitchRecord(
            origin=origin,
            target=target,
            kind=SwitchKind.RESTART if restarts else SwitchKind.IN_PLACE,
            told_s=took_s,
            at_pace_s=took_s if target == PAUSED else None,
        )
        state.switches = (record, *state.switches)[:KEPT]
        state.told_at_s = (state.at_s, *state.told_at_s)[:KEPT]

    def _resume(self) -> None:
        self.state.busy_until_s = self.state.interval_began = None
        self.state.boundary_tokens = self.state.tokens + self.scene.interval_tokens
