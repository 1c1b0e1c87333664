"""A whole run under the policy, in pure arithmetic: looks, boundaries, switches that may fail.

It knows nothing of how the policy works: it trains, holds the clock, carries out orders at
boundaries, and sums the grams of what the grid really did.
Invariant: every second from start to finish is charged, switches included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from wattmesh.policies.decision import (
    Action,
    CarbonView,
    Decision,
    IntensitySlot,
    Mode,
    Observation,
    PolicySettings,
    RunView,
    SwitchView,
)
from wattmesh.policies.guard import FAILED_SWITCH
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.speed import SpeedWatch, watch
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint
from wattmesh.telemetry.readings import J_PER_KWH

Decide = Callable[[Observation], tuple[Decision, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What happens whatever the policy does.

    Attributes:
        grid: what the grid really emits; `forecast`: what is said of it before, slot by slot.
        speed: share of a point's catalogue speed after so many seconds.
        fails: whether the n-th switch fails.
        interval_tokens: from boundary to boundary.
        signal_trouble: what is wrong with the signal after so many seconds; "" for nothing.
        failed_s: seconds until it trains again after a switch that failed; None: twice a switch.
        lost_s: after so many seconds nodes are lost; the run comes back `outage_s` later at the
            point `left`, on the GPUs of that point, and gets no others.
    """

    catalogue: Catalogue
    start: datetime
    tokens_total: int
    deadline: datetime
    grid: Sequence[IntensitySlot]
    forecast: Sequence[IntensitySlot]
    policy: PolicySettings
    interval_tokens: int
    cycle_s: float
    first: str
    switch_s: float
    speed: Callable[[float], float] = lambda _: 1.0
    fails: Callable[[int], bool] = lambda _: False
    signal_trouble: Callable[[float], str] = lambda _: ""
    failed_s: float | None = None
    lost_s: float = float("inf")
    outage_s: float = 0.0
    left: str = ""

    @property
    def gpus(self) -> int:
        """GPUs that the run was launched on."""
        return max(point.gpus for point in self.catalogue.points)


@dataclass(slots=True, kw_only=True)
class Day:
    """How a run went. `path`: (seconds, point) at which it began to train there."""

    carbon_g: float = 0.0
    energy_j: float = 0.0
    finished_s: float = 0.0
    in_time: bool = False
    frozen: bool = False
    decisions: list[Decision] = field(default_factory=list)
    path: list[tuple[float, str]] = field(default_factory=list)


class Simulation:
    """One run from start to finish."""

    def __init__(self, world: World, choose: Decide = decide) -> None:
        """Start at the first point, with a boundary just passed."""
        self.world = world
        self.choose = choose
        self.day = Day()
        self.at_s = 0.0
        self.tokens = 0.0
        self.point = world.catalogue.point(world.first)
        self.order: tuple[OperatingPoint, float] | None = None
        self.ends_s: float | None = None
        self.fails = False
        self.switches = 0
        self.failed = 0
        self.since_s: float | None = None
        self.boundary = float(world.interval_tokens)
        self.look_s = 0.0
        self.gpus = world.gpus
        self.out_s: float | None = None
        self.watched = SpeedWatch()
        self.day.path.append((0.0, self.point.id))

    def go(self) -> Day:
        """Run until the work is done."""
        world = self.world
        while self.tokens < world.tokens_total * (1 - 1e-12):
            if self.at_s >= self.look_s - 1e-9:
                self._look()
                self.look_s = self.at_s + world.cycle_s
            self._advance(self._next_s())
        self.day.finished_s = self.at_s
        self.day.in_time = self.at_s <= (world.deadline - world.start).total_seconds() + 1e-6
        return self.day

    def _speed(self) -> float:
        """Tokens per second now; none during a switch."""
        if self.ends_s is not None or self.out_s is not None:
            return 0.0
        return self.point.tokens_per_s * self.world.speed(self.at_s)

    def _next_s(self) -> float:
        """The next moment at which anything changes."""
        moments = [self.look_s, self._border_s()]
        if self.gpus == self.world.gpus:
            moments.append(self.world.lost_s)
        if self.out_s is not None:
            moments.append(self.out_s)
        elif self.ends_s is not None:
            moments.append(self.ends_s)
        else:
            goal = min(self.boundary, float(self.world.tokens_total))
            moments.append(self.at_s + (goal - self.tokens) / self._speed())
        return max(self.at_s, min(each for each in moments if each > self.at_s - 1e-9))

    def _border_s(self) -> float:
        """The end of the current slot of the grid."""
        now = self.world.start + timedelta(seconds=self.at_s)
        for slot in self.world.grid:
            if slot.end > now:
                return (slot.end - self.world.start).total_seconds()
        return float("inf")

    def _advance(self, to_s: float) -> None:
        """Train and charge until `to_s`, then let a boundary or the end of a switch take effect."""
        seconds = to_s - self.at_s
        self._charge(seconds)
        self.tokens += self._speed() * seconds
        self.at_s = to_s
        if self.out_s is not None:
            if self.at_s >= self.out_s - 1e-9:
                self.out_s = None
        elif self.gpus == self.world.gpus and self.at_s >= self.world.lost_s - 1e-9:
            self._lose()
        elif self.ends_s is not None:
            if self.at_s >= self.ends_s - 1e-9:
                self._end_switch()
        elif self.tokens >= self.boundary - 1e-6:
            self.boundary = self.tokens + self.world.interval_tokens
            self._watch()
            if self.order is not None:
                self._begin_switch()

    def _watch(self) -> None:
        """Measure the speed, as the daemon does."""
        self.watched = watch(
            self.watched,
            point=self.point.id,
            at_s=self.at_s,
            tokens=self.tokens,
            step=round(self.tokens),
            least_steps=1,
            margin=self.world.policy.guard_margin,
        )

    def _lose(self) -> None:
        """Lose nodes: whatever was under way is void, and what is left trains on later."""
        self.watched = SpeedWatch()
        self.point = self.world.catalogue.point(self.world.left)
        self.gpus = self.point.gpus
        self.order = self.ends_s = None
        self.out_s = self.at_s + self.world.outage_s
        self.boundary = self.tokens + self.world.interval_tokens
        self.day.path.append((self.at_s, self.point.id))

    def _charge(self, seconds: float) -> None:
        """Book the energy of some seconds at what the grid emits."""
        switch = self.world.catalogue.switch
        if self.ends_s is not None:
            power_w = switch.layout_energy_j / self.world.switch_s
        else:
            power_w = self.world.catalogue.held_power_w(self.point, self.world.gpus)
        self.day.energy_j += power_w * seconds
        self.day.carbon_g += power_w * seconds * self._g_per_kwh() / J_PER_KWH

    def _g_per_kwh(self) -> float:
        """What the grid emits now; its last value once the trace is over."""
        now = self.world.start + timedelta(seconds=self.at_s + 1e-6)
        held = [slot for slot in self.world.grid if slot.start <= now]
        return held[-1].g_per_kwh

    def _begin_switch(self) -> None:
        """Stop training for a switch."""
        self.watched = replace(self.watched, stay=None)
        self.fails = self.world.fails(self.switches)
        self.switches += 1
        failed_s = self.world.failed_s
        if failed_s is None:
            failed_s = FAILED_SWITCH * self.world.switch_s
        self.ends_s = self.at_s + (failed_s if self.fails else self.world.switch_s)

    def _end_switch(self) -> None:
        """Train on: at the new point, or at the old one."""
        if self.order is not None and not self.fails:
            self.point = self.order[0]
            self.failed = 0
            self.since_s = self.at_s
        else:
            self.failed += 1
        self.day.path.append((self.at_s, self.point.id))
        self.order = self.ends_s = None
        self.boundary = self.tokens + self.world.interval_tokens

    def _look(self) -> None:
        """Show the run to the policy and take its order."""
        seen = self.observation()
        for decision in self.choose(seen):
            self.day.decisions.append(decision)
            if decision.action is Action.SWITCH:
                target = self.world.catalogue.point(decision.target)
                self.order = (target, self.at_s)
            self.day.frozen |= decision.action is Action.FREEZE

    def observation(self) -> Observation:
        """What the policy sees now."""
        world = self.world
        now = world.start + timedelta(seconds=self.at_s)
        trouble = world.signal_trouble(self.at_s)
        seen = tuple(
            replace(said, g_per_kwh=real.g_per_kwh) if real.start <= now else said
            for real, said in zip(world.grid, world.forecast, strict=True)
            if real.end > now
        )
        return Observation(
            now=now,
            mode=Mode.ACT,
            runs=(self._view(now),),
            carbon=CarbonView(signal="test", slots=seen, age_s=1.0, trouble=trouble),
            policy=world.policy,
            cycle_s=world.cycle_s,
        )

    def _view(self, now: datetime) -> RunView:
        """The run as the journal would show it."""
        world = self.world
        open_switch = None
        if self.order is not None:
            state = "ordered" if self.ends_s is None else "rebuilding"
            open_switch = SwitchView(
                plan="p", target=self.order[0].id, state=state, age_s=self.at_s - self.order[1]
            )
        return RunView(
            run="r",
            name="run",
            attempt=1,
            live=True,
            last_seen_s=0.0,
            step=int(self.tokens),
            tokens=int(self.tokens),
            tokens_total=world.tokens_total,
            layout=self.point.layout,
            world_size=self.gpus,
            gpus_held=self.gpus,
            boundary_every=world.interval_tokens,
            started_at=world.start,
            catalogue=world.catalogue,
            current=self.point,
            deadline=world.deadline,
            tokens_per_s=self._speed() or None,
            frozen="two switches failed" if self.day.frozen else "",
            open_switch=open_switch,
            failed_switches=self.failed,
            switches_today=self.switches,
            since_switch_s=None if self.since_s is None else self.at_s - self.since_s,
            speeds=self.watched.speeds,
            capabilities=("in_place", "parking"),
        )
