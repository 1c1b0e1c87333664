"""The guard's theorem as a game on whole seconds, every move of both sides tried.

One side orders whatever the guard allows, and the fastest point where it must. The other decides
when the boundary comes, whether a switch fails, and whether a clock that is in flight trains
anything. It shares no formula with the guard: it only lets time pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from tests.builders.points import point
from wattmesh.policies.guard import Guard
from wattmesh.policies.switch_time import SwitchTimes
from wattmesh.reconfig.catalogue import OperatingPoint, SwitchCost
from wattmesh.reconfig.layout import Layout

WIDE, NARROW = Layout(dp_shard=4), Layout(dp_shard=2)
FAST = point("fast", 4, 4.0, 400.0, clock_mhz=1980, layout=WIDE)
SLOW = point("slow", 4, 3.0, 280.0, clock_mhz=1300, layout=WIDE)
SMALL = point("small", 2, 2.0, 200.0, clock_mhz=1980, layout=NARROW)
LEAST = point("least", 2, 1.0, 120.0, clock_mhz=1300, layout=NARROW)
POINTS = (FAST, SLOW, SMALL, LEAST)
UNHELD = (FAST, SMALL)
NAMED = {each.id: each for each in POINTS}

CYCLE_S, SWITCH_S, FAILED_S, CLOCK_S = 1, 2, 5, 3
INTERVAL_TOKENS = 4
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class State:
    """Where the run stands at a look.

    Attributes:
        tokens: left. `seconds`: to the deadline. `name`: of the point that the cycle sees.
        pending: seconds of a clock in flight. `attempts`: left before it is frozen.
        frozen_s: seconds until a frozen run's clock is wished away; None: it is not frozen.
    """

    tokens: int
    seconds: int
    name: str
    pending: int = 0
    attempts: int = ATTEMPTS
    frozen_s: int | None = None

    @property
    def at(self) -> OperatingPoint:
        """The point."""
        return NAMED[self.name]


Rule = Callable[[Guard], Guard]
"""What a sabotaged guard believes instead."""


@cache
def guard(state: State) -> Guard:
    """The guard of one look: of the same state for every game."""
    return Guard(
        tokens_left=float(state.tokens),
        time_left_s=float(state.seconds),
        counted_on=1.0,
        fastest=FAST,
        refuges=POINTS,
        times=SwitchTimes(switch=SwitchCost(layout_s=float(SWITCH_S))),
        interval_tokens=float(INTERVAL_TOKENS),
        cycle_s=float(CYCLE_S),
        attempts=state.attempts,
        attempts_after=ATTEMPTS,
        timeout_s=float(FAILED_S),
        clock_s=float(CLOCK_S),
        pending_s=float(state.pending),
        unheld=UNHELD,
    )


class Game:
    """All that can become of a run under a guard."""

    def __init__(self, rule: Rule = lambda honest: honest) -> None:
        """Take what the guard believes; its answers are its own, the moves are not."""
        self._rule = rule
        self.in_time = cache(self._in_time)

    def safe(self, state: State) -> bool:
        """Whether the guard holds there."""
        return self._rule(guard(state)).may_stay(state.at)

    def _in_time(self, state: State) -> bool:
        """Whether the run is in time, whatever both sides do from here."""
        if state.tokens <= 0:
            return state.seconds >= 0
        if state.seconds <= 0:
            return False
        if state.frozen_s is not None:
            return all(map(self.in_time, frozen(state)))
        believed = self._rule(guard(state))
        if not believed.may_stay(state.at):
            refuge = believed.refuge(state.at) or state.at
            return all(map(self.in_time, ordered(state, refuge, forced=True)))
        targets = [each for each in POINTS if each is not state.at]
        return all(map(self.in_time, passed(state))) and all(
            self.in_time(after)
            for target in targets
            if believed.may_go(state.at, target)
            for after in ordered(state, target, forced=False)
        )


def passed(state: State) -> Iterator[State]:
    """A second goes by: at the point's speed, or untrained while its clock is in flight."""
    pending = max(0, state.pending - 1)
    for speed in (
        (int(state.at.tokens_per_s), 0) if state.pending else (int(state.at.tokens_per_s),)
    ):
        yield replace(
            state, tokens=state.tokens - speed, seconds=state.seconds - 1, pending=pending
        )


def frozen(state: State) -> Iterator[State]:
    """A second of a frozen run, whose clock goes back by itself."""
    for after in passed(state):
        left_s = (state.frozen_s or 0) - 1
        if left_s != 0:
            yield replace(after, frozen_s=max(0, left_s))
            continue
        home = next(each for each in UNHELD if each.layout == state.at.layout)
        changed = home is not state.at
        yield replace(
            after, frozen_s=0, name=home.id, pending=CLOCK_S if changed else after.pending
        )


def ordered(state: State, target: OperatingPoint, *, forced: bool) -> Iterator[State]:
    """Go to another clock now, or to another layout from any boundary on."""
    if state.at is target:
        yield from passed(state)
        return
    if target.layout == state.at.layout:
        yield from passed(replace(state, name=target.id, pending=CLOCK_S))
        return
    for waited in waits(state):
        if waited.tokens <= 0:
            yield waited
            continue
        yield arrived(waited, target)
        if not (forced and state.attempts == 1):
            yield failed(waited)


def waits(state: State) -> Iterator[State]:
    """Every whole second at which the boundary may come; never, if the work is done before."""
    frontier = [state]
    for _ in range(INTERVAL_TOKENS // int(state.at.tokens_per_s) + state.pending + 1):
        yield from frontier
        frontier = [after for each in frontier if each.tokens > 0 for after in passed(each)]


def arrived(state: State, target: OperatingPoint) -> State:
    """A switch that goes well; where the clock differs it is wished at the next look."""
    other = target.clock_mhz != state.at.clock_mhz
    lost_s = SWITCH_S + (CYCLE_S if other else 0)
    pending = CLOCK_S if other else max(0, state.pending - lost_s)
    return replace(
        state,
        seconds=state.seconds - lost_s,
        name=target.id,
        pending=pending,
        attempts=ATTEMPTS,
    )


def failed(state: State) -> State:
    """A switch that fails; the last one allowed freezes the run."""
    left = state.attempts - 1
    return replace(
        state,
        seconds=state.seconds - FAILED_S,
        pending=max(0, state.pending - FAILED_S),
        attempts=left,
        frozen_s=None if left else 2 * CYCLE_S,
    )
