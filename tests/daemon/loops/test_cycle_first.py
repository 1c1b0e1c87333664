"""Threads that compute beside the cycle give way to it, and get on all the same."""

import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from tests.builders.capped_runs import FAST_W, SLOW_W, sharing
from tests.builders.observations import observation
from tests.daemon.waiting import wait_for
from tests.planning.children import process
from wattmesh.controller.planner.joint_worker import JointWorker
from wattmesh.controller.planner.worker import PlanWorker
from wattmesh.controller.process.cycle_first import CycleFirst

PATIENT_S = 180.0


def made(work: Callable[[CycleFirst], None], first: CycleFirst) -> threading.Thread:
    """Start work in a thread of its own."""
    thread = threading.Thread(target=work, args=(first,), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("gives_way", [True, False], ids=["gives way", "twin: does not"])
def test_nothing_is_computed_while_a_turn_is_in_progress(*, gives_way: bool) -> None:
    """The pieces that are done within the turn are seen; after it all are done."""
    first, done, begun = CycleFirst(), list[int](), threading.Event()
    way: Callable[[], object] = first.giving_way(PATIENT_S) if gives_way else int

    def work(_: CycleFirst) -> None:
        begun.set()
        for piece in range(3):
            way()
            done.append(piece)

    with first.turn():
        thread = made(work, first)
        begun.wait(PATIENT_S)
        if not gives_way:
            thread.join(PATIENT_S)
        seen = list(done)
    thread.join(PATIENT_S)
    assert (seen == []) == gives_way
    assert done == [0, 1, 2]


def test_turns_without_a_pause_do_not_stop_the_work() -> None:
    """Of any ten seconds at most five are waited, by a clock that waiting moves on."""
    now = [0.0]
    first = CycleFirst(lambda: now[0])
    waits: list[float] = []

    def pass_by(most_s: float) -> float:
        waits.append(most_s)
        now[0] += min(most_s, 2.0)
        return min(most_s, 2.0)

    first.until_over = pass_by  # type: ignore[method-assign]
    way = first.giving_way(5.0)
    for _ in range(100):
        way()
    assert now[0] == 5.0  # then it works
    assert waits == [5.0, 3.0, 1.0]
    now[0] = 9.9
    way()
    assert len(waits) == 3
    now[0] = 10.0
    way()
    assert waits[3:] == [5.0]


def test_a_wait_ends_though_the_turn_does_not() -> None:
    """A turn that hangs costs the other thread its patience once."""
    first = CycleFirst()
    with first.turn():
        assert first.until_over(0.01) >= 0.01
        with first.turn():
            pass
        assert first.until_over(0.01) >= 0.01
    assert first.until_over(PATIENT_S) == 0.0


def test_a_turn_that_fails_ends() -> None:
    """Nobody waits for it any more."""
    first = CycleFirst()

    def fails() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        first.of(fails)()
    assert first.until_over(PATIENT_S) == 0.0


@pytest.mark.parametrize("busy", [True, False], ids=["in a turn", "between turns"])
def test_joint_questions_are_put_between_turns(*, busy: bool) -> None:
    """No child is asked while the turn lasts; between turns, one is at once."""
    first = CycleFirst()
    with process() as child:
        ways = first.giving_way(PATIENT_S)
        worker = JointWorker(child, rest_s=3600.0, give_way=ways)
        try:
            with first.turn() if busy else nullcontext():
                worker.room(sharing(3, 2 * FAST_W + SLOW_W), "r-0")
                if busy:
                    wait_for(lambda: waits(first) > 0, "the planner to give way")
                    assert child.pid is None
                    assert worker.state.waiting
            wait_for(lambda: bool(worker.state.rooms), "a joint plan")
        finally:
            worker.stop()


def waits(first: CycleFirst) -> int:
    """Count the threads that give way."""
    return len(first._changed._waiters)  # type: ignore[attr-defined]


def test_plans_of_one_run_are_asked_for_between_turns() -> None:
    """The same for the planner of each run."""
    first = CycleFirst()
    with process() as child:
        worker = PlanWorker(child, give_way=first.giving_way(PATIENT_S))
        seen = observation()
        try:
            with first.turn():
                assert worker.newest(seen, seen.runs[0]) is None
                wait_for(lambda: waits(first) > 0, "the planner to give way")
                assert child.pid is None
            wait_for(lambda: worker.newest(seen, seen.runs[0]) is not None, "a plan")
        finally:
            worker.stop()
