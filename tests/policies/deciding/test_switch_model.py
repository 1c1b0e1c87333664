"""What switches are predicted to take: the fit, odd histories, and what a plan and a guard do."""

import math
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.builders.observations import NOW, A, B, observation, run
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import RunView
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.run_context import examine
from wattmesh.policies.switch_model import (
    FEWEST,
    MeasuredSpend,
    SwitchForecast,
    SwitchShape,
    fit,
    forecast,
)
from wattmesh.policies.switch_time import (
    FEW,
    StallBasis,
    SwitchKind,
    SwitchRecord,
    SwitchTimes,
    forecast_of,
)
from wattmesh.reconfig.catalogue import PairCost, SwitchCost, SwitchSpend
from wattmesh.reconfig.layout import Layout

LAYOUTS = {
    "A": Layout(dp_shard=4),
    "B": Layout(dp_shard=2),
    "C": Layout(dp_shard=2, tp=2),
    "D": Layout(dp_shard=8),
}
GB = 1_000_000_000


def spend(
    origin: str, target: str, size: int = GB, factor: float = 1.0, seed: int = 0
) -> SwitchSpend:
    """A switch of a machine whose phases are known, each within some 5 %."""
    before, after, gigabytes = LAYOUTS[origin].world_size, LAYOUTS[target].world_size, size / GB
    chance = random.Random(f"{origin} {target} {size} {seed}")

    def took(seconds: float) -> float:
        return seconds * factor * math.exp(chance.gauss(0.0, 0.05))

    return SwitchSpend(
        origin=origin,
        target=target,
        state_bytes=size,
        save_s=took(0.02 + 0.01 * before + 0.5 * gigabytes),
        teardown_s=took(0.05 + 0.01 * before),
        groups_s=took(0.01 * max(before, after)),
        build_s=took(0.1 + 0.02 * after + 0.2 * gigabytes),
        load_s=took(0.01 + 0.2 * gigabytes),
        verify_s=took(0.05 + 0.7 * gigabytes),
        agree_s=took(0.01 + 0.005 * after),
        first_s=took(0.2 + gigabytes),
    )


def truth_s(origin: str, target: str, size: int = GB) -> float:
    """What such a switch takes in the middle."""
    before, after, gigabytes = LAYOUTS[origin].world_size, LAYOUTS[target].world_size, size / GB
    fixed = 0.44 + 0.02 * before + 0.025 * after + 0.01 * max(before, after)
    return fixed + 2.6 * gigabytes


PAIRS = (("A", "B"), ("B", "C"), ("C", "A"), ("B", "A"))
OWN = tuple(spend(*pair, seed=seed) for pair in PAIRS for seed in range(2))
"""Eight switches of one job, between two numbers of ranks."""


def learned(*spends: SwitchSpend) -> SwitchForecast:
    """What a run's own switches teach."""
    found = forecast(LAYOUTS, spends, ())
    assert found is not None
    return found


def seconds(found: SwitchForecast, origin: str = "A", target: str = "C") -> float:
    """The predicted stall."""
    prediction = found.between(origin, target)
    assert prediction is not None
    return prediction.seconds


def test_a_pair_that_was_never_made_is_predicted_from_others() -> None:
    """Within its band, which is narrow, and the phases add up to it."""
    found = learned(*OWN).between("A", "C")
    assert found is not None
    assert found.low_s <= truth_s("A", "C") <= found.high_s
    assert found.seconds == pytest.approx(truth_s("A", "C"), rel=0.1)
    assert found.seconds == pytest.approx(sum(each for _, each in found.phases))
    assert found.sure
    assert found.samples == len(OWN)


def test_held_out_sizes_and_ranks_are_predicted() -> None:
    """Each size from the others, over three orders of magnitude; each number of ranks."""
    sizes = (10**7, 10**8, GB, 4 * GB)
    pairs = (("B", "B"), ("A", "A"), ("D", "D"))
    every = [(pair, size, spend(*pair, size)) for pair in pairs for size in sizes]
    for pair, size, _ in every:
        shape = SwitchShape.of(LAYOUTS[pair[0]], LAYOUTS[pair[1]], size)
        other_sizes = [each for _, at, each in every if at != size]
        other_ranks = [each for at, _, each in every if at != pair]
        for rest in (other_sizes, other_ranks):
            model = fit([_shaped(each) for each in rest])
            assert model is not None
            found = model.predict(shape)
            assert found.seconds == pytest.approx(truth_s(*pair, size), rel=0.3)
            assert found.low_s <= truth_s(*pair, size) <= found.high_s


def _shaped(each: SwitchSpend) -> MeasuredSpend:
    shape = SwitchShape.of(LAYOUTS[each.origin], LAYOUTS[each.target], each.state_bytes)
    return MeasuredSpend(shape=shape, spend=each)


@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("at", range(4))
def test_one_switch_ten_times_off_does_not_move_a_prediction(factor: float, at: int) -> None:
    """Whichever it is."""
    odd = (*OWN[:at], spend(*PAIRS[at // 2], factor=factor), *OWN[at + 1 :])
    assert seconds(learned(*odd)) == pytest.approx(seconds(learned(*OWN)), rel=0.1)


def test_a_machine_that_is_ten_times_slower_does_move_it() -> None:
    """The twin: where most are so, it is no outlier."""
    slow = tuple(spend(*pair, factor=10.0, seed=seed) for pair in PAIRS for seed in range(2))
    assert seconds(learned(*slow[:6], *OWN[:2])) > 5 * seconds(learned(*OWN))


def test_fewer_whole_switches_than_three_predict_nothing() -> None:
    """One without its first step is not whole."""
    partly = tuple(replace(each, first_s=None) for each in OWN)
    assert forecast(LAYOUTS, OWN[: FEWEST - 1], ()) is None
    assert forecast(LAYOUTS, (*OWN[: FEWEST - 1], *partly), ()) is None
    assert forecast(LAYOUTS, OWN[:FEWEST], ()) is not None
    assert forecast(LAYOUTS, (), ()) is None


@pytest.mark.parametrize("told", [(1e-300,) * 3, (1e30, 1.0, 1e6), (5e-324, 1e30, 1e30)])
def test_a_history_that_no_machine_can_have_is_no_error(told: tuple[float, ...]) -> None:
    """Of numbers that a journal or a catalogue lets in."""
    odd = [
        replace(
            each,
            save_s=took,
            teardown_s=took,
            groups_s=0.0,
            build_s=took,
            load_s=took,
            verify_s=took,
            agree_s=0.0,
            first_s=0.0,
        )
        for each, took in zip(OWN[::2], told, strict=False)
    ]
    found = learned(*odd).between("A", "C")
    assert found is not None
    assert 0 < found.low_s <= found.seconds <= found.high_s < math.inf


def test_switches_of_points_that_are_not_known_teach_nothing() -> None:
    """A catalogue was changed since."""
    gone = tuple(replace(each, target="gone") for each in OWN)
    assert forecast(LAYOUTS, gone, ()) is None
    assert learned(*OWN, *gone).between("A", "gone") is None
    assert seconds(learned(*OWN, *gone)) == seconds(learned(*OWN))


def test_where_only_one_size_was_measured_another_has_a_band_that_says_so() -> None:
    """Its bytes may explain all of the time or none; that is no figure to plan with."""
    model = learned(*OWN).model
    small = SwitchShape.of(LAYOUTS["A"], LAYOUTS["C"], GB)
    large = SwitchShape.of(LAYOUTS["A"], LAYOUTS["C"], 8 * GB)
    assert model.predict(small).sure
    found = model.predict(large)
    assert found.low_s <= model.predict(small).seconds
    assert found.high_s >= 8 * model.predict(small).seconds
    assert not found.sure


def test_the_profile_s_switches_predict_until_the_run_has_its_own() -> None:
    """Not where the run's few say that it is another machine; not failed ones."""
    profile = tuple(replace(each, cold=True) for each in OWN)
    found = forecast(LAYOUTS, (), profile)
    assert found is not None
    assert not found.own
    assert forecast(LAYOUTS, OWN[:1], profile) == found
    slow = (spend("A", "B", factor=10.0),)
    assert forecast(LAYOUTS, slow, profile) is None
    own = forecast(LAYOUTS, OWN, tuple(spend(*pair, factor=10.0) for pair in PAIRS))
    assert own is not None
    assert own.own


KNOWN = catalogue(
    *(point(name, layout, 1000.0 * layout.world_size, 100.0) for name, layout in LAYOUTS.items()),
    switch=SwitchCost(layout_s=300.0, source="measured"),
)


def record(each: SwitchSpend, **changes: object) -> SwitchRecord:
    """A switch of a run, as the journal has it."""
    total_s = sum(
        (each.save_s, each.teardown_s, each.groups_s, each.build_s, each.load_s, each.verify_s)
    )
    facts: dict[str, object] = {
        "origin": each.origin,
        "target": each.target,
        "kind": SwitchKind.IN_PLACE,
        "told_s": total_s + each.agree_s,
        "at_pace_s": total_s + each.agree_s + (each.first_s or 0.0),
        "spend": each,
    }
    return SwitchRecord(**(facts | changes))  # type: ignore[arg-type]


def times(*records: SwitchRecord, switch: SwitchCost = KNOWN.switch) -> SwitchTimes:
    """What such a run expects."""
    known = replace(KNOWN, switch=switch)
    return SwitchTimes(switch=switch, records=records, forecast=forecast_of(known, records))


A4, B2, C4 = (KNOWN.point(name) for name in "ABC")
RECORDS = tuple(map(record, OWN))


def test_a_plan_expects_what_was_measured_then_what_is_predicted_then_what_is_stated() -> None:
    """And the guard counts what it counted before, whatever is predicted."""
    found = times(*RECORDS)
    measured = times(*RECORDS, record(spend("A", "B", seed=7))).expected(A4, B2)
    assert (measured.basis, measured.times) == (StallBasis.MEASURED, FEW)
    assert measured.seconds == pytest.approx(truth_s("A", "B"), rel=0.1)
    predicted = found.expected(A4, C4)
    assert (predicted.basis, predicted.source) == (StallBasis.PREDICTED, "run")
    assert predicted.state_bytes == GB
    assert predicted.seconds == pytest.approx(truth_s("A", "C"), rel=0.1)
    stated = times().expected(A4, C4)
    assert (stated.basis, stated.seconds, stated.times) == (StallBasis.STATED, 300.0, 0)
    for way in ((A4, C4), (A4, B2), (None, A4), (B2, None)):
        assert found.seconds(*way) == replace(found, forecast=None).seconds(*way)
    assert found.seconds(A4, C4) == 300.0


def test_of_few_measurements_the_longest_counts_and_of_enough_the_middle_one() -> None:
    """So that one that took ten times as long holds nobody off for ever."""
    odd, usual = record(spend("A", "C", factor=10.0)), record(spend("A", "C", seed=1))
    few = times(odd, usual, *RECORDS).expected(A4, C4)
    assert few.seconds == odd.seconds
    enough = times(odd, usual, record(spend("A", "C", seed=2)), *RECORDS).expected(A4, C4)
    assert enough.seconds < 2 * truth_s("A", "C")
    assert enough.high_s == odd.seconds


@pytest.mark.parametrize(
    "odd",
    [{"failed": True}, {"same_machines": False}, {"kind": SwitchKind.RESTART}, {"spend": None}],
    ids=["failed", "elsewhere", "restart", "unknown"],
)
def test_what_is_no_switch_of_these_machines_in_place_teaches_nothing(
    odd: dict[str, object],
) -> None:
    """The catalogue's figure stays."""
    found = times(*(replace(each, **odd) for each in RECORDS))  # type: ignore[arg-type]
    assert found.forecast is None
    assert found.expected(A4, C4).seconds == 300.0


def test_only_switches_in_place_are_predicted() -> None:
    """A restart, sleep and a clock have phases that nobody has fitted."""
    found = times(*RECORDS)
    assert replace(found, in_place=False).expected(A4, C4).basis is StallBasis.STATED
    assert found.expected(A4, None).seconds == 300.0
    assert found.expected(None, A4).basis is StallBasis.STATED
    clock = replace(C4, id="c", clock_mhz=900)
    assert found.expected(C4, clock).seconds == 0.0


def test_the_catalogue_s_own_figure_of_a_pair_comes_before_a_prediction() -> None:
    """With how often its profile measured it."""
    pair = PairCost(origin="A", target="C", seconds=50.0, energy_j=1.0)
    stated = times(*RECORDS, switch=replace(KNOWN.switch, pairs=(pair,))).expected(A4, C4)
    assert (stated.seconds, stated.basis) == (50.0, StallBasis.STATED)
    profiled = replace(KNOWN.switch, spends=(spend("A", "C"),))
    once = times(*RECORDS, switch=profiled).expected(A4, C4)
    assert (once.basis, once.times, once.source) == (StallBasis.MEASURED, 1, "profile")


def test_the_planner_is_asked_with_predicted_seconds_and_the_guard_is_not() -> None:
    """The ways of a plan's question; with an unknown size the constant stays."""
    spends = tuple(
        replace(spend("A", "B", seed=seed), origin=origin, target=target)
        for seed, (origin, target) in enumerate((("B", "A"), ("B", "A"), ("B", "A")))
    )
    known = catalogue(A, B, switch=SwitchCost(layout_s=300.0, spends=spends))
    view: RunView = run(catalogue=known, deadline=NOW + timedelta(hours=9))
    seen = observation(view)
    asked = question(seen, view)
    assert asked is not None
    start = asked.problem.start
    away = next(each for each in asked.problem.transitions[start] if each is not None)
    assert 1.0 < away.seconds < 10.0
    context = examine(seen, view)
    assert context.guard is not None
    assert context.guard.times.seconds(A, B) == 300.0
    blind = run(catalogue=replace(known, switch=SwitchCost(layout_s=300.0)), deadline=view.deadline)
    plain = question(observation(blind), blind)
    assert plain is not None
    stated = next(each for each in plain.problem.transitions[plain.problem.start] if each)
    assert stated.seconds == 300.0
    assert stated.energy_j > away.energy_j
