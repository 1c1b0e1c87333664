"""The strength's outer loop: its bounds over whole runs, against an oracle and sabotaged twins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.policies.experts import strength as rules
from wattmesh.policies.experts.strength import (
    RunStrength,
    StrengthFacts,
    StrengthLimits,
    StrengthStep,
    next_strength,
    scores_stay,
)

Rule = Callable[[RunStrength, StrengthFacts, StrengthLimits], StrengthStep]
LIMITS = StrengthLimits(most=0.2, freeze_at=0.8)
GOOD = StrengthFacts(
    too_dear="",
    in_doubt=False,
    proven=0.2,
    fresh=True,
    largest_load=1.0,
    price=1.0,
    trained=0.1,
    differ=True,
)
BEGIN = RunStrength(strength=0.0, variation=0.0, stopped=False)

too_dear = st.sampled_from(["", "", "", "", "", "it costs too much"])
Facts = st.builds(
    StrengthFacts,
    too_dear=too_dear,
    in_doubt=st.booleans(),
    proven=st.floats(0.0, 0.2),
    fresh=st.booleans(),
    largest_load=st.one_of(st.none(), st.floats(1.0, 1.4)),
    price=st.one_of(st.none(), st.floats(-0.5, 3.0)),
    trained=st.one_of(st.none(), st.floats(0.0, 0.79), st.floats(0.0, 1.0)),
    differ=st.booleans(),
)
MostlyGood = st.builds(
    lambda price, load, proven: replace(GOOD, price=price, largest_load=load, proven=proven),
    st.floats(0.0, 2.0),
    st.floats(1.0, 1.2),
    st.floats(0.0, 0.2),
)
Runs = st.one_of(st.lists(MostlyGood, max_size=60), st.lists(Facts, max_size=60))


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One period of a run: what it leaned by, what was known, what came of it."""

    now: RunStrength
    facts: StrengthFacts
    step: StrengthStep


def run(
    facts: Sequence[StrengthFacts], limits: StrengthLimits = LIMITS, rule: Rule = next_strength
) -> list[Period]:
    """Let a run lean as it is told, and count its changes as it does."""
    now, periods = BEGIN, []
    for each in facts:
        step = rule(now, each, limits)
        periods.append(Period(now=now, facts=each, step=step))
        now = RunStrength(
            strength=step.strength,
            variation=now.variation + abs(step.strength - now.strength),
            stopped=step.stopped,
        )
    return periods


def broken(periods: Sequence[Period], limits: StrengthLimits = LIMITS) -> set[str]:
    """Name the bounds that a run breaks, each judged anew from what happened."""
    found: set[str] = set()
    spent, stopped = 0.0, False
    for each in periods:
        before, after, facts = each.now.strength, each.step.strength, each.facts
        change = after - before
        spent += abs(change)
        tripped = facts.too_dear != ""
        late = facts.trained is None or facts.trained >= limits.freeze_at
        loaded = facts.largest_load is None or facts.largest_load >= limits.load_cap
        unproven = not facts.fresh or facts.in_doubt or after > facts.proven + limits.slew + 1e-12
        unknown = not facts.differ or facts.price is None
        too_far = abs(change) > limits.slew + 1e-12
        checks = {
            "clamp": not 0 <= after <= limits.most,
            "slew": too_far and (change > 0 or not (tripped or stopped)),
            "variation": spent + after > limits.variation + 1e-9,
            "guard": tripped and (after != 0 or not each.step.stopped),
            "stays stopped": stopped and after != 0,
            "frozen": late and change != 0 and not tripped,
            "load cap": loaded and change > 0,
            "proof": unproven and change > 0,
            "unknown": unknown and change != 0 and not tripped,
            "why": bool(each.step.why) != (change != 0 or each.step.stopped > each.now.stopped),
        }
        found |= {name for name, wrong in checks.items() if wrong}
        stopped = stopped or each.step.stopped
    return found


@given(Runs)
@settings(max_examples=200, deadline=None)
def test_no_bound_is_broken_whatever_happens(facts: list[StrengthFacts]) -> None:
    """Clamp, slew, variation with its way back, guard, freeze, load cap, proof, one sentence."""
    assert broken(run(facts)) == set()


UP, DOWN = replace(GOOD, price=1.0), replace(GOOD, price=0.0)
STORIES: dict[str, list[StrengthFacts]] = {
    "clamp": [replace(GOOD, price=2.5)] * 9,
    "slew": [GOOD] * 4,
    "variation": ([UP] * 5 + [DOWN] * 5) * 8,
    "guard": [GOOD, GOOD, replace(GOOD, too_dear="it costs too much")],
    "stays stopped": [GOOD, replace(GOOD, too_dear="it costs too much"), GOOD, GOOD],
    "frozen": [GOOD, replace(GOOD, trained=0.85), replace(GOOD, trained=0.9)],
    "load cap": [replace(GOOD, largest_load=1.3)] * 2,
    "proof": [replace(GOOD, proven=0.0)] * 2,
    "unknown": [GOOD, replace(GOOD, differ=False)],
    "why": [GOOD],
}


def twin(bound: str) -> Rule:
    """The rule without one of its bounds."""

    def rule(now: RunStrength, facts: StrengthFacts, limits: StrengthLimits) -> StrengthStep:
        if bound == "why":
            return replace(next_strength(now, facts, limits), why="")
        if bound == "variation":
            return next_strength(replace(now, variation=-1e9), facts, limits)
        if bound == "stays stopped":
            return next_strength(replace(now, stopped=False), facts, limits)
        lies: dict[str, StrengthFacts] = {
            "guard": replace(facts, too_dear=""),
            "frozen": replace(facts, trained=0.1),
            "load cap": replace(facts, largest_load=1.0),
            "proof": replace(facts, fresh=True, in_doubt=False, proven=0.2),
            "unknown": replace(facts, differ=True),
        }
        loose = {"clamp": replace(limits, most=0.4), "slew": replace(limits, slew=0.2)}
        return next_strength(now, lies.get(bound, facts), loose.get(bound, limits))

    return rule


@pytest.mark.parametrize("bound", list(STORIES))
def test_each_bound_is_what_keeps_a_run_from_breaking_it(bound: str) -> None:
    """The rule keeps it where its twin without the bound does not: the check can fail."""
    assert broken(run(STORIES[bound])) == set()
    assert bound in broken(run(STORIES[bound], rule=twin(bound)))


def test_it_follows_the_price_to_the_clamp_and_back() -> None:
    """By the slew limit, with the sentence of each change; a small move of the price is none."""
    periods = run([UP] * 5 + [replace(UP, price=0.96)] + [replace(UP, price=0.5)] * 3)
    assert [round(each.step.strength, 3) for each in periods] == [
        *(0.05, 0.1, 0.15, 0.2, 0.2, 0.2, 0.15, 0.1, 0.1)
    ]
    assert periods[0].step.why == (
        "it rises from 0, as the grid is at 100% of the mean of the hours ahead; 0.05 of 0.8 of "
        "all changes are spent"
    )


@given(st.integers(0, 9), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_with_nothing_in_its_way_it_is_the_nearest_that_a_search_finds(
    begun: int, prices: list[float]
) -> None:
    """Brute force over a fine grid: of all allowed strengths the one nearest to the wish."""
    now = RunStrength(strength=begun * 0.02, variation=0.02 * begun, stopped=False)
    for price in prices:
        step = next_strength(now, replace(GOOD, price=price), LIMITS)
        wish, grid = LIMITS.most * price, [at / 1000 for at in range(201)]
        allowed = [
            each
            for each in grid
            if abs(each - now.strength) <= LIMITS.slew + 1e-9
            and now.variation + abs(each - now.strength) + each <= LIMITS.variation + 1e-9
        ]
        best = min(allowed, key=lambda each: abs(each - wish))
        near = abs(best - now.strength) < rules.DEADBAND * LIMITS.slew + 1e-3
        assert step.strength == pytest.approx(best, abs=1e-3) or (near and not step.why)
        moved = abs(step.strength - now.strength)
        now = RunStrength(
            strength=step.strength, variation=now.variation + moved, stopped=step.stopped
        )


def test_the_operators_clamp_counts_at_once_and_0_is_off() -> None:
    """A clamp that is lowered needs no proof; with a clamp of 0 nothing ever rises."""
    lowered = replace(LIMITS, most=0.05)
    now = RunStrength(strength=0.2, variation=0.2, stopped=False)
    assert next_strength(now, replace(GOOD, price=None), lowered).strength == 0.05
    off = replace(LIMITS, most=0.0)
    assert {each.step.strength for each in run([GOOD] * 5, off)} == {0.0}
    assert not any(each.step.why for each in run([GOOD] * 5, off))


def test_it_rises_a_step_above_what_was_proven_and_not_while_in_doubt() -> None:
    """From 0.1 proven to 0.15; from 0 a step without any proof, so that there is one to come."""
    known = replace(GOOD, proven=0.1)
    now = RunStrength(strength=0.1, variation=0.1, stopped=False)
    assert next_strength(now, known, LIMITS).strength == pytest.approx(0.15)
    assert next_strength(replace(now, strength=0.15), known, LIMITS).strength == 0.15
    assert next_strength(now, replace(known, in_doubt=True), LIMITS).strength == 0.1
    assert next_strength(BEGIN, replace(known, proven=0.0), LIMITS).strength == 0.05
    falls = replace(known, price=0.0, proven=0.0, in_doubt=True)
    assert next_strength(now, falls, LIMITS).strength == pytest.approx(0.05)


def test_what_is_too_dear_stops_a_run_that_leans_no_more_too() -> None:
    """The last pair of a lean may be heard after its end: it never comes back, and says why."""
    step = next_strength(BEGIN, replace(GOOD, too_dear="it costs too much"), LIMITS)
    assert step == StrengthStep(strength=0.0, stopped=True, why="it costs too much: it stays at 0")


@given(
    begun=st.floats(0.01, 0.2),
    spent=st.floats(0.0, 0.8),
    price=st.floats(0.0, 1.5),
    proven=st.floats(0.0, 0.2),
)
@settings(max_examples=200, deadline=None)
def test_other_scores_and_another_strength_at_once_keep_to_the_variation(
    begun: float, spent: float, price: float, proven: float
) -> None:
    """From one end of the scores to the other while the strength rises, and the way back."""
    now = RunStrength(strength=begun, variation=max(begun, spent), stopped=False)
    to = next_strength(now, replace(GOOD, price=price, proven=proven), LIMITS).strength
    most = now.variation + (begun + to) + to
    if not scores_stay(now, 0.1, LIMITS, to):
        assert most <= LIMITS.variation + 1e-12


def test_scores_that_would_cost_too_much_with_the_rise_stay() -> None:
    """Its twin: without the rise they may move."""
    now = RunStrength(strength=0.1, variation=0.5, stopped=False)
    assert not scores_stay(now, 0.1, LIMITS)
    assert scores_stay(now, 0.1, LIMITS, to=0.15)
