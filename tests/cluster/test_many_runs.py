"""The joint plan of many runs: within the limits, in time, and never below its certified bound."""

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.builders.capped_runs import FAST_W, SLOW_W, announced_to, sharing
from tests.builders.observations import NOW
from wattmesh.controller.planner.wire import JointRequest, read_joint_request, to_line
from wattmesh.policies.cluster import many_runs
from wattmesh.policies.cluster.joint_question import (
    JointAnswer,
    JointMenu,
    JointQuestion,
    JointRun,
    joint_question,
    rooms,
)
from wattmesh.policies.cluster.many_runs import answered_together
from wattmesh.policies.cluster.mixed_runs import MixedRuns, mixed_runs
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import NoPlan, Option, OptionTransition, PlanningProblem

OPTIONS = tuple(
    Option(name=name, layout="L", tokens_per_s=speed, power_w=watts, gpus=1, bound_w=watts)
    for name, speed, watts in (("fast", 10.0, 1000.0), ("slow", 6.0, 450.0), ("off", 0.0, 50.0))
)
WAY = OptionTransition(seconds=60.0, energy_j=60.0 * 600.0)
WAYS = tuple(tuple(None if i == j else WAY for j in range(3)) for i in range(3))
HOURS = 5
GRIDS = ((300.0, 100.0, 250.0, 80.0, 200.0), (200.0, 200.0, 200.0, 200.0, 200.0))


def asking(
    limit_w: float | tuple[float | None, ...],
    grid: tuple[float, ...] = GRIDS[0],
    work: tuple[float, ...] = (3.0, 2.5),
    slots: tuple[int, ...] = (5, 4),
) -> JointQuestion:
    """Ask about runs with so many hours of work at `fast` and so many hours of time."""
    limits = limit_w if isinstance(limit_w, tuple) else (limit_w,) * HOURS
    return JointQuestion(
        made_at=NOW,
        starts=tuple(NOW + timedelta(hours=n) for n in range(HOURS)),
        seconds=(3600.0,) * HOURS,
        g_per_kwh=grid,
        limit_w=limits,
        menus=(JointMenu(options=OPTIONS, transitions=WAYS),),
        runs=tuple(
            JointRun(run=f"r{n}", menu=0, start=1, tokens=36_000.0 * h, slots=k, last_s=3600.0)
            for n, (h, k) in enumerate(zip(work, slots, strict=True))
        ),
        digest="d",
    )


def best_g(asked: JointQuestion) -> float:
    """Try every path of every run: the grams of the best joint plan; infinite: there is none."""

    def paths(run: JointRun) -> Iterator[tuple[float, np.ndarray]]:
        problem = PlanningProblem(
            tokens=run.tokens,
            seconds=asked.seconds[: run.slots],
            g_per_kwh=asked.g_per_kwh[: run.slots],
            options=asked.menus[0].options,
            start=run.start,
            transitions=asked.menus[0].transitions,
        )
        for path in product(range(len(problem.options)), repeat=run.slots):
            found = evaluate(problem, path)
            if not found.legal or found.ends_s is None:
                continue
            used = np.zeros(HOURS)
            for slot, (before, now) in enumerate(zip((run.start, *path), path, strict=False)):
                if slot * 3600.0 < found.ends_s - 1e-6:
                    used[slot] = max(OPTIONS[now].needs_w, 600.0 if before != now else 0.0)
            yield found.grams, used

    limit = np.array([math.inf if each is None else each for each in asked.limit_w])
    every = [list(paths(run)) for run in asked.runs]
    return min(
        (
            sum(grams for grams, _ in combined)
            for combined in product(*every)
            if (sum(used for _, used in combined) <= limit + 1e-6).all()
        ),
        default=math.inf,
    )


def watts(asked: JointQuestion, answer: JointAnswer) -> np.ndarray:
    """Add up what the runs were given, slot by slot."""
    total = np.zeros(HOURS)
    for steps in answer.rooms.values():
        for first, until, room_w in steps:
            total[first:until] += room_w
    return total


@pytest.mark.parametrize("limit_w", [2000.0, 1500.0, 1450.0, (2000.0, 1050.0, None, 1500.0, 900.0)])
@pytest.mark.parametrize("grid", GRIDS)
def test_no_joint_plan_of_all_is_below_the_bound(
    limit_w: float | tuple[float | None, ...], grid: tuple[float, ...]
) -> None:
    """And the plan is at least as dear as the best of all, found by trying every one."""
    asked = asking(limit_w, grid)
    best, answer = best_g(asked), answered_together(asked)
    assert isinstance(answer, JointAnswer), answer
    assert answer.bound_g <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= answer.grams <= best * 1.15
    for slot, limit in enumerate(asked.limit_w):
        assert limit is None or watts(asked, answer)[slot] <= limit + 1e-3


@pytest.mark.parametrize("work", [(0.3, 0.2), (1.1, 2.05), (3.3, 0.1)])
def test_work_that_ends_early_in_a_slot_is_bounded_by_what_it_takes(
    work: tuple[float, float],
) -> None:
    """Also where a run cannot pause: it is gone once it is done, not at the end of the slot."""
    always = JointMenu(options=OPTIONS[:2], transitions=tuple(row[:2] for row in WAYS[:2]))
    asked = replace(asking(1500.0, work=work), menus=(always,))
    best, answer = best_g(asked), answered_together(asked)
    assert isinstance(answer, JointAnswer), answer
    assert answer.grams >= best * (1 - 1e-9)
    assert mixed_runs(*_laid(asked)).bound_g <= best * (1 + 1e-9)


def test_the_bound_of_prices_that_are_not_paid_for_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sabotaged twin: what all there is costs has to be taken off."""
    asked = asking(1450.0)

    def unpaid(*args: Any, **options: Any) -> MixedRuns:
        found = mixed_runs(*args, **options)
        return replace(found, bound_g=found.bound_g + float(np.sum(found.prices * args[1])))

    monkeypatch.setattr(many_runs, "mixed_runs", unpaid)
    answer = answered_together(asked)
    assert isinstance(answer, JointAnswer)
    assert answer.bound_g == answer.grams  # more than the best: cut to the plan's own
    assert unpaid(*_laid(asked)).bound_g > best_g(asked)


def _laid(asked: JointQuestion) -> tuple[Any, ...]:
    shares = many_runs._shares(asked)
    return shares, many_runs._limit(asked, shares), asked.seconds, asked.g_per_kwh


@pytest.mark.parametrize(
    ("limit_w", "work"),
    [
        ((900.0, 1000.0, 0.0, 100.0, 1e9), (0.01, 1.0)),
        ((2000.0, 900.0, 450.0, 500.0, 2000.0), (0.5, 0.5)),
        ((900.0, 900.0, 500.0, None, 900.0), (0.5, 0.5)),
        ((1450.0, 1450.0, 50.0, 1e9, 50.0), (0.5, 0.01)),
    ],
)
def test_rooms_after_the_work_fit_a_cap_that_falls(
    limit_w: tuple[float | None, ...], work: tuple[float, float]
) -> None:
    """What a run has in case it is late is what the plans of all leave; no watt is given twice."""
    asked = asking(limit_w, work=work, slots=(5, 4))
    answer = answered_together(asked)
    assert isinstance(answer, JointAnswer)
    limit = np.array([math.inf if each is None else each for each in limit_w])
    assert (watts(asked, answer) <= limit + 1e-3).all()
    # The sabotaged twin: each goes on at its last point, as they did.
    last = {run: max(w for _, _, w in steps[:1]) for run, steps in answer.rooms.items()}
    going_on = tuple((0, run.slots, last[run.run]) for run in asked.runs)
    twin = replace(answer, rooms={r.run: (g,) for r, g in zip(asked.runs, going_on, strict=True)})
    assert not (watts(asked, twin) <= limit + 1e-3).all()


def test_where_there_is_no_room_there_is_a_sentence() -> None:
    """A cap below what the work needs, below idle, and of nothing at all."""
    for limit_w in (700.0, 60.0, 0.0, -5.0):
        answer = answered_together(asking(limit_w))
        assert isinstance(answer, NoPlan)
        assert "r0" in answer.reason or "r1" in answer.reason


def test_a_search_that_has_no_time_says_so_and_one_that_is_stopped_keeps_its_bound() -> None:
    """The prices get 30 % of the time, plans 70 %; the runs left over stay at one point."""
    none = answered_together(asking(1200.0), lambda _: False)
    assert none == NoPlan(reason="no time was left for a joint plan")
    hurried = answered_together(asking(2000.0), lambda _: False)
    assert isinstance(hurried, JointAnswer)
    assert hurried.stopped
    assert {room_w for each in hurried.rooms.values() for _, _, room_w in each} <= {450.0, 1000.0}
    assert hurried.bound_g <= best_g(asking(2000.0)) <= hurried.grams
    assert (watts(asking(2000.0), hurried) <= 2000.0).all()
    calls = iter(range(10_000))
    stopped = answered_together(asking(1450.0), lambda share: share > 0.3 and next(calls) < 2)
    assert isinstance(stopped, JointAnswer)
    assert stopped.stopped
    assert stopped.bound_g <= best_g(asking(1450.0)) <= stopped.grams + 1e-9


def test_what_is_asked_is_read_as_it_was_written() -> None:
    """Slots without a cap too; the same observation gives the same question."""
    asked = joint_question(sharing(3, 3 * FAST_W - 1))
    assert asked is not None
    assert read_joint_request(to_line(JointRequest(joint=asked, solve_s=1.0))).joint == asked
    assert joint_question(sharing(3, 3 * FAST_W - 1)) == asked
    assert (len(asked.menus), len(asked.runs)) == (1, 3)
    assert joint_question(sharing(3, 3 * FAST_W - 2)) != asked


def test_nothing_is_asked_where_nothing_is_shared() -> None:
    """No cap, a cap that is not known to be kept, one run, none, none that can be planned."""
    seen = sharing(3, 4000.0)
    assert seen.cap is not None
    late = sharing(3, 4000.0, deadline=NOW - timedelta(hours=1))
    for each in (
        sharing(3, None),
        replace(seen, cap=replace(seen.cap, runs_w=None)),
        sharing(1, 4000.0),
        sharing(0, 4000.0),
        sharing(3, 4000.0, catalogue=None, current=None),
        late,
    ):
        assert joint_question(each) is None


def test_a_run_that_cannot_be_planned_keeps_its_room() -> None:
    """It is taken off what the others share, in a cap in force and in one that is announced."""
    seen = sharing(3, 4000.0)
    bare = replace(seen.runs[0], catalogue=None, current=None, room_w=1500.0)
    asked = joint_question(replace(seen, runs=(bare, *seen.runs[1:])))
    assert asked is not None
    assert {*asked.limit_w} == {2500.0}
    ahead = announced_to(replace(seen, runs=(bare, *seen.runs[1:])), 4000.0, 1200.0)
    asked = joint_question(ahead)
    assert asked is not None
    assert {*asked.limit_w} == {None, 2800.0}


def test_what_no_run_uses_is_kept_once_for_all_runs_that_are_left_out() -> None:
    """Each of them could take it, and not all of them: the others still share the rest."""
    used_w, unused_w = (800.0, 900.0, 1000.0, 600.0, 600.0), 500.0
    runs_w = sum(used_w) + unused_w
    seen = sharing(5, runs_w)
    rooms_w = [each + unused_w for each in used_w]
    bare = [replace(each, catalogue=None, current=None) for each in seen.runs]
    for left_out in range(4):
        mixed = (*bare[:left_out], *seen.runs[left_out:])
        runs = [replace(each, room_w=w) for each, w in zip(mixed, rooms_w, strict=True)]
        asked = joint_question(replace(seen, runs=tuple(runs)))
        assert asked is not None
        kept_w = sum(used_w[:left_out]) + (unused_w if left_out else 0.0)
        assert [*{*asked.limit_w}] == [pytest.approx(runs_w - kept_w)]


def test_rooms_are_given_by_time_where_a_cap_holds() -> None:
    """One run trains fast while the other is slow: more than each alone would be left."""
    asked = joint_question(announced_to(sharing(2, 0.0), FAST_W + SLOW_W, (FAST_W + SLOW_W) / 2))
    assert asked is not None
    answer = answered_together(asked)
    assert isinstance(answer, JointAnswer)
    found = rooms(asked, answer)
    assert {step.room_w for each in found.values() for step in each} == {FAST_W, SLOW_W}
    for each in found.values():
        assert each[0].start == NOW + timedelta(hours=6)
        assert each[-1].until <= NOW + timedelta(hours=10)
