"""The joint plan in the daemon: never waited for; where its terms do not hold, each run alone."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.capped_runs import FAST_W, SLOW_W, announced_to, sharing
from tests.builders.cycles import think
from tests.builders.observations import NOW
from tests.daemon.waiting import wait_for
from tests.planning.children import NONSENSE, process, wait_gone
from wattmesh.controller.planner.joint_asking import joint_sentence, joint_terms
from wattmesh.controller.planner.joint_worker import JointWorker
from wattmesh.controller.planner.process import PlanProcess
from wattmesh.controller.planner.view import plan_answer
from wattmesh.controller.planner.worker import Patience, PlanWorker
from wattmesh.policies.decision import Action, CapView, Observation, Rung
from wattmesh.policies.rules.follow import FRESH

RUNS_W = 2 * FAST_W + SLOW_W
"""Of a cap under which two of three runs may be fast at a time."""

ANOTHER = """\
from dataclasses import replace
from wattmesh.controller.planner import child
from wattmesh.controller.planner.wire import read_joint, to_line
answer = child.answer
child.answer = lambda line: to_line(replace(read_joint(answer(line)), digest="another"))
child.main()
"""


@contextmanager
def joint(program: str = "", **options: Any) -> Iterator[tuple[JointWorker, PlanProcess]]:
    """Give a joint planner over a planning process; both are gone afterwards."""
    with process(program) as child:
        worker = JointWorker(child, **{"rest_s": 3600.0, **options})
        try:
            yield worker, child
        finally:
            worker.stop()


def settled(worker: JointWorker, seen: Observation) -> None:
    """Ask as the cycle does, and wait for the answer."""
    worker.room(seen, "r-0")
    wait_for(lambda: not worker.state.waiting, "a joint answer")


def watts_at(worker: JointWorker, seen: Observation, hours: float) -> list[float]:
    """Give what each run may take at a time."""
    at = seen.now + timedelta(hours=hours)
    return [
        step.room_w
        for run in seen.runs
        for step in worker.room(seen, run.run)
        if step.start <= at < step.until
    ]


@pytest.fixture(scope="module")
def planned() -> Iterator[tuple[JointWorker, Observation]]:
    """Give a joint planner with a plan of three runs under a cap in force."""
    with joint() as (worker, _):
        seen = sharing(3, RUNS_W)
        settled(worker, seen)
        yield worker, seen


def test_all_runs_together_keep_to_the_cap(planned: tuple[JointWorker, Observation]) -> None:
    """And some are given more than the third that each has alone."""
    worker, seen = planned
    for hour in range(12):
        assert sum(watts_at(worker, seen, hour + 0.5)) <= RUNS_W + 1e-3
    assert max(watts_at(worker, seen, 7.5)) == FAST_W > RUNS_W / 3
    assert joint_sentence(worker.state, seen.now).startswith(" A joint plan of 3 runs")


def test_a_plan_for_runs_that_ended_meanwhile_holds_for_the_others(
    planned: tuple[JointWorker, Observation],
) -> None:
    """One that came, another deadline, another cap: each plans alone."""
    worker, seen = planned
    fewer = replace(seen, runs=seen.runs[1:])
    assert worker.state.room(fewer, joint_terms(fewer), "r-1")
    assert not worker.state.room(fewer, joint_terms(fewer), "gone")
    assert seen.cap is not None
    for other in (
        sharing(4, RUNS_W),
        replace(seen, runs=(*seen.runs[:2], replace(seen.runs[2], deadline=NOW))),
        replace(seen, cap=replace(seen.cap, cap_w=8000.0)),
        replace(seen, now=seen.now + FRESH),
        sharing(3, None),
    ):
        state = worker.state
        assert not worker.state.room(other, joint_terms(other), "r-1"), other
        assert state.rooms


def test_a_plan_made_ahead_of_a_cap_is_followed_when_that_begins() -> None:
    """It was made for it; where another cap holds, or one was withdrawn, each plans alone."""
    ahead = announced_to(sharing(3, RUNS_W), RUNS_W, FAST_W)
    (coming,) = ahead.runs[0].caps_ahead
    begun = replace(
        ahead,
        now=coming.start,
        cap=CapView(cap_w=coming.cap_w, until=coming.until, runs_w=RUNS_W),
        runs=tuple(replace(each, caps_ahead=()) for each in ahead.runs),
    )
    known = joint_terms(ahead)
    assert known.hold(joint_terms(begun))
    sleeps = replace(begun.runs[2], caps_ahead=(coming,))
    assert known.hold(joint_terms(replace(begun, runs=(*begun.runs[:2], sleeps))))
    assert begun.cap is not None
    other = replace(begun.cap, cap_w=coming.cap_w - 1.0)
    later = replace(begun.cap, until=coming.until + timedelta(hours=1))
    for cap in (other, later):
        assert not known.hold(joint_terms(replace(begun, cap=cap)))
    assert not known.hold(joint_terms(replace(begun, cap=None)))  # withdrawn
    assert not known.hold(joint_terms(replace(ahead, cap=other)))  # one more meanwhile
    assert not joint_terms(begun).hold(known)


def test_each_run_plans_in_the_room_that_the_joint_plan_leaves_it() -> None:
    """The cycle gets on at once; the plan says whose room it is; a decision stays under the cap."""
    with joint() as (shared, _), process() as child:
        worker = PlanWorker(child, Patience(), joint=shared)
        seen = sharing(3, RUNS_W)
        planned, decisions = think(seen, worker)
        assert all(each.plan is None for each in planned.runs)
        assert len(decisions) == 3

        def followed() -> bool:
            runs = think(seen, worker)[0].runs
            return all(each.plan is not None and each.plan.sharing == 3 for each in runs)

        wait_for(followed, "plans in the rooms")
        planned, decisions = think(seen, worker)
        for hour in range(12):
            at = seen.now + timedelta(hours=hour, minutes=30)
            steps = [each.plan.at(at) for each in planned.runs if each.plan is not None]
            needs = {"fast": FAST_W, "slow": SLOW_W}
            assert sum(needs[step.point] for step in steps if step is not None) <= RUNS_W + 1e-3
        for each in planned.runs:
            answer = plan_answer(planned, each, worker.planning().runs[each.run], "")
            assert answer.plan is not None
            assert "joint plan of 3 runs" in answer.plan.cap
        # The journal keeps the reason, so that `why` says it of any hour.
        assert all(
            "watts under the power cap are by the joint plan of 3 runs" in each.reason
            for each in decisions
        )
        # Three at `fast` need more than there is: none may go there while all others stay.
        assert all(each.action is not Action.SWITCH for each in decisions)
        worker.stop()


def test_alone_three_runs_would_take_more_than_there_is() -> None:
    """The sabotaged twin: without the joint plan their plans together do not keep the cap."""
    with process() as child:
        worker = PlanWorker(child, Patience())
        ahead = announced_to(sharing(3, RUNS_W), RUNS_W, FAST_W)  # room with the others as they are
        wait_for(lambda: all(each.plan for each in think(ahead, worker)[0].runs), "plans")
        plans = [each.plan for each in think(ahead, worker)[0].runs if each.plan is not None]
        at = ahead.now + timedelta(hours=7)
        assert [step.point for plan in plans if (step := plan.at(at))] == ["fast"] * 3
        worker.stop()


def test_a_killed_planner_leaves_each_run_alone_and_says_so() -> None:
    """In the middle of its work, with the rooms of before."""
    with joint("import time; time.sleep(3600)") as (worker, child):
        seen = sharing(3, RUNS_W)
        worker.room(seen, "r-0")
        assert joint_sentence(worker.state, seen.now).startswith(" A joint plan is being made")
        wait_for(lambda: child.pid is not None, "the process")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        wait_for(lambda: not worker.state.waiting, "the failure")
        assert not worker.room(seen, "r-0")
        assert "status -9" in worker.state.trouble
        assert joint_sentence(worker.state, seen.now).endswith(
            "so each run plans alone in what the cap leaves it."
        )


@pytest.mark.parametrize(
    ("program", "why"), [(NONSENSE, "answers nonsense"), (ANOTHER, "another question")]
)
def test_an_answer_to_something_else_is_no_plan(program: str, why: str) -> None:
    """The process is ended, and no room is given."""
    with joint(program) as (worker, child):
        seen = sharing(3, RUNS_W)
        settled(worker, seen)
        assert why in worker.state.trouble
        assert (worker.room(seen, "r-0"), child.pid) == ((), None)


def test_without_a_cap_there_is_no_process_and_nothing_is_said() -> None:
    """Of one run, or none, it is said that they share it with nobody."""
    with joint() as (worker, child):
        assert worker.room(sharing(3, None), "r-0") == ()
        assert (child.pid, joint_sentence(worker.state, NOW)) == (None, "")
        for count in (0, 1):
            settled(worker, sharing(count, RUNS_W))
            assert worker.state.reason == "fewer than two runs can be planned under it"
            assert child.pid is None


def test_nothing_is_planned_with_runs_that_are_silent_or_on_a_guess_of_the_grid() -> None:
    """As for plans of their own; a reason names a run as people know it."""
    with joint() as (worker, child):
        seen = sharing(2, RUNS_W)
        silent = replace(seen, runs=(replace(seen.runs[0], live=False), seen.runs[1]))
        guessed = replace(seen, carbon=replace(seen.carbon, rung=Rung.STATIC))
        assert seen.cap is not None
        unkept = replace(seen, cap=replace(seen.cap, runs_w=None))
        for each, why in (
            (silent, "fewer than two runs"),
            (guessed, "plans are made only from a forecast that was issued"),
            (unkept, "it is not known that the cap is kept"),
        ):
            settled(worker, each)
            assert why in worker.state.reason
        assert child.pid is None
        settled(worker, sharing(2, 100.0))
        assert worker.state.reason.startswith("run run")
        assert " alone in what the cap leaves it" in joint_sentence(worker.state, NOW)


def test_the_process_ends_with_its_answer() -> None:
    """A cap of hours needs no memory for a planner that answers once."""
    with joint() as (worker, child):
        worker.room(sharing(2, FAST_W + SLOW_W), "r-0")
        wait_for(lambda: child.pid is not None, "the process")
        pid = child.pid
        wait_for(lambda: not worker.state.waiting, "the answer")
        assert worker.state.rooms
        assert pid is not None
        wait_gone(pid)
