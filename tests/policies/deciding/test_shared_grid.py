"""What runs of one observation share of the grid ahead changes no decision and no question."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.observations import NOW, PAIR, measured, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import Climatology, Observation, PolicySettings
from wattmesh.policies.horizon import JoinedSlots, between
from wattmesh.policies.hull import Hull, lower_hull
from wattmesh.policies.planner.grid import mixed
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.rules.price import fill
from wattmesh.policies.shared_grid import SharedGrid, SharedSteps

FOUR = catalogue(*(point(f"p{n}", 4, 400.0 + 200 * n, 700.0 + 90 * n**2) for n in range(1, 5)))
USUAL = Climatology(hours=tuple(100.0 + 20 * hour for hour in range(24)), low=0.7, high=1.2)
GRAMS = st.sampled_from([40.0, 80.0, 81.0, 333.0]) | st.floats(1.0, 900.0)


@st.composite
def crowds(draw: st.DrawFn) -> Observation:
    """Draw runs with two catalogues and deadlines within and beyond the forecast."""
    runs = []
    for number in range(draw(st.integers(2, 5))):
        known = draw(st.sampled_from([FOUR, PAIR]))
        at = draw(st.sampled_from(known.points))
        hours = draw(st.floats(1.0, 120.0))
        share = draw(st.floats(0.3, 1.0))
        fastest = max(each.tokens_per_s for each in known.points)
        changes = {
            "run": f"r-{number}",
            "catalogue": known,
            "current": at,
            "layout": at.layout,
            "tokens_total": 1_000_000 + round(share * hours * 3600 * fastest),
            "deadline": NOW + timedelta(hours=hours),
            "speeds": (measured(at),),
        }
        runs.append(run(**changes))
    values = draw(st.lists(GRAMS, min_size=1, max_size=60))
    seen = observation(*runs, grid=slots(values), policy=PolicySettings(dwell_s=0.0))
    now = NOW + timedelta(minutes=draw(st.sampled_from([0, 17])))
    usual = draw(st.sampled_from([None, USUAL]))
    return replace(seen, now=now, carbon=replace(seen.carbon, climatology=usual))


@given(crowds())
@settings(max_examples=60)
def test_a_run_among_others_is_decided_on_as_if_it_were_alone(seen: Observation) -> None:
    """To the last digit; and what its planner is asked is the same too."""
    alone = tuple(each for run in seen.runs for each in decide(replace(seen, runs=(run,))))
    assert decide(seen) == alone
    grid = SharedGrid(seen)
    for each in seen.runs:
        assert question(seen, each, grid=grid) == question(seen, each)


def hull() -> Hull:
    """The hull of four points."""
    return lower_hull(FOUR, FOUR.points, 4)


@given(st.data())
@settings(max_examples=60)
def test_any_part_of_the_slots_has_the_price_that_it_has_alone(data: st.DataObject) -> None:
    """Whichever slots it begins and ends in, cut or whole, and however much there is to do."""
    values = data.draw(st.lists(GRAMS, min_size=1, max_size=20))
    grid = slots(values)
    shared = SharedSteps(grid)
    for _ in range(3):
        start, end = sorted(data.draw(st.floats(0.0, len(values))) for _ in range(2))
        part = between(grid, NOW + timedelta(hours=start), NOW + timedelta(hours=end))
        seconds = sum((each.end - each.start).total_seconds() for each in part)
        tokens = data.draw(st.floats(0.1, 1.01)) * seconds * FOUR.points[-1].tokens_per_s
        assert fill(hull(), part, tokens, shared) == fill(hull(), part, tokens)


def test_steps_of_other_slots_are_not_taken_for_these() -> None:
    """Slots of the same times but with other values are no part of those that are shared."""
    shared = SharedSteps(slots([100.0, 300.0, 50.0, 200.0, 90.0]))
    other = slots([100.0, 300.0, 51.0, 200.0, 90.0])
    tokens = 3.2 * 3600 * FOUR.points[-1].tokens_per_s
    assert fill(hull(), other, tokens, shared) == fill(hull(), other, tokens)
    part = between(other, NOW + timedelta(minutes=90), NOW + timedelta(minutes=250))
    assert fill(hull(), part, tokens / 2, shared) == fill(hull(), part, tokens / 2)


def test_steps_that_were_taken_unseen_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin: whoever takes the steps at the same place has another answer."""
    shared = SharedSteps(slots([100.0, 300.0, 50.0, 200.0, 90.0]))
    other = slots([100.0, 300.0, 500.0, 200.0, 90.0])
    tokens = 3.2 * 3600 * FOUR.points[-1].tokens_per_s
    honest = fill(hull(), other, tokens)
    monkeypatch.setattr(SharedSteps, "_offset", lambda *_: 0)
    assert fill(hull(), other, tokens, shared) != honest


def test_slots_are_joined_once_and_never_mixed_up() -> None:
    """The same slots give the same one; a cut one between the same times gives its own."""
    joined, grid = JoinedSlots(), slots([100.0, 300.0, 50.0, 200.0], seconds=300.0)
    first, again = (mixed(grid, NOW, joined=joined) for _ in range(2))
    assert first == mixed(grid, NOW)
    assert all(one is other for one, other in zip(first, again, strict=True))
    cut = (*grid[:2], replace(grid[2], g_per_kwh=60.0))
    assert mixed(cut, NOW, joined=joined) == mixed(cut, NOW) != first
