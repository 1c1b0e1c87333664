"""Whatever one run's numbers are, thinking ends; the run is held, and its neighbour is not."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.cycles import think
from tests.builders.observations import NOW, PAIR, A, B, observation, run, slots
from wattmesh.controller.cycle.plans import NoPlans
from wattmesh.policies.decision import (
    Action,
    BudgetLeft,
    Observation,
    PlanStep,
    PlanView,
    PolicySettings,
    RunView,
    SwitchView,
)
from wattmesh.policies.isolation import UNDECIDABLE
from wattmesh.policies.rules import decide as decide_module
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.speed import MeasuredSpeed

WHOLE = st.sampled_from([0, 1, 7, 10**6, 10**12, 2**31 - 1, 2**62, 2**63 - 1, -1, -(2**63)])
REAL = st.sampled_from(
    [0.0, 1.0, -1.0, 1e-308, 5e-324, 1e12, 1e18, 1e300, -1e300, math.inf, -math.inf, math.nan]
)
MAYBE = st.none() | REAL
MOMENTS = st.sampled_from(
    [
        NOW,
        NOW + timedelta(hours=14),
        NOW - timedelta(days=400),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ]
)
HEALTHY = run(run="healthy", name="healthy")


@st.composite
def absurd(draw: st.DrawFn) -> RunView:
    """A run with a few extreme values, all of the right type."""
    changes: dict[str, st.SearchStrategy[Any]] = {
        "step": WHOLE,
        "tokens": WHOLE,
        "tokens_total": WHOLE,
        "world_size": WHOLE,
        "gpus_held": WHOLE,
        "boundary_every": WHOLE,
        "failed_switches": WHOLE,
        "switches_today": WHOLE,
        "tokens_per_s": MAYBE,
        "outage_share": REAL,
        "since_clock_s": MAYBE,
        "since_switch_s": MAYBE,
        "suspended_s": MAYBE,
        "switch_energy_j": MAYBE,
        "room_w": MAYBE,
        "deadline": st.none() | MOMENTS,
        "started_at": MOMENTS,
        "current": st.sampled_from([A, B, None]),
        "catalogue": st.sampled_from([PAIR, None]),
        "ordered_point": st.sampled_from(["A", "B", "zz"]),
        "frozen": st.sampled_from(["", "\x1b[31m\u202e"]),
        "trained": st.lists(st.tuples(REAL, WHOLE), max_size=3).map(tuple),
        "budget": st.builds(BudgetLeft, left_g=REAL, unpriced_j=REAL, until=MOMENTS),
        "open_switch": st.builds(SwitchView, target=st.just("B"), state=st.just("x"), age_s=REAL),
        "speeds": st.lists(
            st.builds(
                MeasuredSpeed,
                point=st.sampled_from(["A", "B"]),
                tokens_per_s=REAL,
                steps=WHOLE,
            ),
            max_size=2,
        ).map(tuple),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(changes)), min_size=1, max_size=5, unique=True))
    return run(run="absurd", name="absurd", **{name: draw(changes[name]) for name in chosen})


class AbsurdPlans(NoPlans):
    """Gives a plan of extreme numbers to the absurd run, or fails as it is asked for one."""

    def __init__(self, number: float, *, fails: bool) -> None:
        """Take the number of every figure."""
        self._number, self._fails = number, fails

    def newest(self, seen: Observation, run: RunView) -> PlanView | None:
        """Give the plan."""
        if run.run != "absurd":
            return None
        if self._fails:
            raise OverflowError("no such date")
        step = PlanStep(start=NOW, end=NOW + timedelta(hours=1), point="B")
        return PlanView(
            made_at=NOW,
            digest="d",
            origin="A",
            steps=(step,),
            price_mu=self._number,
            grams=self._number,
            bound_g=self._number,
            gap=self._number,
        )


@settings(max_examples=400)
@given(absurd(), REAL, st.booleans(), st.sampled_from([0.0, 0.5]), REAL)
def test_thinking_ends_whatever_one_run_is(
    bad: RunView, number: float, fails: bool, sla: float, intensity: float
) -> None:
    """Every live run gets one decision, and the healthy one the same as if it were alone."""
    policy = PolicySettings(sla_throughput_share=sla)
    grid = slots([300.0, abs(intensity)] + [100.0] * 7)
    seen = observation(bad, HEALTHY, policy=policy, grid=grid)
    _, decisions = think(seen, AbsurdPlans(number, fails=fails))
    by_run = {each.run: each for each in decisions}
    finished = 0 < bad.tokens_total <= bad.tokens
    assert ("absurd" in by_run) is not finished
    _, (alone,) = think(replace(seen, runs=(HEALTHY,)), NoPlans())
    assert by_run["healthy"] == alone
    for each in decisions:
        assert each.reason
        if each.kind == UNDECIDABLE:
            assert each.action is Action.HOLD


NEVER = {"boundary_every": 2**63 - 1}
SOME_DAY = {"deadline": datetime.max.replace(tzinfo=UTC)}


@pytest.mark.parametrize("changes", [NEVER, SOME_DAY])
def test_a_run_nothing_can_be_decided_about_is_held_and_its_neighbour_is_not(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told what to check; its twin: rules that are asked without isolation stop everybody."""
    seen = observation(run(**changes), HEALTHY)
    held, healthy = decide(seen)
    assert healthy == decide(observation(HEALTHY))[0]
    assert (held.action, held.kind) == (Action.HOLD, UNDECIDABLE)
    assert "OverflowError in " in held.reason
    assert "steps between its saves" in held.reason
    monkeypatch.setattr(decide_module, "_alone", decide_module._decide_run)
    with pytest.raises(OverflowError):
        decide(seen)
