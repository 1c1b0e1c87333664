"""A training run in pure arithmetic, under a virtual clock: what replay holds policies against.

It knows nothing of any policy: it trains, takes orders at boundaries (clocks at once, a wake-up at
once), lets switches take their time and fail, and charges every second at what the grid really
emitted. Time is seconds from the start of the run.

Invariant: every second from start to finish is charged, switches and waits included; GPUs that are
given back are charged to nobody here.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Protocol

from wattmesh.controller.replay.grid import Grid
from wattmesh.policies.guard import FAILED_SWITCH
from wattmesh.reconfig.catalogue import PAUSED, Catalogue, OperatingPoint, Release
from wattmesh.telemetry.readings import J_PER_KWH

TICK = 1e-6
"""Seconds within which two moments are one; tokens within which work is done, relatively."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What goes wrong by chance, the same for every policy.

    Attributes:
        throughput: most of its catalogue speed that a run loses in an hour, as a share; a catalogue
            is what nothing goes wrong at, so speed is never above it.
        switch_failure: chance that a switch fails.
        salt: of the run, so that runs do not all meet the same fate.
    """

    throughput: float = 0.0
    switch_failure: float = 0.0
    seed: int = 0
    salt: str = ""

    def speed(self, at_s: float) -> float:
        """Share of catalogue speed in the hour that holds `at_s`."""
        if not self.throughput:
            return 1.0
        return (
            1.0 - self.throughput * Random(f"speed {self.seed} {self.salt} {at_s // 3600}").random()
        )

    def fails(self, switch: int) -> bool:
        """Say whether a run's n-th switch fails."""
        if not self.switch_failure:
            return False
        return Random(f"switch {self.seed} {self.salt} {switch}").random() < self.switch_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run on one grid, whatever the policy does.

    Attributes:
        first: point id it begins at. `boundary_every`: steps from checkpoint to checkpoint.
    """

    catalogue: Catalogue
    grid: Grid
    start: datetime
    deadline: datetime
    tokens: float
    first: str
    boundary_every: int
    noise: Noise = field(default_factory=Noise)

    @property
    def gpus(self) -> int:
        """GPUs the run was launched on."""
        return max(point.gpus for point in self.catalogue.points)

    @property
    def interval_tokens(self) -> float:
        """Tokens from boundary to boundary."""
        return float(self.boundary_every * self.catalogue.global_batch * self.catalogue.seq_len)


@dataclass(slots=True, kw_only=True)
class State:
    """How the run stands.

    Attributes:
        point: where it trains, or trained before it went to sleep. `asleep`: it does not train.
        target: of the order it has, "" for sleep; None without one. `ordered_s`: since when.
        busy_until_s: end of the switch under way; None: none. `fails`: it will fail.
        switched_s: begins of switches. `changed_s`: end of the last; `clock_s`: last clock change.
        measured: tokens/s over the last whole boundary interval.
    """

    point: OperatingPoint
    at_s: float = 0.0
    tokens: float = 0.0
    energy_j: float = 0.0
    carbon_g: float = 0.0
    asleep: bool = False
    asleep_since_s: float = 0.0
    target: str | None = None
    ordered_s: float = 0.0
    busy_until_s: float | None = None
    busy_w: float = 0.0
    fails: bool = False
    failed: int = 0
    switched_s: tuple[float, ...] = ()
    clock_changes: int = 0
    changed_s: float | None = None
    clock_s: float | None = None
    boundary_tokens: float = 0.0
    interval_began: tuple[float, float] | None = None
    measured: float | None = None


class Driver(Protocol):
    """Who steers: asked every look, answers with a point id, "" for sleep, None for nothing."""

    def wish(self, scene: Scene, state: State) -> str | None:
        """Say where the run should be from now on."""
        ...


def run(scene: Scene, driver: Driver, *, cycle_s: float) -> State:
    """Let a run train until its work is done."""
    world = World(scene)
    look_s = 0.0
    while not world.done:
        if world.state.at_s >= look_s - TICK:
            wish = driver.wish(scene, world.state)
            if wish is not None:
                world.order(wish)
            look_s = world.state.at_s + cycle_s
        world.go_to(min(look_s, world.next_s()))
    return world.state


class World:
    """The run; moves on from event to event."""

    def __init__(self, scene: Scene) -> None:
        """Start at the first point, with a boundary just passed."""
        self.scene = scene
        self.state = State(
            point=scene.catalogue.point(scene.first),
            boundary_tokens=scene.interval_tokens,
            interval_began=(0.0, 0.0),
        )
        self._hourly = bool(scene.noise.throughput)

    @property
    def done(self) -> bool:
        """Whether all tokens are trained."""
        return self.state.tokens >= self.scene.tokens * (1 - 1e-12)

    def order(self, wish: str) -> None:
        """Take an order: a clock and a wake-up at once, all else at the next boundary."""
        state = self.state
        if state.busy_until_s is not None:
            return
        if wish == ("" if state.asleep else state.point.id):
            return
        if not state.asleep and wish and self._layout(wish) == state.point.layout:
            self._change_clock(self.scene.catalogue.point(wish))
            return
        state.target, state.ordered_s = wish, state.at_s
        if state.asleep:
            self._begin()

    def next_s(self) -> float:
        """Give the next moment at which something happens by itself."""
        state = self.state
        hour_s = (state.at_s // 3600 + 1) * 3600.0 if self._hourly else float("inf")
        if state.busy_until_s is not None:
            return min(state.busy_until_s, hour_s)
        if state.asleep:
            return float("inf")
        goal = min(state.boundary_tokens, self.scene.tokens)
        return min(hour_s, state.at_s + max(0.0, goal - state.tokens) / self._speed())

    def go_to(self, to_s: float) -> None:
        """Train and charge until `to_s`; what is due then takes effect."""
        state = self.state
        self._charge(state.at_s, to_s)
        state.tokens += self._speed() * (to_s - state.at_s)
        state.at_s = to_s
        if state.busy_until_s is not None:
            if to_s >= state.busy_until_s - TICK:
                self._end()
        elif not state.asleep and state.tokens >= state.boundary_tokens * (1 - 1e-12):
            self._boundary()

    def _layout(self, point: str) -> object:
        """Layout of a point."""
        return self.scene.catalogue.point(point).layout

    def _speed(self) -> float:
        """Tokens per second now; none while it sleeps or switches."""
        if self.state.asleep or self.state.busy_until_s is not None:
            return 0.0
        return self.state.point.tokens_per_s * self.scene.noise.speed(self.state.at_s)

    def _power_w(self) -> float:
        """Watts charged to the run now."""
        state, catalogue = self.state, self.scene.catalogue
        if state.busy_until_s is not None:
            return state.busy_w
        if not state.asleep:
            return catalogue.held_power_w(state.point, self.scene.gpus)
        if catalogue.release is Release.RELEASED:
            return 0.0
        return self.scene.gpus * catalogue.idle_power_w_per_gpu

    def _charge(self, from_s: float, to_s: float) -> None:
        """Book some seconds at what the grid emitted."""
        power_w, grid, start = self._power_w(), self.scene.grid, self.scene.start
        burnt = grid.burnt(start + timedelta(seconds=to_s)) - grid.burnt(
            start + timedelta(seconds=from_s)
        )
        self.state.energy_j += power_w * (to_s - from_s)
        self.state.carbon_g += power_w * burnt / J_PER_KWH

    def _change_clock(self, target: OperatingPoint) -> None:
        """Lock another clock; it may cost seconds without a token."""
        state, seconds = self.state, self.scene.catalogue.switch.clock_s
        state.target = None
        state.clock_changes += 1
        state.clock_s = state.at_s
        state.interval_began = state.measured = None
        if seconds:
            state.busy_w = self._power_w()
            state.busy_until_s = state.at_s + seconds
            state.target = target.id
            state.fails = False
            return
        state.point = target

    def _boundary(self) -> None:
        """Pass a checkpoint: measure the speed, and begin what was ordered."""
        state = self.state
        if state.interval_began is not None:
            began_s, tokens = state.interval_began
            state.measured = (state.tokens - tokens) / (state.at_s - began_s)
        state.interval_began = (state.at_s, state.tokens)
        state.boundary_tokens = state.tokens + self.scene.interval_tokens
        if state.target is not None:
            self._begin()

    def _begin(self) -> None:
        """Stop training for a switch."""
        state = self.state
        origin = PAUSED if state.asleep else state.point.id
        seconds, energy_j = self._cost(origin, state.target or PAUSED)
        state.fails = self.scene.noise.fails(len(state.switched_s))
        state.switched_s = (*state.switched_s, state.at_s)
        times = FAILED_SWITCH if state.fails else 1.0
        state.busy_w = energy_j / seconds if seconds else 0.0
        if not seconds:
            index = self.scene.grid.index(self.scene.start + timedelta(seconds=state.at_s))
            state.energy_j += energy_j
            state.carbon_g += energy_j * self.scene.grid.values[index] / J_PER_KWH
        state.busy_until_s = state.at_s + times * seconds

    def _cost(self, origin: str, target: str) -> tuple[float, float]:
        """Give seconds and joules of a switch, the wait for given-back GPUs included."""
        catalogue = self.scene.catalogue
        switch, before_w = catalogue.switch, self._power_w()
        pair = switch.between(origin, target)
        known = [catalogue.point(each) for each in (origin, target) if each != PAUSED]
        if pair is not None:
            seconds, energy_j = pair.seconds, pair.energy_j
        else:
            thirsty_w = max(catalogue.held_power_w(each, self.scene.gpus) for each in known)
            seconds = switch.layout_s
            energy_j = switch.layout_energy_j or thirsty_w * seconds
        used = [catalogue.point(each).gpus if each != PAUSED else 0 for each in (origin, target)]
        if catalogue.release is Release.RELEASED and used[1] > used[0]:
            wait_s = switch.reacquire_s or 0.0
            seconds, energy_j = seconds + wait_s, energy_j + wait_s * before_w
        return seconds, energy_j

    def _end(self) -> None:
        """Train on: at the new point, asleep, or as before."""
        state = self.state
        layout_changed = state.asleep or not state.target
        if state.target:
            target = self.scene.catalogue.point(state.target)
            layout_changed |= target.layout != state.point.layout
        if state.fails:
            state.failed += 1
        elif state.target == "":
            state.asleep, state.asleep_since_s = True, state.at_s
        elif state.target is not None:
            state.asleep, state.point = False, self.scene.catalogue.point(state.target)
        if layout_changed and not state.fails:
            state.failed, state.changed_s = 0, state.at_s
        state.target = state.busy_until_s = state.interval_began = None
        state.measured = None
        state.boundary_tokens = state.tokens + self.scene.interval_tokens
