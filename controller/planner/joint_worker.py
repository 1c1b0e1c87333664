"""The joint plan of all runs under a power cap: one thread asks a planning process of its own.

The cycle shows what it sees and gets each run's newest room; it never waits. Only where a cap is in
force or announced is anything asked, and the process ends with its answer. Runs are turned into
numbers one after the other, and between two of them the thread gives way to the cycle.

Invariant: rooms are those of the newest answer and rest on the terms of its question; a process
that fails, hangs or answers another question takes the rooms away, and each run plans alone.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from wattmesh.controller.planner.asking import Key, why_none
from wattmesh.controller.planner.joint_asking import joint_moment, joint_terms, why_not_asked
from wattmesh.controller.planner.joint_state import JointState, JointTerms
from wattmesh.controller.planner.process import PlannerFailed, PlanProcess
from wattmesh.controller.planner.wire import JointRequest, JointResult, read_joint, to_line
from wattmesh.policies.cluster.joint_question import JointQuestion, joint_question, rooms
from wattmesh.policies.decision import Observation, RoomStep, RunView

log = logging.getLogger(__name__)

SOLVE_S = 40.0
"""How long the process may search; it answers with what it has found until then."""

GRACE_S = 60.0
"""How much longer it may take to start, to read the question and to answer."""

REST_S, MOST_REST_S = 30.0, 1800.0
"""Seconds until a question that failed is asked again, doubled with each failure; at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What to ask, as observed: it is turned into numbers outside the cycle."""

    seen: Observation
    terms: JointTerms


class JointWorker:
    """Keeps the newest joint plan; `room` and `state` may be called from any thread."""

    def __init__(
        self,
        process: PlanProcess | None = None,
        *,
        solve_s: float = SOLVE_S,
        grace_s: float = GRACE_S,
        rest_s: float = REST_S,
        wake: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; thread and process start with the first question.

        Args:
            process: the planning process.
            solve_s: how long it may search.
            grace_s: how much longer it may take to answer.
            rest_s: until a question that failed is asked again, the first time.
            wake: called when a new joint plan has come.
            monotonic: gives seconds.
            give_way: called between two pieces of work; may wait a while.
        """
        self._process = process or PlanProcess()
        self._solve_s, self._grace_s, self._rest_s = solve_s, grace_s, rest_s
        self._wake, self._monotonic, self._give_way = wake, monotonic, give_way
        self._changed = threading.Condition()
        self._state, self._terms = JointState(), JointTerms()
        self._seen: Observation | None = None
        self._asked: Key = ()
        self._wish: _Wish | None = None
        self._again_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopping = False

    def room(self, seen: Observation, run: str) -> tuple[RoomStep, ...]:
        """Give a run's room; ask for a new joint plan if one is due."""
        with self._changed:
            if seen is not self._seen:
                self._look(seen)
            return self._state.room(seen, self._terms, run)

    @property
    def state(self) -> JointState:
        """How far the joint plan is."""
        with self._changed:
            return self._state

    def stop(self) -> None:
        """End the process and the thread."""
        with self._changed:
            self._stopping, self._wish = True, None
            self._changed.notify_all()
        self._process.end_thread(self._thread, "joint planner")

    def _look(self, seen: Observation) -> None:
        """Take in a new observation once, however many runs it has."""
        self._seen, self._terms = seen, joint_terms(seen)
        if not self._terms.capped:
            self._asked, self._wish = (), None
            if not self._state.waiting:
                self._state = JointState()
            return
        # A run that ended asks for a new plan as well: the others may use its room.
        key = (self._terms.force, self._terms.ahead, self._terms.runs, joint_moment(seen))
        if self._stopping or key == self._asked or self._monotonic() < self._again_s:
            return
        self._asked = key
        self._wish = _Wish(seen=seen, terms=self._terms)
        self._state = replace(self._state, waiting=True)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="joint planner", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        """Answer the newest question until stopped."""
        while True:
            with self._changed:
                while self._wish is None and not self._stopping:
                    self._changed.wait()
                wish, self._wish = self._wish, None
            if wish is None:
                break
            try:
                found = self._answer(wish)
            except PlannerFailed as error:
                found = self._failed(str(error))
            except Exception as error:
                log.exception(
                    "joint planner: unexpected error; this is a bug in wattmesh, please report it"
                )
                found = self._failed(f"a bug ({type(error).__name__}: {error})")
            self._process.end()
            with self._changed:
                self._state = replace(found, waiting=self._wish is not None)
            if found.rooms:
                self._wake()
        self._process.end()

    def _answer(self, wish: _Wish) -> JointState:
        """Put the question to the process.

        Raises:
            PlannerFailed: it did not answer this question.
        """
        seen = wish.seen

        def may_plan(run: RunView) -> bool:
            self._give_way()
            return not why_none(seen, run)

        asked = joint_question(seen, may_plan)
        if asked is None:
            return JointState(reason=why_not_asked(seen))
        self._give_way()
        line = to_line(JointRequest(joint=asked, solve_s=self._solve_s))

        def read(told: bytes) -> JointResult:
            self._give_way()
            return read_joint(told)

        limit_s = self._solve_s + self._grace_s
        return _state(wish, asked, self._process.answer(line, limit_s, read, asked.digest))

    def _failed(self, why: str) -> JointState:
        """Take the rooms away, and rest."""
        with self._changed:
            failures = self._state.failures + 1
            rest_s = min(MOST_REST_S, self._rest_s * 2.0 ** min(failures - 1, 30))
            self._asked, self._again_s = (), self._monotonic() + rest_s
            stopping = self._stopping
        if not stopping:
            log.warning("no joint plan: %s; each run plans alone meanwhile", why)
        return JointState(trouble=why, failures=failures)


def _state(wish: _Wish, asked: JointQuestion, result: JointResult) -> JointState:
    if result.answer is None:
        reason = result.reason
        for run in wish.seen.runs:
            reason = reason.replace(f"run {run.run} ", f"run {run.name} ")
        return JointState(reason=reason, solve_s=result.seconds)
    return JointState(
        rooms=rooms(asked, result.answer),
        terms=wish.terms,
        made_at=asked.made_at,
        gap=result.answer.gap,
        solve_s=result.seconds,
    )
