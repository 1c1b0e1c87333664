"""Plans for the cycle, made outside it: one thread asks one planning process, run after run.

The cycle reports what it sees and takes the newest plan that is still valid; it never waits.
Questions queue in the order they came, only the newest of each run. A question that fails is asked
again later, and the price rule decides meanwhile.

Invariant: a plan is handed out only under the terms it was made for, and answers the very question
that was asked; a failure of the planning process costs plans, never a cycle.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from wattmesh.controller.planner.asking import Key, Planning, PlanState, moment, terms, why_none
from wattmesh.controller.planner.joint_asking import shared_clause
from wattmesh.controller.planner.joint_state import JointState
from wattmesh.controller.planner.joint_worker import JointWorker
from wattmesh.controller.planner.process import PlannerFailed, PlanProcess
from wattmesh.controller.planner.wire import SolveRequest, SolveResult, read_result, to_line
from wattmesh.errors import InputInvalid
from wattmesh.policies.decision import Observation, PlanView, RunView
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.shared_grid import SharedGrid

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for what.

    Attributes:
        solve_s: for one plan, the start of the process included.
        rest_s: after a failure, doubled with each further one in a row up to `most_rest_s`.
    """

    solve_s: float = 30.0
    rest_s: float = 2.0
    most_rest_s: float = 600.0

    def rest(self, failures: int) -> float:
        """Give the seconds to rest after so many failures in a row; 0 after none."""
        if not failures:
            return 0.0
        return min(self.most_rest_s, self.rest_s * 2.0 ** min(failures - 1, 60))


@dataclass(slots=True)
class _AskedRun:
    """One run: what was asked last, and its state."""

    state: PlanState = field(default_factory=PlanState)
    asked: Key = ()
    again_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """A question in the queue. Kept as observed: it is turned into numbers outside the cycle.

    `sharing`: how many runs have a room by the joint plan that this run's is of; 0: it has none.
    """

    seen: Observation
    run: RunView
    terms: Key
    sharing: int = 0


class PlanWorker:
    """Makes plans of all runs; `newest` and `planning` may be called from any thread."""

    def __init__(
        self,
        process: PlanProcess | None = None,
        patience: Patience | None = None,
        wake: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        joint: JointWorker | None = None,
        give_way: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; thread and process start with the first question.

        Args:
            process: the planning process.
            joint: shares a power cap among all runs; None: each plans alone.
            patience: how long to wait for what.
            wake: called when there are new plans and the queue is empty; makes the next cycle due.
            monotonic: gives seconds.
            give_way: called before a question is turned into numbers; may wait a while.
        """
        self._process = process or PlanProcess()
        self._patience = patience or Patience()
        self._wake = wake
        self._monotonic = monotonic
        self._joint = joint
        self._give_way = give_way
        self._grid: tuple[Observation, SharedGrid] | None = None
        self._changed = threading.Condition()
        self._asked_runs: dict[str, _AskedRun] = {}
        self._wishes: dict[str, _Wish] = {}
        self._totals = Planning()
        self._rest_until_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopping = False

    def newest(self, seen: Observation, run: RunView) -> PlanView | None:
        """Give the newest valid plan of a run, however old; ask for a newer one if it is due."""
        now_terms, shared = terms(seen, run), JointState()
        if self._joint is not None and (room := self._joint.room(seen, run.run)):
            run, shared = replace(run, shared_room=room), self._joint.state
        clause = shared_clause(shared, seen.now)
        with self._changed:
            self._forget_ended(seen)
            kept = self._asked_runs.setdefault(run.run, _AskedRun())
            if kept.state.shared != clause:
                kept.state = replace(kept.state, shared=clause)
            if run.open_switch is None:
                wish = _Wish(seen=seen, run=run, terms=now_terms, sharing=len(shared.rooms))
                self._wish(kept, wish)
            plan = kept.state.plan
            return plan if plan is not None and kept.state.terms == now_terms else None

    def planning(self) -> Planning:
        """Give the state of planning."""
        with self._changed:
            states = {run: kept.state for run, kept in self._asked_runs.items()}
            joint = self._joint.state if self._joint is not None else JointState()
            return replace(self._totals, runs=states, waiting=len(self._wishes), joint=joint)

    def stop(self) -> None:
        """End the process and the thread, and those of the joint plan."""
        if self._joint is not None:
            self._joint.stop()
        with self._changed:
            self._stopping = True
            self._wishes.clear()
            self._changed.notify_all()
        self._process.end_thread(self._thread, "planner")

    def _forget_ended(self, seen: Observation) -> None:
        if len(self._asked_runs) <= len(seen.runs):
            return
        for gone in self._asked_runs.keys() - {each.run for each in seen.runs}:
            del self._asked_runs[gone]
            self._wishes.pop(gone, None)

    def _wish(self, kept: _AskedRun, wish: _Wish) -> None:
        """Queue a question if what a plan depends on has changed."""
        seen, run = wish.seen, wish.run
        key = (*wish.terms, *moment(seen, run))
        if kept.asked == key or self._monotonic() < kept.again_s or self._stopping:
            return
        reason = why_none(seen, run)
        if reason:
            # Not recorded as asked: what is missing may come with any cycle.
            self._wishes.pop(run.run, None)
            kept.state = replace(kept.state, reason=reason)
            return
        kept.asked, kept.state = key, replace(kept.state, reason="")
        self._wishes[run.run] = wish
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="planner", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        """Answer queued questions until stopped."""
        while True:
            wish, before = self._next()
            if wish is None:
                break
            try:
                result = self._solved(wish, before)
            except PlannerFailed as error:
                self._failed(wish, str(error))
            except Exception as error:
                log.exception(
                    "planner: unexpected error; this is a bug in wattmesh, please report it"
                )
                self._process.end()
                self._failed(wish, f"a bug ({type(error).__name__}: {error})")
            else:
                self._store(wish, result)
        self._process.end()

    def _next(self) -> tuple[_Wish | None, PlanView | None]:
        """Wait for the next question; give it with the run's present plan; two Nones: stop."""
        with self._changed:
            while not self._stopping:
                rest_s = self._rest_until_s - self._monotonic()
                if self._wishes and rest_s <= 0:
                    name = next(iter(self._wishes))
                    wish, state = self._wishes.pop(name), self._asked_runs[name].state
                    return wish, state.plan if state.terms == wish.terms else None
                self._changed.wait(rest_s if self._wishes else None)
        return None, None

    def _solved(self, wish: _Wish, before: PlanView | None) -> SolveResult:
        """Put a question to the process.

        Raises:
            PlannerFailed: it did not answer this question.
        """
        self._give_way()
        if self._grid is None or self._grid[0] is not wish.seen:
            self._grid = (wish.seen, SharedGrid(wish.seen))
        try:
            asked = question(wish.seen, wish.run, grid=self._grid[1])
        except InputInvalid as error:
            return SolveResult(digest="", seconds=0.0, reason=str(error))
        if asked is None:
            return SolveResult(digest="", seconds=0.0, reason="no time is left to plan")
        line = to_line(SolveRequest(question=asked, before=before))
        return self._process.answer(line, self._patience.solve_s, read_result, asked.digest)

    def _store(self, wish: _Wish, result: SolveResult) -> None:
        with self._changed:
            self._totals = replace(
                self._totals, answered=self._totals.answered + 1, in_a_row=0, trouble=""
            )
            kept = self._asked_runs.get(wish.run.run)
            if kept is not None:
                plan = replace(result.plan, sharing=wish.sharing) if result.plan else None
                kept.state = PlanState(
                    plan=plan,
                    terms=wish.terms,
                    reason=result.reason,
                    solve_s=result.seconds,
                    shared=kept.state.shared,
                )
            idle = not self._wishes
        if idle:
            self._grid = None
            self._wake()

    def _failed(self, wish: _Wish, why: str) -> None:
        """Rest, and ask for the run again after its own rest; its present plan stays."""
        with self._changed:
            if self._stopping:
                return
            now_s, totals = self._monotonic(), self._totals
            self._totals = totals = replace(
                totals, failed=totals.failed + 1, in_a_row=totals.in_a_row + 1, trouble=why
            )
            self._rest_until_s = now_s + self._patience.rest(totals.in_a_row)
            kept = self._asked_runs.get(wish.run.run)
            if kept is not None:
                failures = kept.state.failures + 1
                kept.state = replace(kept.state, failures=failures, trouble=why)
                kept.asked, kept.again_s = (), now_s + self._patience.rest(failures)
        log.warning("run %s: %s; the price rule decides meanwhile", wish.run.name, why)
