"""What speed is counted on: the reserve by evidence, what measuring makes of it, who uses it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.observations import NOW, A, B, measured, observation, run
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import Action, Decision, RunView
from wattmesh.policies.guard import Guard
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.run_context import examine
from wattmesh.policies.speed import (
    CountedSpeed,
    MeasuredSpeed,
    SpeedReserve,
    SpeedWatch,
    counted,
    watch,
)
from wattmesh.reconfig.catalogue import Evidence, OperatingPoint

HOUR = timedelta(hours=1)
RESERVE = SpeedReserve()
Z = 0.02
FAST = point("A", 4, 1000.0, 1600.0, clock_mhz=1980)
SLOW = point("S", 4, 850.0, 1050.0, clock_mhz=1305)
OTHER = point("X", 2, 1100.0, 1700.0)


def counts(
    seen: Sequence[MeasuredSpeed] = (), *, here: str = "", now: float | None = None
) -> dict[str, CountedSpeed]:
    """What three points are counted at."""
    points = (FAST, SLOW, OTHER)
    found = counted(points, seen, reserve=RESERVE, margin=Z, here=here, now_tokens_per_s=now)
    return dict(found)


@pytest.mark.parametrize(
    ("evidence", "source", "expected"),
    [
        (Evidence.VALIDATED, "measured", RESERVE.validated),
        (Evidence.MEASURED, "", RESERVE.measured),
        (Evidence.PREDICTED, "", RESERVE.predicted),
        (Evidence.ASSUMED, "", RESERVE.assumed),
        (Evidence.VALIDATED, "assumed", RESERVE.assumed),
        (Evidence.VALIDATED, "predicted", RESERVE.predicted),
    ],
)
def test_the_weaker_the_evidence_the_more_is_kept_in_reserve(
    evidence: Evidence, source: str, expected: float
) -> None:
    """Of the point, or of its speed alone if that is weaker."""
    sources = {"tokens_per_s": source} if source else {}
    odd = replace(FAST, evidence=evidence, sources=sources)
    assert RESERVE.of(odd) == expected
    assert 0.0 < RESERVE.validated <= RESERVE.measured < RESERVE.predicted < RESERVE.assumed < 1.0


def test_the_reserve_shrinks_as_steps_are_measured() -> None:
    """With the square root of their number, down to the operator's margin."""
    shares = [counts([measured(FAST, steps=n)])["A"].least for n in (1, 4, 100, 10_000)]
    assert counts()["A"].least == pytest.approx(0.75 * 0.98)
    assert shares == [pytest.approx(0.98 * (1 - 0.25 / sqrt(n))) for n in (1, 4, 100, 10_000)]


@given(st.floats(0.0, 0.25), st.floats(0.0, Z), st.floats(0.0, Z), st.integers(1, 100_000))
def test_inside_the_reserve_nobody_is_slower_than_counted_on_nor_faster_than_thought(
    error: float, then: float, now: float, steps: int
) -> None:
    """Measured at one hour and looked at in another; what was counted on before still is."""
    does = (1.0 - error) * (1.0 - now)
    one = counts([measured(FAST, (1.0 - error) * (1.0 - then), steps)])["A"]
    assert counts()["A"].least - 1e-9 <= one.least <= does + 1e-9
    assert one.most >= does - 1e-9
    assert counts()["A"].most >= 1.0 / (1.0 - 0.25)


def test_below_the_reserve_what_is_measured_counts_and_what_is_not_is_taken_for_as_slow() -> None:
    """A point that was measured itself is not."""
    seen = (measured(OTHER, 0.5), measured(FAST))
    found = counts(seen, here="X", now=550.0)
    assert found["X"].least == 0.5
    assert found["A"].least == pytest.approx(0.98, abs=0.003)
    assert found["S"].least == 0.5
    assert counts(seen[:1], here="X", now=550.0)["A"].least == 0.5


def test_a_machine_that_got_slower_is_slower_at_every_point() -> None:
    """It did 1000 here and does 700 now: what another point did once, it hardly does today."""
    seen = (measured(FAST), measured(OTHER))
    fallen = counts(seen, here="A", now=700.0)
    assert fallen["A"].least == pytest.approx(0.7, rel=0.03)
    assert fallen["X"].least < 0.72
    assert counts(seen, here="A", now=985.0)["X"].least == counts(seen)["X"].least


def test_a_higher_clock_is_counted_at_no_less_than_a_lower_one() -> None:
    """Though only the lower one was measured."""
    found = counts([measured(SLOW)])
    assert found["A"].least * 1000.0 == pytest.approx(found["S"].least * 850.0)
    assert found["X"].least == pytest.approx(0.75 * 0.98)


def test_another_layout_of_equal_degrees_is_no_lower_clock() -> None:
    """What it does with recomputation says nothing of what it does without."""
    again = replace(SLOW, id="R", layout=replace(SLOW.layout, recompute=True))
    points = (FAST, again)
    found = counted(
        points, [measured(again)], reserve=RESERVE, margin=Z, here="", now_tokens_per_s=None
    )
    assert found["A"].least == pytest.approx(0.75 * 0.98)


def looked_at(*marks: tuple[float, float, int], point_id: str = "A") -> SpeedWatch:
    """A run that is looked at: (seconds, tokens, step)."""
    found = SpeedWatch()
    for at_s, tokens, step in marks:
        found = watch(
            found,
            point=point_id,
            at_s=at_s,
            tokens=tokens,
            step=step,
            least_steps=10,
            margin=Z,
        )
    return found


def test_a_stretch_is_measured_after_an_interval_and_whenever_it_is_twice_as_long() -> None:
    """From its begin; in between nothing is new."""
    assert looked_at((0, 0, 0), (9, 9e3, 9)).speeds == ()
    assert looked_at((0, 0, 0), (10, 9e3, 10)).speeds == (
        MeasuredSpeed(point="A", tokens_per_s=900.0, steps=10),
    )
    before = looked_at((0, 0, 0), (10, 9e3, 10))
    assert looked_at((0, 0, 0), (10, 9e3, 10), (19, 19e3, 19)) == before
    assert looked_at((0, 0, 0), (10, 9e3, 10), (20, 19e3, 20)).speeds[0].tokens_per_s == 950.0


def test_the_best_mean_is_kept_unless_speed_fell_by_more_than_the_margin() -> None:
    """Hours differ by the margin; a machine that got slower is another matter."""
    good = ((0.0, 0.0, 0), (1000.0, 1e6, 1000))
    slightly = looked_at(*good, (2000.0, 1.985e6, 2000))
    assert slightly.speeds[0].tokens_per_s == 1000.0
    slower = looked_at(*good, (2000.0, 1.9e6, 2000))
    assert slower.speeds[0].tokens_per_s == 950.0


def test_a_clock_that_was_stepped_back_and_tokens_that_were_lost_begin_a_stretch_anew() -> None:
    """Nothing is measured across either."""
    assert looked_at((100, 0, 0), (50, 1e5, 100)).speeds == ()
    assert looked_at((0, 1e6, 1000), (100, 5e5, 500)).speeds == ()


def test_a_day_is_the_longest_stretch() -> None:
    """So that what changes by and by is seen."""
    found = looked_at((0, 0, 0), (86_400.0, 86.4e6, 86_400))
    assert found.stay is not None
    assert (found.stay.at_s, found.stay.noted) == (86_400.0, 0)


def guard_of(view: RunView) -> Guard:
    """Its guard."""
    found = examine(observation(view), view).guard
    assert found is not None
    return found


def said(view: RunView) -> Decision:
    """What is decided about it."""
    (decision,) = decide(observation(view))
    return decision


FASTER = point("X", 2, 1100.0, 900.0)
JOB = catalogue(A, FASTER)


def at(here: OperatingPoint, share: float, hours: float) -> RunView:
    """A run with 10 h of work at A left, at a point that was measured at a share of its speed."""
    return run(
        catalogue=JOB,
        current=here,
        layout=here.layout,
        deadline=NOW + hours * HOUR,
        tokens_per_s=share * here.tokens_per_s,
        speeds=(measured(A), measured(here, share)) if here is not A else (measured(A),),
    )


def test_it_goes_back_to_the_point_that_was_measured_when_another_is_confirmed_slower() -> None:
    """X is 10 % faster in the catalogue and does 0.7 of that; A was measured before."""
    slow = at(FASTER, 0.7, 10.27)
    assert guard_of(slow).fastest.id == "A"
    decision = said(slow)
    assert (decision.action, decision.kind, decision.target) == (Action.SWITCH, "deadline", "A")
    assert said(at(FASTER, 1.0, 10.27)).kind != "deadline"


def test_before_its_speed_is_measured_a_run_is_not_touched_where_only_measuring_can_tell() -> None:
    """A quarter of its speed is not counted on yet, and the sentence says so."""
    young = replace(run(catalogue=JOB), speeds=(), tokens_per_s=None)
    tight = replace(young, deadline=NOW + 12 * HOUR)
    decision = said(tight)
    assert (decision.action, decision.kind) == (Action.HOLD, "speed_unmeasured")
    assert "25 % of its speed is kept in reserve until more steps are measured" in decision.reason
    assert said(replace(tight, speeds=(measured(A),))).kind not in ("speed_unmeasured", "deadline")


def test_a_hopeless_run_goes_only_where_it_is_sure_to_be_sooner() -> None:
    """At B for certain too late: A is sure to be faster; a point 10 % faster than A is not."""
    late = run(
        catalogue=catalogue(A, B),
        current=B,
        layout=B.layout,
        speeds=(measured(B),),
        deadline=NOW + 11 * HOUR,
    )
    assert said(late).target == "A"
    hopeless = replace(at(A, 1.0, 9.0), catalogue=JOB)
    decision = said(hopeless)
    assert (decision.action, decision.kind) == (Action.HOLD, "deadline")
    assert "no switch is sure to make it faster" in decision.reason
