"""Plans for the cycle: the newest valid one, never waited for, whatever the child does."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.cycles import think
from tests.builders.observations import NOW, A, B, observation, run, slots
from tests.builders.points import catalogue, point
from tests.daemon.waiting import wait_for
from tests.planning import children
from tests.planning.children import process, wait_gone
from wattmesh.controller.cycle.plans import NoPlans
from wattmesh.controller.planner.asking import why_none
from wattmesh.controller.planner.process import PlanProcess
from wattmesh.controller.planner.worker import Patience, PlanWorker
from wattmesh.policies.decision import CarbonView, Observation, PlanView, Rung, RunView, SwitchView

NEVER_S = 3600.0
"""A rest that no test sees the end of."""


@contextmanager
def working(program: str = "", **patience: float) -> Iterator[tuple[PlanWorker, PlanProcess]]:
    """Give a worker over a planning process; both are gone afterwards."""
    with process(program) as child:
        worker = PlanWorker(child, Patience(**patience))
        try:
            yield worker, child
        finally:
            worker.stop()


def at(hours: float, *, dirty: float = 300.0, **changes: Any) -> Observation:
    """Give what a cycle sees some hours later, the same grid before it."""
    now = NOW + timedelta(hours=hours)
    grid = slots([dirty] * 7 + [100.0] * 9)
    ahead = tuple(each for each in grid if each.end > now)
    return observation(run(**changes), now=now, grid=ahead)


def newest(worker: PlanWorker, seen: Observation) -> PlanView | None:
    """Ask as the cycle does."""
    return worker.newest(seen, seen.runs[0])


def wait_plan(worker: PlanWorker, seen: Observation) -> PlanView:
    """Ask until there is a plan of just this observation."""

    def made() -> bool:
        plan = newest(worker, seen)
        return plan is not None and plan.made_at == seen.now

    wait_for(made, "a plan")
    plan = newest(worker, seen)
    assert plan is not None
    return plan


def wait_answers(worker: PlanWorker, count: int) -> None:
    """Wait until so many questions have been answered."""
    wait_for(lambda: worker.planning().answered == count, f"answer {count}")


def test_the_first_question_is_answered_and_the_newest_plan_wins() -> None:
    """The old plan is given on until the new one has come, then only the new one."""
    with working() as (worker, _):
        assert newest(worker, at(0)) is None
        first = wait_plan(worker, at(0))
        assert newest(worker, at(1)) in {first, wait_plan(worker, at(1))}
        second = wait_plan(worker, at(1))
        assert (first.made_at, second.made_at) == (NOW, NOW + timedelta(hours=1))
        assert newest(worker, at(1)) == second


def test_the_same_question_is_asked_once() -> None:
    """Cycles in which nothing has changed ask for nothing."""
    with working() as (worker, _):
        wait_plan(worker, at(0))
        for _ in range(50):
            newest(worker, at(0.1))
        assert wait_plan(worker, at(1)).made_at == NOW + timedelta(hours=1)
        assert worker.planning().answered == 2


LOCKABLE = catalogue(A, B, point("A-low", 4, 900.0, 1200.0, clock_mhz=1200))


def test_what_changes_what_is_best_asks_anew_and_keeps_the_plan() -> None:
    """A new issue, another point, time, or a clock that can be set again: the old plan stands."""
    first = at(0, catalogue=LOCKABLE)
    laters = (
        replace(first, carbon=replace(first.carbon, forecast=2)),
        at(0, catalogue=LOCKABLE, current=B, layout=B.layout),
        at(0.5, catalogue=LOCKABLE),
        at(0, catalogue=LOCKABLE, clock_trouble=""),
    )
    with working() as (worker, _):
        wait_plan(worker, first)
        for count, later in enumerate(laters, start=2):
            assert newest(worker, later) is not None
            wait_answers(worker, count)


def test_the_planner_is_told_the_plan_that_is_followed() -> None:
    """It keeps to it unless a new one is worth it; a void one it is not told."""
    program = children.CRASHES_AT.format(word='\\"made_at\\":\\"2026-11-20T14:00:00Z\\",\\"digest')
    with working(program, rest_s=NEVER_S, most_rest_s=NEVER_S) as (worker, _):
        wait_plan(worker, at(0))
        wait_plan(worker, at(0, attempt=2))
        newest(worker, at(1, attempt=2))
        wait_for(lambda: worker.planning().failed == 1, "the plan before to be told")


def test_a_plan_of_other_terms_is_not_used() -> None:
    """Another deadline, catalogue, target or incarnation: none, until one is made for them."""
    others: tuple[dict[str, Any], ...] = (
        {"deadline": NOW + timedelta(hours=12)},
        {"catalogue": catalogue(A, B, point("C", 1, 300.0, 380.0))},
        {"tokens_total": 38_000_000},
        {"attempt": 2},
        {"capabilities": ("in_place",)},
    )
    with working() as (worker, child):
        wait_plan(worker, at(0))
        assert child.pid is not None
        for count, changes in enumerate(others, start=2):
            os.kill(child.pid, signal.SIGSTOP)
            changed = at(0, **changes)
            assert newest(worker, changed) is None, changes
            os.kill(child.pid, signal.SIGCONT)
            wait_plan(worker, changed)
            assert worker.planning().answered == count


def test_an_old_plan_that_is_overtaken_while_it_is_made_is_not_used() -> None:
    """The child is stopped with a question in its hands; the answer comes after terms changed."""
    with working() as (worker, child):
        wait_plan(worker, at(0))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        newest(worker, at(1))
        wait_for(lambda: worker.planning().waiting == 0, "the question to be asked")
        changed = at(1, deadline=NOW + timedelta(hours=12))
        assert newest(worker, changed) is None
        os.kill(child.pid, signal.SIGCONT)
        assert wait_plan(worker, changed).finish_at < NOW + timedelta(hours=12)


def test_a_cycle_never_waits() -> None:
    """With a child that does not move, every ask returns at once, and deciding goes on."""
    with working(solve_s=NEVER_S) as (worker, child):
        wait_plan(worker, at(0))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        for hour in (1, 2, 3):
            seen, decisions = think(at(hour), worker)
            assert seen.runs[0].plan is not None
            assert len(decisions) == 1
        assert worker.planning().answered == 1


def test_a_stale_plan_leaves_the_decision_to_the_price_rule() -> None:
    """Two hours on without a newer plan the run is decided on as if there were none."""
    with working(solve_s=NEVER_S) as (worker, child):
        wait_plan(worker, at(0))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        _, fresh = think(at(1), worker)
        assert fresh[0].kind == "plan"
        seen, stale = think(at(3), worker)
        assert seen.runs[0].plan is not None
        assert stale == think(at(3), NoPlans())[1]
        assert fresh != think(at(1), NoPlans())[1]


def test_while_a_switch_is_under_way_nothing_is_asked() -> None:
    """Where the run will be is not known yet; the plan that ordered it stands."""
    with working() as (worker, _):
        before = wait_plan(worker, at(0))
        switch = SwitchView(target="B", state="ordered", age_s=1.0)
        assert newest(worker, at(1, open_switch=switch)) == before
        assert worker.planning().waiting == 0


def test_a_crash_costs_plans_and_no_cycle() -> None:
    """It is counted and told, the plan before stands, and after the rest it is asked again."""
    with working(rest_s=0.01, most_rest_s=0.01) as (worker, child):
        before = wait_plan(worker, at(0))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        assert newest(worker, at(1)) == before
        os.kill(child.pid, signal.SIGKILL)
        wait_for(lambda: worker.planning().failed == 1, "the failure")
        told = worker.planning()
        assert "ended with status -9" in told.trouble
        assert told.runs["r-1"].failures == 1
        assert newest(worker, at(1)) == before
        assert wait_plan(worker, at(1)).made_at == NOW + timedelta(hours=1)
        assert worker.planning().trouble == ""
        assert worker.planning().runs["r-1"].failures == 0


def test_after_a_failure_the_child_is_left_alone_for_a_while() -> None:
    """No storm of starts: within the rest nothing is asked, however often a cycle comes."""
    program = children.CRASHES_AT.format(word="tokens")
    with working(program, rest_s=NEVER_S, most_rest_s=NEVER_S) as (worker, _):
        newest(worker, at(0))
        wait_for(lambda: worker.planning().failed == 1, "the failure")
        for _ in range(50):
            newest(worker, at(1))
        told = worker.planning()
        assert (told.failed, told.waiting, told.in_a_row) == (1, 0, 1)
        assert "ended with status 7" in told.trouble


def test_one_failure_rests_the_planner_for_all_runs() -> None:
    """A child that cannot live is not started once for each of them."""
    program = children.CRASHES_AT.format(word="tokens")
    with working(program, rest_s=NEVER_S, most_rest_s=NEVER_S) as (worker, _):
        seen = replace(at(0), runs=(at(0).runs[0], run(run="r-2", name="other")))
        for each in seen.runs:
            worker.newest(seen, each)
        wait_for(lambda: worker.planning().failed, "the failure")
        told = worker.planning()
        assert (told.failed, told.waiting) == (1, 1)


def test_rests_double_to_a_limit() -> None:
    """2, 4, 8 ... seconds, ten minutes at most, none without a failure."""
    rests = [Patience().rest(each) for each in (0, 1, 2, 3, 10, 1000)]
    assert rests == [0.0, 2.0, 4.0, 8.0, 600.0, 600.0]


def test_one_run_that_kills_the_planner_takes_no_plans_from_others() -> None:
    """The bad one fails again and again; the good one has every plan."""
    bad = run(run="r-2", name="bad", tokens_total=37_012_345)
    program = children.CRASHES_AT.format(word="36012345")
    with working(program, rest_s=0.01, most_rest_s=0.05) as (worker, _):
        for hour in range(2):
            seen = replace(at(hour), runs=(bad, at(hour).runs[0]))

            def made(seen: Observation = seen) -> bool:
                plans = [worker.newest(seen, each) for each in seen.runs]
                assert plans[0] is None
                return plans[1] is not None and plans[1].made_at == seen.now

            wait_for(made, "a plan of the good run")
        assert worker.planning().runs["r-2"].failures > 0
        assert worker.planning().runs["r-1"].failures == 0


def test_an_answer_to_another_question_is_refused() -> None:
    """Sabotaged twin of all above: a plan with another digest is a failure, not a plan."""
    with working(children.ANOTHER, rest_s=NEVER_S, most_rest_s=NEVER_S) as (worker, _):
        newest(worker, at(0))
        wait_for(lambda: worker.planning().failed, "the refusal")
        assert newest(worker, at(0)) is None
        assert "another question" in worker.planning().trouble


def test_nonsense_is_refused_and_its_writer_ended() -> None:
    """What is no JSON is no plan."""
    with working(children.NONSENSE, rest_s=NEVER_S, most_rest_s=NEVER_S) as (worker, child):
        newest(worker, at(0))
        wait_for(lambda: worker.planning().failed, "the refusal")
        assert "nonsense" in worker.planning().trouble
        assert child.pid is None


def test_a_new_plan_wakes_the_cycle_once_nothing_else_waits() -> None:
    """Two runs, one call."""
    woken: list[int] = []
    with process() as child:
        worker = PlanWorker(child, wake=lambda: woken.append(worker.planning().answered))
        try:
            seen = replace(at(0), runs=(at(0).runs[0], run(run="r-2", name="other")))
            for each in seen.runs:
                worker.newest(seen, each)
            wait_for(lambda: worker.planning().answered == 2, "both plans")
            wait_for(lambda: woken, "the call")
        finally:
            worker.stop()
    assert woken[-1] == 2


def test_a_run_that_is_over_is_forgotten() -> None:
    """Neither its plan nor its question is kept."""
    with working() as (worker, _):
        wait_plan(worker, at(0))
        other = replace(at(1), runs=(run(run="r-2", name="next"),))
        wait_plan(worker, other)
        assert set(worker.planning().runs) == {"r-2"}


def test_stopping_ends_the_child_and_asks_no_more() -> None:
    """Even a child that hangs with a question."""
    with working(solve_s=NEVER_S) as (worker, child):
        wait_plan(worker, at(0))
        pid = child.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        newest(worker, at(1))
        wait_for(lambda: worker.planning().waiting == 0, "the question to be asked")
        worker.stop()
        wait_gone(pid)
        assert newest(worker, at(2)) is not None
        assert (worker.planning().waiting, worker.planning().failed) == (0, 0)


def test_numbers_that_no_plan_can_be_made_of_are_a_reason() -> None:
    """A grid that is no number: said of that run, and no failure of the planner."""
    spoilt = observation(grid=slots([100.0, float("nan"), 100.0] * 5))
    with working() as (worker, child):
        assert newest(worker, spoilt) is None
        wait_for(lambda: worker.planning().answered, "an answer")
        assert "not a number" in worker.planning().runs["r-1"].reason
        assert (worker.planning().failed, child.pid) == (0, None)


SIGNAL = "neso:GB:average:direct:CO2"


def carbon(**changes: Any) -> CarbonView:
    """Give a signal that plans can be made of."""
    return replace(CarbonView(signal=SIGNAL, slots=slots([100.0] * 20), age_s=1.0), **changes)


@pytest.mark.parametrize(
    ("changed", "view", "why"),
    [
        (run(), carbon(), ""),
        (run(live=False), carbon(), "it does not report"),
        (run(catalogue=None, current=None), carbon(), "runs.llama.catalogue"),
        (run(current=None), carbon(), "not a point of its catalogue"),
        (run(deadline=None), carbon(), "runs.llama.deadline"),
        (run(tokens_total=0), carbon(), "tokens_total"),
        (run(tokens=37_000_000), carbon(), "its work is done"),
        (run(deadline=NOW), carbon(), "its deadline has passed"),
        (run(), carbon(trouble="Refused."), "cannot be used (Refused)"),
        (run(), carbon(slots=()), "it has no value"),
        (run(), carbon(rung=Rung.PROFILE), "rests on a profile of its last days"),
        (run(), carbon(rung=Rung.STATIC, note="a number"), "and a number"),
        (run(), carbon(interval_s=0.9), "too short to plan in"),
        (run(), carbon(interval_s=300.0), ""),
    ],
)
def test_each_reason_for_no_plan_is_said_and_nothing_is_asked(
    changed: RunView, view: CarbonView, why: str
) -> None:
    """What is missing is named, with what to do; the same reason stands in the run's state."""
    seen = replace(observation(changed), carbon=view)
    assert why in why_none(seen, changed)
    assert (why == "") == (why_none(seen, changed) == "")
    if why:
        worker = PlanWorker()
        assert worker.newest(seen, changed) is None
        assert why in worker.planning().runs["r-1"].reason
        assert worker.planning().waiting == 0
