"""What steers a replayed run: wattmesh's own decisions, or a rival rule under the same guard.

Ours is the daemon's own cycle (`wattmesh.controller.cycle.cycle`), with plans made at once instead
of by a worker. A rival is asked once per interval of the grid, as its authors do; the deadline
guard checks its answer in every cycle.

Invariant: both see the grid through the same forecast.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from wattmesh.controller.cycle.cycle import Cycle, CycleObservation
from wattmesh.controller.cycle.plans import Plans, with_plans
from wattmesh.controller.replay.forecasts import ReplayForecast
from wattmesh.controller.replay.views import observation
from wattmesh.controller.replay.world import RunState, Scene, World
from wattmesh.policies.decision import (
    SUSPENDS,
    Action,
    Decision,
    IntensitySlot,
    Observation,
    PlanView,
    PolicySettings,
    RunView,
)
from wattmesh.policies.horizon import to_end
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.planner.planning import answered
from wattmesh.policies.rivals.rival_inputs import (
    SLEEP,
    IntensityAhead,
    RatedPoint,
    RivalInputs,
    RivalRule,
)
from wattmesh.policies.run_context import RunContext, examine

PAST = timedelta(days=14)
"""How much of the past a rule sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """What every driver of one replay gets.

    Attributes:
        pause: whether runs can be suspended. `keep`: plans are kept to unless a new one saves
            enough.
    """

    forecast: ReplayForecast
    policy: PolicySettings
    cycle_s: float
    pause: bool = True
    keep: bool = True


@dataclass(slots=True)
class SolveTimer:
    """Real seconds spent on answers."""

    solved: int = 0
    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time one answer."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began
        self.solved += 1

    @property
    def mean_s(self) -> float:
        """Seconds for one answer; 0 when there was none."""
        return self.seconds / self.solved if self.solved else 0.0


class PlansNow:
    """Plans made at once when they are asked for, a new one in every interval of the grid."""

    def __init__(self, *, keep: bool = True) -> None:
        """Start without a plan; `keep`: one is kept to unless a new one saves enough."""
        self._keep = keep
        self._plan: PlanView | None = None
        self._asked: tuple[object, ...] | None = None
        self._clock = SolveTimer()

    def newest(self, seen: Observation, run: RunView) -> PlanView | None:
        """Give the plan for now; a new one if the grid, the cap or the run's place has changed."""
        here = run.current.id if run.current else ""
        slot = seen.carbon.slots[0].start if seen.carbon.slots else None
        cap = (seen.cap.until, run.room_w) if seen.cap else None
        asked = (slot, here, run.suspended_s is None, cap)
        if run.open_switch is not None or asked == self._asked:
            return self._plan
        with self._clock.running():
            wanted = question(seen, run)
            found = answered(wanted, self._plan if self._keep else None) if wanted else None
            self._plan = found if isinstance(found, PlanView) else None
        self._asked = asked
        return self._plan

    @property
    def solve_s(self) -> float:
        """Seconds for one plan, on average."""
        return self._clock.mean_s


class LivePolicy:
    """Wattmesh: the live cycle, which observes and acts on a simulated run."""

    def __init__(self, means: DriverSettings, plans: Plans) -> None:
        """Keep the forecast, the settings and the planner."""
        self._means, self._plans = means, plans
        self._cycle = Cycle(self, self)
        self._trained: deque[tuple[float, int]] = deque()
        self._wakes_at: datetime | None = None
        self.world: World

    @property
    def solve_s(self) -> float:
        """Seconds for one plan, on average; 0 without a planner."""
        return self._plans.solve_s if isinstance(self._plans, PlansNow) else 0.0

    def look(self, world: World) -> None:
        """Run one cycle."""
        self.world = world
        self._cycle.run(world.now)
        state = world.state
        if not state.asleep or state.target is not None or self._wakes_at is None:
            return
        if world.now >= self._wakes_at:  # its launcher starts it where it fell asleep
            world.order(state.point.id)

    def observe(self, now: datetime) -> CycleObservation:
        """Observe the simulated run, and take its newest plan."""
        return CycleObservation(observation=with_plans(self.see(now), self._plans))

    def see(self, now: datetime) -> Observation:
        """Observe the simulated run, without a plan."""
        scene, state = self.world.scene, self.world.state
        return _see(scene, state, self._means, self._window(state))

    def settle(self, seen: CycleObservation) -> bool:
        """Release a frozen run's clock; nothing else is ever left open here."""
        if self.world.state.frozen:
            self.world.let_go()
        return False

    def act(self, seen: CycleObservation, decisions: Sequence[Decision]) -> None:
        """Carry out what was decided."""
        for decision in decisions:
            match decision.action:
                case Action.HOLD:
                    pass
                case Action.FREEZE:
                    self.world.freeze(decision.reason)
                case Action.SUSPEND:
                    self._wakes_at = decision.wakes_at
                    self.world.order(SLEEP)
                case Action.SWITCH | Action.CLOCK | Action.RESUME:
                    self.world.order(decision.target)
                case _:
                    assert_never(decision.action)

    def _window(self, state: RunState) -> tuple[tuple[float, int], ...]:
        """Give what was trained over the window of the service level; empty without one."""
        policy, past = self._means.policy, self._trained
        if not policy.sla_throughput_share:
            return ()
        trained = tuple((state.at_s - at_s, tokens) for at_s, tokens in past)
        past.append((state.at_s, int(state.tokens)))
        while len(past) > 1 and past[1][0] <= state.at_s - policy.sla_window_s:
            past.popleft()
        return trained


class Rival:
    """A rule from other systems."""

    def __init__(self, means: DriverSettings, rule: RivalRule) -> None:
        """Keep the forecast, the settings and the rule."""
        self._means, self._rule = means, rule
        self._asked: tuple[object, str] | None = None
        self._wish = ""
        self._begun: tuple[float, float] | None = None
        self._clock = SolveTimer()

    @property
    def solve_s(self) -> float:
        """Seconds for one answer, on average."""
        return self._clock.mean_s

    def look(self, world: World) -> None:
        """Ask the rule, and let the guard check its answer."""
        scene, state = world.scene, world.state
        seen = _see(scene, state, self._means)
        case = examine(seen, seen.runs[0])
        if case.guard is None or state.busy_until_s is not None:
            return
        if not state.asleep and state.failed >= self._means.policy.failed_limit:
            world.let_go()
            return
        slots, here = seen.carbon.slots, SLEEP if state.asleep else state.point.id
        if not slots:  # the deadline has passed, so no rule has anything left to choose
            self._wish = case.guard.fastest.id
        elif self._asked != (slots[0].start, here):
            with self._clock.running():
                self._wish = self._rule(self._inputs(scene, case, here))
            self._asked = (slots[0].start, here)
        wish = _guarded(case, here, self._wish)
        if wish is not None:
            world.order(wish)

    def _inputs(self, scene: Scene, case: RunContext, here: str) -> RivalInputs:
        seen, guard = case.seen, case.guard
        catalogue = scene.catalogue
        assert guard is not None
        # Keep back the time of one switch to full speed.
        time_left_s = guard.time_left_s - guard.times.longest_s(guard.fastest)
        end = seen.now + timedelta(seconds=max(1.0, time_left_s))
        horizon = to_end(seen.carbon.slots, seen.now, end)
        tokens = guard.tokens_left / guard.counted_on
        if self._begun is None:
            self._begun = (tokens, time_left_s)
        index = scene.grid.index(seen.now)
        return RivalInputs(
            ahead=tuple(map(_ahead, horizon.slots)),
            tokens_left=tokens,
            time_left_s=time_left_s,
            tokens_total=self._begun[0],
            time_total_s=self._begun[1],
            points=_rated(scene),
            current=here,
            switch_s=catalogue.switch.layout_s,
            switch_j=catalogue.switch.layout_energy_j,
            past=scene.grid.values[max(0, index + 1 - PAST // scene.grid.step) : index + 1],
        )


def _see(
    scene: Scene,
    state: RunState,
    means: DriverSettings,
    trained: tuple[tuple[float, int], ...] = (),
) -> Observation:
    return observation(
        scene,
        state,
        means.forecast.slots(scene.moment(state.at_s), scene.deadline),
        policy=means.policy,
        cycle_s=means.cycle_s,
        pause=means.pause,
        trained=trained,
    )


def _guarded(case: RunContext, here: str, wish: str) -> str | None:
    """Give the rule's wish if the guard allows it, else the fastest point, a refuge or None."""
    guard, current = case.guard, case.run.current
    if guard is None or current is None:
        return None
    fastest = guard.fastest.id
    target = next((each for each in case.menu if each.id == wish), guard.fastest)
    if here == SLEEP:
        stays = wish == SLEEP and guard.asleep_slack_s() >= 0.0
        woken = target.id if wish != SLEEP and guard.may_wake(target) else fastest
        return None if stays else woken
    if not guard.may_stay(current):
        refuge = guard.refuge(current)
        return refuge.id if refuge else None
    if wish == SLEEP:
        return SLEEP if SUSPENDS in case.run.capabilities and guard.may_suspend(current) else None
    return target.id if wish != here and guard.may_go(current, target) else None


def _ahead(slot: IntensitySlot) -> IntensityAhead:
    return IntensityAhead(seconds=(slot.end - slot.start).total_seconds(), g_per_kwh=slot.g_per_kwh)


def _rated(scene: Scene) -> tuple[RatedPoint, ...]:
    points = sorted(scene.catalogue.points, key=lambda each: each.tokens_per_s)
    return tuple(
        RatedPoint(
            id=each.id,
            layout=str(each.layout),
            gpus=each.gpus,
            clock_mhz=each.clock_mhz,
            tokens_per_s=each.tokens_per_s,
            power_w=scene.catalogue.held_power_w(each, scene.gpus),
        )
        for each in points
    )
