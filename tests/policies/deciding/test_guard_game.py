"""Every move of both sides on a small world: where the guard holds, no run is late."""

from dataclasses import dataclass, replace
from functools import cache

import pytest

from tests.policies.deciding.guard_game import (
    CYCLE_S,
    FAST,
    POINTS,
    SLOW,
    Game,
    Rule,
    State,
    guard,
    ordered,
    passed,
)
from wattmesh.policies.guard import Guard
from wattmesh.reconfig.catalogue import OperatingPoint

STARTS = tuple(
    State(tokens, seconds, at.id, pending, attempts)
    for tokens in (1, 3, 6, 9, 13, 18)
    for seconds in range(1, 37)
    for at in POINTS
    for pending in (0, 1, 3)
    for attempts in (1, 2)
)


def late(game: Game) -> State | None:
    """A state in which the guard holds and the run can be late all the same."""
    return next((each for each in STARTS if game.safe(each) and not game.in_time(each)), None)


def test_where_the_guard_holds_no_move_of_anybody_makes_the_run_late() -> None:
    """The theorem, move by move: boundaries, failures, clocks in flight, all that is allowed."""
    game = Game()
    assert sum(map(game.safe, STARTS)) > len(STARTS) / 4
    assert late(game) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Guard):
    """A sabotaged guard that forgets the clock which follows a switch."""

    def _clock_after_s(self, origin: OperatingPoint | None, target: OperatingPoint) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwaited(Guard):
    """A sabotaged guard that forgets the wait for a boundary."""

    def lag_s(self, point: OperatingPoint) -> float:
        """Give a cycle."""
        return self.cycle_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Thawed(Guard):
    """A sabotaged guard that takes a frozen run for one that may still switch."""

    def _frozen_s(self, point: OperatingPoint, tokens: float) -> float:
        return tokens / self.rho(self.fastest)


def believing(kind: type[Guard]) -> Rule:
    """A guard of another kind that knows the same."""
    names = Guard.__dataclass_fields__
    return lambda honest: kind(**{name: getattr(honest, name) for name in names})


@pytest.mark.parametrize(
    "rule",
    [
        lambda honest: replace(honest, clock_s=0.0),
        lambda honest: replace(honest, pending_s=0.0),
        lambda honest: replace(honest, timeout_s=0.0),
        lambda honest: replace(honest, attempts=1, attempts_after=1),
        lambda honest: replace(honest, cycle_s=0.0),
        believing(Followed),
        believing(Unwaited),
        believing(Thawed),
    ],
    ids=["clock", "flight", "timeout", "attempts", "cycle", "follows", "boundary", "frozen"],
)
def test_a_guard_that_forgets_anything_is_late_somewhere(rule: Rule) -> None:
    """Each term is needed: without it the same game is lost."""
    assert late(Game(rule)) is not None


@cache
def winnable(state: State) -> bool:
    """Whether somebody who plays the clock way perfectly can be in time, at worst."""
    if state.tokens <= 0:
        return state.seconds >= 0
    if state.seconds <= 0:
        return False
    choices = [list(passed(state))]
    if state.at is SLOW:
        choices.append(list(ordered(state, FAST, forced=True)))
    return any(all(map(winnable, after)) for after in choices)


@pytest.mark.parametrize("tokens", [1, 5, 8, 13, 18, 25])
def test_at_a_slower_clock_the_guard_asks_for_no_more_than_a_look_too_many(tokens: int) -> None:
    """The least time a perfect player needs, and the guard's: a cycle's loss apart, rounded up."""
    needed = next(seconds for seconds in range(1, 60) if winnable(State(tokens, seconds, SLOW.id)))
    asked = next(
        seconds for seconds in range(1, 60) if guard(State(tokens, seconds, SLOW.id)).may_stay(SLOW)
    )
    assert needed <= asked <= needed + CYCLE_S
