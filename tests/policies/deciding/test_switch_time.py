"""What a switch is counted at: the rule, line by line, and what the decisions make of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.cycles import think
from tests.builders.observations import NOW, A, B, measured, observation, run
from tests.builders.points import catalogue
from wattmesh.controller.cycle.plans import NoPlans
from wattmesh.policies.decision import Action, PolicySettings, RunView
from wattmesh.policies.guard import Guard
from wattmesh.policies.run_context import examine
from wattmesh.policies.switch_time import (
    ENOUGH,
    QUANTILE,
    SwitchKind,
    SwitchRecord,
    SwitchTimes,
    counted_s,
)
from wattmesh.reconfig.catalogue import PairCost, SwitchCost

COLD = SwitchCost(layout_s=1800.0, clock_s=3.0)
PAIRED = replace(COLD, pairs=(PairCost(origin="A", target="B", seconds=900.0, energy_j=1.0),))


def record(told_s: float, at_pace_s: float | None = None, **changes: Any) -> SwitchRecord:
    """A switch from A to B in place, an hour ago."""
    facts: dict[str, Any] = {
        "origin": "A",
        "target": "B",
        "kind": SwitchKind.IN_PLACE,
        "told_s": told_s,
        "at_pace_s": at_pace_s,
        "ago_s": 3600.0,
    }
    return SwitchRecord(**(facts | changes))


def ab_s(switch: SwitchCost, *records: SwitchRecord) -> float:
    """What a switch from A to B in place is counted at."""
    return counted_s(switch, records, "A", "B", SwitchKind.IN_PLACE)


COMPLETE = tuple(record(5.0, 60.0 + n) for n in range(ENOUGH))
"""Just enough, of 60 to 78 s."""


def test_until_enough_complete_ones_were_measured_the_larger_of_both_holds() -> None:
    """The catalogue's cold figure, or what took longer than that."""
    assert ab_s(COLD) == 1800.0
    assert ab_s(COLD, *COMPLETE[1:]) == 1800.0
    assert ab_s(COLD, record(60.0, 2400.0), *COMPLETE[2:]) == 2400.0


def test_enough_is_the_least_number_that_bounds_the_next_one() -> None:
    """Of n alike the next exceeds the largest once in n + 1 times."""
    assert ENOUGH / (ENOUGH + 1) >= QUANTILE > (ENOUGH - 1) / ENOUGH


def test_with_enough_complete_ones_a_high_quantile_of_them_holds() -> None:
    """Of 19 the largest; of 39 the largest but one."""
    assert ab_s(COLD, *COMPLETE) == 60.0 + ENOUGH - 1
    many = tuple(record(5.0, 60.0 + n) for n in range(39))
    assert ab_s(COLD, *many) == 60.0 + 37


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (record(5.0), 1800.0),
        (record(100.0, 101.0, failed=True), 1800.0),
        (record(5.0, 60.0, same_machines=False), 1800.0),
        (record(5.0, 60.0, target="C"), 1800.0),
        (record(5.0, 60.0, origin="C"), 1800.0),
        (record(5.0, 60.0, kind=SwitchKind.RESTART), 1800.0),
        (record(5.0, 60.0), 78.0),
    ],
    ids=["incomplete", "failed", "elsewhere", "target", "origin", "kind", "complete"],
)
def test_what_is_no_complete_one_of_the_pair_does_not_count_towards_enough(
    odd: SwitchRecord, expected: float
) -> None:
    """One of the nineteen is exchanged; the last case is the twin."""
    assert ab_s(COLD, odd, *COMPLETE[1:]) == expected


def test_an_incomplete_one_raises_any_figure_and_lowers_none() -> None:
    """It took at least so long."""
    assert ab_s(COLD, record(2000.0)) == 2000.0
    assert ab_s(COLD, record(60.0)) == 1800.0
    assert ab_s(COLD, record(200.0), *COMPLETE) == 200.0
    assert ab_s(COLD, record(10.0), *COMPLETE) == ab_s(COLD, *COMPLETE)
    assert ab_s(COLD, record(5.0, 2000.0, same_machines=False)) == 2000.0


def test_a_pair_s_own_figure_survives_what_was_measured_of_others() -> None:
    """Per pair, there and back are two; unlisted ones take what holds for all."""
    back = tuple(replace(each, origin="B", target="A") for each in COMPLETE)
    assert ab_s(PAIRED, *back) == 900.0
    assert counted_s(PAIRED, back, "B", "A", SwitchKind.IN_PLACE) == 78.0
    assert counted_s(PAIRED, COMPLETE, "B", "A", SwitchKind.IN_PLACE) == 1800.0
    assert counted_s(PAIRED, (), "A", "S", SwitchKind.CLOCK) == 3.0


def test_from_nobody_knows_where_the_longest_to_the_target_counts() -> None:
    """Measured or of the catalogue."""
    assert SwitchTimes(switch=PAIRED).longest_s(B) == 1800.0
    assert SwitchTimes(switch=PAIRED, records=(record(5.0, 2500.0),)).longest_s(B) == 2500.0
    assert SwitchTimes(switch=PAIRED, records=(record(5.0, 2500.0),)).longest_s(A) == 1800.0


def test_how_a_run_switches_says_which_measurements_count() -> None:
    """In place where it can, else by restart; to and from sleep by restart."""
    times = SwitchTimes(switch=COLD, records=COMPLETE)
    assert times.seconds(A, B) == 78.0
    assert replace(times, in_place=False).seconds(A, B) == 1800.0
    assert times.kind(None, A) is times.kind(A, None) is SwitchKind.RESTART
    assert times.kind(A, replace(A, id="S", clock_mhz=900)) is SwitchKind.CLOCK


SLOW = catalogue(A, B, switch=SwitchCost(layout_s=1800.0, layout_energy_j=1e5, source="measured"))
TOLD = tuple(record(60.0, origin=one, target=other) for one, other in [("A", "B"), ("B", "A")])
"""Both ways were made, and told long before they were complete."""


def at_b(**changes: Any) -> RunView:
    """A run at B with 1.3 h more than A needs: a switch and a failed one take 1.5 h."""
    facts: dict[str, Any] = {
        "catalogue": SLOW,
        "current": B,
        "layout": B.layout,
        "speeds": (measured(A), measured(B)),
        "deadline": NOW + timedelta(hours=11.5),
        "switches": TOLD,
    }
    return run(**(facts | changes))


def guard_of(view: RunView) -> Guard:
    """Its guard."""
    found = examine(observation(view), view).guard
    assert found is not None
    return found


def test_the_guard_that_is_told_60_s_where_1800_are_needed_goes_by_1800() -> None:
    """Through the daemon's own decisions: it goes back now; told what is complete it may stay."""
    policy = PolicySettings(dwell_s=1800.0, failed_switch_s=0.0)
    warm = tuple(replace(each, at_pace_s=61.0) for each in TOLD for _ in range(ENOUGH))
    for records, kind in ((TOLD, "deadline"), (warm, "at_target")):
        seen = observation(at_b(switches=records), policy=policy)
        _, (decision,) = think(seen, NoPlans())
        assert (decision.kind == "deadline") is (kind == "deadline"), decision.reason
        if kind == "deadline":
            assert (decision.action, decision.target) == (Action.SWITCH, "A")


def test_a_switch_that_was_told_but_not_seen_to_be_complete_counts_as_standing() -> None:
    """60 s were told 100 s ago: 1640 of the 1800 may be left; none once a step was at its pace."""
    calm = guard_of(at_b()).usable_s
    told = record(60.0, ago_s=100.0)
    assert guard_of(at_b(switches=(told,))).usable_s == pytest.approx(calm - 1640.0)
    done = replace(told, at_pace_s=90.0)
    assert guard_of(at_b(switches=(done,))).usable_s == pytest.approx(calm)
    failed = replace(told, failed=True)
    assert guard_of(at_b(switches=(failed,))).usable_s == pytest.approx(calm - 3440.0)
