"""The plan of a power cap, beside every combination of clocks and the lowest limits there are."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.builders.observations import NOW, measured, observation, run
from tests.builders.points import catalogue as made
from tests.builders.points import point
from wattmesh.policies.powercap.capped import loads, under
from wattmesh.policies.powercap.powercap import Capping, GpuPowerLimits, cap
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.slowing import MARGIN, Load, draw_w, levels, needs_w
from wattmesh.reconfig.catalogue import Evidence

FAST = point("F", 2, 1000.0, 1200.0, clock_mhz=1980)
MIDDLE = point("M", 2, 900.0, 900.0, clock_mhz=1600)
SLOW = point("S", 2, 700.0, 600.0, clock_mhz=1200)
ALIKE = (FAST, MIDDLE, SLOW)

Planner = Callable[[float, Sequence[GpuPowerLimits], Sequence[Load]], Capping]


def board(name: str, **changes: Any) -> GpuPowerLimits:
    """A board of 700 W that can be limited to 250 W."""
    facts: dict[str, Any] = {"gpu_uuid": name, "limit_w": 700.0, "floor_w": 250.0}
    return GpuPowerLimits(**facts | changes)


def load(name: str, *gpus: str, late: bool = False) -> Load:
    """A run at F on these boards; `late`: anything slower misses its deadline."""
    able = [each.id for each in ALIKE if not late or each is FAST]
    return Load(run=name, gpus=gpus, levels=levels(FAST, ALIKE, able))


def lowest_w(boards: Sequence[GpuPowerLimits], runs: Sequence[Load]) -> float:
    """The lowest bound there is, by trying every clock of every run with every limit at its floor.

    Told from the words of the rule, not from the code: a lowered board counts at its floor, or at
    the draw of a locked clock where that is lower; one that does not obey counts in full.
    """
    largest = untold_w(boards, runs)
    found = []
    for chosen in product(*(each.levels or (None,) for each in runs)):
        at = {
            gpu: level
            for each, level in zip(runs, chosen, strict=True)
            if level is not None
            for gpu in each.gpus
        }
        total = 0.0
        for each in boards:
            free = each.limit_w if each.limit_w is not None else largest
            if not each.obeys:
                total += free
                continue
            best = min(free, each.floor_w) if each.floor_w is not None else free
            if each.gpu_uuid in at:
                where = at[each.gpu_uuid].point
                if where.clock_mhz is not None and where.evidence is not Evidence.ASSUMED:
                    best = min(best, where.power_w / where.gpus * (1 + MARGIN))
            total += best
        found.append(total)
    return min(found)


def kept(
    planner: Planner, cap_w: float, boards: Sequence[GpuPowerLimits], runs: Sequence[Load]
) -> bool:
    """Whether a plan holds to the rule: kept where it can be, told where not, floors respected."""
    plan = planner(cap_w, boards, runs)
    least = lowest_w(boards, runs)
    known = {each.gpu_uuid: each for each in boards}
    largest = untold_w(boards, runs)
    total = 0.0
    for each in boards:
        free = each.limit_w if each.limit_w is not None else largest
        lowered = plan.boards.get(each.gpu_uuid)
        bound = free
        if lowered is not None and each.obeys:
            if lowered.cap_w is not None:
                if not (each.floor_w or 0.0) <= lowered.cap_w <= free:
                    return False
                bound = lowered.cap_w
            if lowered.clock_mhz is not None:
                where = next(p for p in ALIKE if p.clock_mhz == lowered.clock_mhz)
                bound = min(bound, (draw_w(where) or free))
        total += bound
    assert set(plan.boards) <= set(known)
    told = not any(each.limit_w is None for each in boards) or any(each.limit_w for each in boards)
    if not told and plan.meets:
        return False  # what no limit bounds is never called kept
    if told and plan.meets != (least <= cap_w + 1e-6) and not (free_w(boards, runs) <= cap_w):
        return False
    if abs(total - plan.bound_w) > 1e-6:
        return False
    return plan.bound_w <= cap_w + 1e-6 or not plan.meets


def untold_w(boards: Sequence[GpuPowerLimits], runs: Sequence[Load]) -> float:
    """What a board without a known limit counts: the largest limit, or measured draw, there is."""
    limits = [each.limit_w for each in boards if each.limit_w]
    drawn = [each.point.power_w / each.point.gpus for run in runs for each in run.levels]
    return max([*limits, *(each * (1 + MARGIN) for each in drawn)], default=0.0)


def free_w(boards: Sequence[GpuPowerLimits], runs: Sequence[Load]) -> float:
    """What boards may draw while nobody lowers them."""
    largest = untold_w(boards, runs)
    return sum(largest if each.limit_w is None else each.limit_w for each in boards)


@st.composite
def sites(draw: st.DrawFn) -> tuple[float, list[GpuPowerLimits], list[Load]]:
    """Up to three runs on two boards each, and boards without a run; some deaf, some unknown."""
    names = [f"G{n}" for n in range(draw(st.integers(1, 8)))]
    boards = [
        board(
            name,
            limit_w=draw(st.sampled_from([700.0, 700.0, 500.0, 300.0, None])),
            floor_w=draw(st.sampled_from([250.0, 250.0, 350.0, None])),
            obeys=draw(st.sampled_from([True, True, True, False])),
        )
        for name in names
    ]
    pairs = [tuple(names[2 * n : 2 * n + 2]) for n in range(draw(st.integers(0, 3)))]
    runs = [load(f"r{n}", *pair, late=draw(st.booleans())) for n, pair in enumerate(pairs) if pair]
    return draw(st.floats(100.0, 6000.0)), boards, runs


UNTOLD = [board(f"G{n}", limit_w=None) for n in range(3)]


@settings(max_examples=200)
@example((750.0, UNTOLD, [load("r0", "G0", "G1")]))
@given(sites())
def test_the_cap_is_kept_wherever_it_can_be_and_no_floor_is_broken(
    site: tuple[float, list[GpuPowerLimits], list[Load]],
) -> None:
    """Against every combination of clocks and floors."""
    assert kept(cap, *site)


def test_the_check_finds_a_plan_that_trusts_deaf_boards() -> None:
    """A planner that takes every board's word fails where one does not obey."""

    def trusting(cap_w: float, boards: Sequence[GpuPowerLimits], runs: Sequence[Load]) -> Capping:
        return cap(cap_w, [replace(each, obeys=True) for each in boards], runs)

    site = (1000.0, [board("G0"), board("G1", obeys=False)], [load("r", "G0", "G1")])
    assert kept(cap, *site)
    assert not kept(trusting, *site)


def test_nothing_is_lowered_where_boards_cannot_draw_that_much() -> None:
    """Also not while they idle, and not when the cap is above what they may draw."""
    plan = cap(1400.0, [board("G0"), board("G1")], [load("r", "G0", "G1")])
    assert plan.meets
    assert plan.boards == {}
    assert plan.bound_w == 1400.0


def test_limits_that_cost_no_tokens_come_before_clocks() -> None:
    """Boards that train get the limit of their own point, idle ones go down; no clock moves."""
    boards = [board(f"G{n}") for n in range(4)]
    plan = cap(2000.0, boards, [load("r", "G0", "G1")])
    assert plan.bound_w == pytest.approx(2000.0)
    assert {each.clock_mhz for each in plan.boards.values()} == {None}
    assert plan.boards["G0"].cap_w == pytest.approx(600.0 * (1 + MARGIN))
    assert plan.boards["G2"].cap_w == pytest.approx((2000.0 - 1260.0) / 2)
    assert plan.points["r"] is FAST
    assert plan.price_per_w == 0.0


def test_the_next_clock_is_taken_and_no_slower_one() -> None:
    """M fits, S would too; limits back the clock up."""
    plan = cap(1000.0, [board("G0"), board("G1")], [load("r", "G0", "G1")])
    assert plan.points["r"] is MIDDLE
    for each in plan.boards.values():
        assert each.clock_mhz == 1600
        assert each.cap_w == pytest.approx(450.0 * (1 + MARGIN))
    assert plan.price_per_w > 0


@pytest.mark.parametrize("cap_w", range(600, 1400, 20))
def test_one_run_gets_the_fastest_clock_that_fits(cap_w: float) -> None:
    """Beside trying each: steps that save the most for a watt may go further than is asked."""
    crooked = (
        FAST,
        point("M", 2, 890.0, 1000.0, clock_mhz=1600),
        point("N", 2, 885.0, 900.0, clock_mhz=1500),
        SLOW,
    )
    able = [each.id for each in crooked]
    one = Load(run="r", gpus=("G0", "G1"), levels=levels(FAST, crooked, able))
    plan = cap(cap_w, [board("G0"), board("G1")], [one])
    fits = [each for each in crooked if min(needs_w(each), 1400.0) <= cap_w]
    best = max(fits, key=lambda each: each.tokens_per_s, default=SLOW)
    assert plan.points["r"].id == best.id
    assert plan.meets


def test_of_two_runs_the_one_that_would_be_late_keeps_its_clock() -> None:
    """A cap outranks a deadline, but not where somebody else can make room."""
    boards = [board(f"G{n}") for n in range(4)]
    runs = [load("a", "G0", "G1", late=True), load("b", "G2", "G3")]
    plan = cap(2000.0, boards, runs)
    assert plan.meets
    assert plan.points["a"] is FAST
    assert plan.points["b"] is not FAST
    both = cap(1400.0, boards, runs)
    assert both.points["a"] is not FAST


def test_below_the_slowest_clock_limits_go_down_to_their_floor_and_no_further() -> None:
    """The lowest that can be reached is told."""
    boards, runs = [board("G0"), board("G1")], [load("r", "G0", "G1")]
    tight = cap(550.0, boards, runs)
    assert tight.meets
    assert tight.points["r"] is SLOW
    assert [each.cap_w for each in tight.boards.values()] == [pytest.approx(275.0)] * 2
    over = cap(300.0, boards, runs)
    assert not over.meets
    assert over.bound_w == over.lowest_w == 500.0


def test_a_board_of_which_nothing_is_known_counts_like_the_largest() -> None:
    """Unknown is never zero."""
    plan = cap(900.0, [board("G0"), board("G1", limit_w=None, floor_w=None, obeys=False)], [])
    assert not plan.meets
    assert plan.untold == ("G1",)
    assert plan.bound_w == 250.0 + 700.0


def mute_pair(limits: Sequence[float | None]) -> tuple[list[GpuPowerLimits], list[Load]]:
    """Two runs on two boards each, measured at 630 W a board with the margin."""
    boards = [board(f"G{n}", limit_w=each, floor_w=None) for n, each in enumerate(limits)]
    return boards, [load("r", "G0", "G1"), load("q", "G2", "G3")]


def leaves_others_theirs(plan: Capping) -> bool:
    """Whether a run that takes its whole room leaves the others what they are held at."""
    needs = {run: needs_w(held) for run, held in plan.points.items()}
    others_w = {run: sum(needs.values()) - needs[run] for run in needs}
    return all(plan.room_w[run] + others_w[run] <= plan.cap_w + 1e-6 for run in needs)


def test_where_no_limit_is_known_measured_draw_counts_and_runs_are_slowed() -> None:
    """Four boards of 630 W under 1.3 kW. A twin that counts them as 0 W gives each run all."""
    boards, runs = mute_pair([None] * 4)
    plan = cap(1300.0, boards, runs)
    assert not plan.meets
    assert {each.clock_mhz for each in plan.boards.values()} == {1200}
    assert leaves_others_theirs(plan)
    assert not leaves_others_theirs(replace(plan, room_w=dict.fromkeys(plan.room_w, plan.cap_w)))


def test_no_cap_is_called_kept_against_what_was_measured() -> None:
    """One board tells 300 W, the others nothing: they are measured to draw more than it may."""
    plan = cap(1300.0, *mute_pair([300.0, None, None, None]))
    assert plan.meets
    assert {each.clock_mhz for each in plan.boards.values()} == {1200}
    assert plan.bound_w == pytest.approx(300.0 + 3 * 315.0)
    assert not cap(1240.0, *mute_pair([300.0, None, None, None])).meets


@pytest.mark.parametrize("cap_w", [1.0, 1e6])
def test_where_no_limit_is_known_no_cap_is_kept(cap_w: float) -> None:
    """The bound is not known either, however high the cap; without any board it is 0."""
    mute = [board(f"G{n}", limit_w=None, floor_w=None) for n in range(2)]
    for runs in ([], [load("r", "G0")]):
        plan = cap(cap_w, mute, runs)
        assert not plan.bound_known
        assert not plan.meets
        assert plan.untold == ("G0", "G1")
    assert cap(cap_w, [], []).meets


def test_an_assumed_draw_bounds_nothing() -> None:
    """Only measured points are levels; the others are held by limits."""
    guessed = [replace(each, evidence=Evidence.ASSUMED) for each in ALIKE]
    runs = [Load(run="r", gpus=("G0",), levels=levels(guessed[0], guessed, ["F"]))]
    plan = cap(600.0, [board("G0")], runs)
    assert plan.boards["G0"].cap_w == pytest.approx(600.0)
    assert plan.boards["G0"].clock_mhz is None


CATALOGUE = made(FAST, MIDDLE, SLOW)


def seen_under(cap_w: float, **changes: Any) -> Any:
    """A run on four boards' room, at F, as a cycle sees it under a cap."""
    one = run(
        catalogue=CATALOGUE, current=FAST, world_size=2, gpus_held=2, clock_trouble="", **changes
    )
    seen = observation(one)
    runs = loads(seen, {one.run: ("G0", "G1")})
    plan = cap(cap_w, [board("G0"), board("G1")], runs)
    return under(seen, plan, NOW + timedelta(hours=4))


def test_a_capped_run_is_seen_where_it_is_held_and_no_sentence_hides_it() -> None:
    """Guard, plan and sentence reckon with the clock that the boards have."""
    seen = seen_under(1000.0)
    assert seen.runs[0].current is MIDDLE
    decision = decide(seen)[0]
    assert decision.current == "M"
    assert "power cap of 1 kW until 18:00 UTC holds it at M instead of F" in decision.reason


def test_no_decision_goes_above_the_cap_even_for_the_deadline() -> None:
    """An operator's cap outranks the deadline, an order and grams; each is said so."""
    seen = seen_under(1000.0, deadline=NOW + timedelta(hours=10, minutes=10))
    capped = replace(seen.runs[0], speeds=(measured(MIDDLE),))
    late = decide(replace(seen, runs=(capped,)))[0]
    assert late.target == "M"
    assert late.kind == "deadline"
    assert "power cap" in late.reason
    refused = decide(seen_under(1000.0, ordered_point="F"))[0]
    assert refused.kind == "order_refused"
    assert refused.target == "M"
    assert needs_w(FAST) > 1000.0


def test_without_the_cap_the_same_run_goes_to_the_fastest_for_its_deadline() -> None:
    """The twin: it is the cap that holds it, and nothing else."""
    one = run(
        catalogue=CATALOGUE,
        current=MIDDLE,
        world_size=2,
        gpus_held=2,
        clock_trouble="",
        deadline=NOW + timedelta(hours=10, minutes=10),
    )
    decision = decide(observation(one))[0]
    assert (decision.kind, decision.target) == ("deadline", "F")
