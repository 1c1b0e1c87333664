"""What happens at a save step: agree, checkpoint, and carry out an order if there is one.

Invariant: every rank of the generation leaves this sequence on the same branch, because each
choice is made from facts that all ranks have gathered.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from wattmesh.errors import Fenced
from wattmesh.reconfig.client.orderbook import OrderBook
from wattmesh.reconfig.hook import placed
from wattmesh.reconfig.hook.background_fsync import SavedCheckpoint
from wattmesh.reconfig.hook.boundary_vote import Fact, VoteResult, conclude, left_out
from wattmesh.reconfig.hook.job import AttachedJob, SwitchReporter
from wattmesh.reconfig.hook.leaving import Leaving
from wattmesh.reconfig.hook.rank_runner import RankRunner
from wattmesh.reconfig.hook.saves import Saves
from wattmesh.reconfig.launch import group, usage
from wattmesh.reconfig.launch.failures.deadlines import Phase
from wattmesh.reconfig.launch.generation import Generation, SwitchNote
from wattmesh.reconfig.launch.group import RankFailed
from wattmesh.reconfig.launch.guard import all_or_none, ending
from wattmesh.reconfig.launch.in_step import CheckpointNotSaved
from wattmesh.reconfig.launch.launched import ranks_here
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.probe import probing
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.switch_spend import SETTLE
from wattmesh.reconfig.wire.messages import Order, SwitchMode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReadiness:
    """What the ranks did and agreed on before the switch to another layout begins.

    `short`: which resource the ordered layout would run out of here; "" when none.
    """

    agreed: VoteResult
    order: Order | None = None
    reporter: SwitchReporter | None = None
    saved: SavedCheckpoint | None = None
    short: str = ""


class Boundary:
    """The sequence at a save step, for one rank."""

    def __init__(self, job: AttachedJob, runner: RankRunner) -> None:
        """Act on the state and generation of `runner`."""
        self._job = job
        self._runner = runner
        self._orders = OrderBook(job.folder)
        self._leaving = Leaving(job, runner, self._orders, Position())
        self.saves = Saves(job, runner)
        self._reporter: SwitchReporter | None = None
        self._told = -1
        self._waiting: Callable[[], None] | None = None

    @property
    def waits(self) -> bool:
        """Whether a switch waits until the caller holds nothing of the model; see `run`."""
        return self._waiting is not None

    @property
    def _now(self) -> tuple[State, Generation]:
        state, generation = self._runner.state, self._runner.generation
        assert state is not None
        assert generation is not None
        return state, generation

    def run(self, loss: float | None, *, due: bool = True, may_switch: bool = True) -> VoteResult:
        """Do everything that is due at this step; if not `due`, only finish a save in flight.

        On return this rank trains on (perhaps in another generation), or the runner's generation
        is `Purpose.OVER`. If `deferred` is set in the answer, call again at the next step. Unless
        it `may_switch`, a switch in place is not carried out: it `waits`, for `carry_out`.
        """
        began = time.monotonic()
        state, _ = self._now
        self._leaving = Leaving(self._job, self._runner, self._orders, state.position)
        self._reporter, self._told = None, -1
        with self._leaving.phase(Phase.AGREE):
            try:
                ready = all_or_none(partial(self._prepare, began, due=due))
            except RankFailed as failure:
                ready = SwitchReadiness(agreed=self._train_on(failure))
        agreed = ready.agreed
        if not due:
            return agreed
        self._job.noted(state.position.step, agreed, self.saves.trouble)
        if agreed.outcome is not None:
            self._leaving.end(agreed.outcome, agreed.detail, loss)
        elif agreed.deferred:
            log.info("the boundary of step %d waits: %s", state.position.step, agreed.deferred)
            return agreed
        elif ready.reporter is not None and ready.order is not None and ready.saved is not None:
            reporter, order, saved = ready.reporter, ready.order, ready.saved
            self._waiting = self._leaving.by(reporter, order, saved, loss, ready.short)
            if may_switch:
                self.carry_out()
        return agreed

    def carry_out(self) -> None:
        """Carry out the switch in place that waits, if there is one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    def _prepare(self, began: float, *, due: bool) -> SwitchReadiness:
        """Agree, announce the switch if one is ordered, and save if that is due."""
        agreed = self._agree()
        self._job.acted_on = agreed.acted_on
        ends = due and agreed.outcome is not None
        if self.saves.writing and (ends or not agreed.deferred):
            with self._leaving.phase(Phase.SAVE):
                self.saves.finish_write(began)
        if not due or (agreed.deferred and not ends) or self._job.uncarried:
            return SwitchReadiness(agreed=agreed)
        order, short, in_place = agreed.order, "", False
        if order is not None:
            self._reporter = self._announce(order, began)
            in_place = order.mode is SwitchMode.IN_PLACE
            short = self._shortage(order) if in_place else ""
        reporter = self._reporter
        following = order.ranks if order is not None and in_place and not short else ()
        saved = self._save(reporter, following, wait=ends or reporter is not None)
        return SwitchReadiness(
            agreed=agreed, order=order, reporter=reporter, saved=saved, short=short
        )

    def _train_on(self, failure: RankFailed) -> VoteResult:
        """Train on after a boundary that failed on some rank; a collective call.

        Raises:
            Diverged, CallHuman, Refused: the ranks no longer train one run, and the run may be
                switched, or has no daemon and will be relaunched from a checkpoint of this launch.
            Fenced: a newer launch trains the run; raised where the run may be switched or has no
                daemon.
        """
        job, position = self._job, self._leaving.position
        # Whether training ends here must not depend on what failed.
        wishes = {
            "finish": job.finish_asked,
            "stop": job.stop_reason,
            "tokens": position.tokens,
            "again": job.relaunched and self.saves.newest is not None,
        }
        every = group.gather(wishes)
        error = ending(failure)
        goes_on = isinstance(error, Fenced) or any(each["again"] for each in every)
        if error is not None and (job.acted_on or (goes_on and job.is_alone)):
            raise error
        self.saves.say(
            f"the boundary of step {position.step} was left out ({failure}). Training goes on; the "
            "checkpoint before stays the one to restart from.",
            cause=str(failure),
        )
        self.saves.forget()
        if self._reporter is not None:
            with suppress(Exception):
                self._reporter.tell(SwitchState.ROLLED_BACK, detail=f"no checkpoint: {failure}")
                self._orders.end()
        return replace(left_out(every, job.tokens_total), told=self._told)

    def _agree(self) -> VoteResult:
        """Gather and judge all ranks' facts; begins a new interval of consumed samples."""
        state, generation = self._now
        job, position = self._job, state.position
        facts = group.gather(self._facts(state, generation))
        experts = [fact["experts"] for fact in facts]
        job.experts.agree(state, generation, experts)
        if job.leads(generation):
            job.experts.tell(job.launch_store, state, generation, experts)
        agreed = conclude(facts, generation.ranks, position, job.tokens_total)
        self._told = agreed.told
        job.consumed.begin(position.samples)
        return agreed

    def _facts(self, state: State, generation: Generation) -> Fact:
        """Return this rank's facts; only the leader adds an order and outside requests to stop."""
        job, position = self._job, state.position
        leads = job.leads(generation)
        order = self._pick_order(state, generation) if leads else None
        return {
            "position": [position.step, position.samples, position.tokens],
            "stop": job.stop_reason or (self._stop_heard() if leads else ""),
            "finish": job.finish_asked,
            "consumed": job.consumed.to_json(),
            "live": any(each.grad is not None for each in state.parameters()),
            "writing": self.saves.in_flight,
            "order": order.to_json() if order else None,
            "acted_on": leads and job.may_be_switched(),
            "experts": job.experts.fact(job.launch_store, state, leads=leads),
        }

    def _stop_heard(self) -> str:
        """Return why a stop was requested from outside the training ranks; "" if it was not."""
        if self._job.folder.stop_file.exists():
            return "the stop file was found"
        return self._job.launch_store.peek("stop") or ""

    def _pick_order(self, state: State, generation: Generation) -> Order | None:
        """Choose an order; the order book keeps on disk what must survive a restart."""
        if self._job.uncarried or self._job.unprobed:
            return None
        heard = self._job.voice().orders()
        return self._orders.pick(
            heard,
            generation,
            attempt=self._job.attempt(generation),
            step=state.position.step,
            launched=self._job.launch_store.launched,
            relaunched=self._job.relaunched,
            holds=self._job.holds,
            resizes=self._job.resizes,
            seekable=self._job.seekable,
            experts=placed.standing(state, own_save=self._job.save is not None),
        )

    def _announce(self, order: Order, began: float) -> SwitchReporter | None:
        """Record on disk that a switch begins, and report it; None if the disk refuses.

        A switch that cannot be recorded is not begun.
        """
        state, generation = self._now
        note = SwitchNote(
            switch_id=order.switch_id,
            epoch=order.epoch,
            point=order.point,
            old_layout=generation.layout,
            old_ranks=generation.ranks,
            old_placement=generation.placement,
            began_s=began,
            boot=boot_id(),
            to=placed.shown(order, generation),
            reason=order.reason,
        )
        here = replace(generation, step=state.position.step)
        reporter = SwitchReporter(self._job, here, note)
        problem = ""
        try:
            if self._job.leads(generation):
                self._orders.begin(order, step=state.position.step, attempt=generation.attempt)
        except OSError as error:
            problem = f"that order {order.switch_id} is begun cannot be noted on disk ({error})"
        told = group.agree_on_problem(problem)
        if told:
            if self._job.leads(generation):
                log.error("no switch at step %d: %s", state.position.step, told)
            return None
        reporter.tell(SwitchState.ANNOUNCED, detail=order.reason)
        reporter.tell(SwitchState.CHECKPOINTING)
        return reporter

    def _save(
        self, reporter: SwitchReporter | None, following: Sequence[int], *, wait: bool
    ) -> SavedCheckpoint | None:
        """Save a checkpoint; None when it is still being written, or could not be written.

        Training goes on either way. `following`: the ranks that a switch in place goes to.
        """
        state, _ = self._now
        began = time.monotonic()
        job = self._job
        with self._leaving.phase(Phase.SAVE):
            self._runner.fsync.wait()
            if reporter is not None:
                reporter.note.evidence[SETTLE] = round(time.monotonic() - began, 4)
                # The probe runs collectives of its own: notice here a rank that failed before it.
                group.gather(None)
                at_s = time.monotonic()
                reporter.note.evidence["probe_before"] = probing.take(job.probe, state)
                reporter.note.evidence["probe_before_s"] = round(time.monotonic() - at_s, 4)
                if self._unprovable(reporter):
                    return None
            try:
                switch = reporter if following else None
                saved = self.saves.write(switch, began, following=following, wait=wait)
            except CheckpointNotSaved as error:
                self.saves.say(
                    f"the checkpoint of step {state.position.step} was not saved: {error}"
                )
                if reporter:
                    reporter.tell(SwitchState.ROLLED_BACK, detail=f"no checkpoint: {error}")
                    self._orders.end()
                return None
        if saved is None:
            return None
        self.saves.say("")
        if not saved.staged:
            self.saves.newest = saved
        if reporter:
            reporter.note.evidence.update(save_s=saved.save_s, digest_before=saved.digest)
        return saved

    def _unprovable(self, reporter: SwitchReporter) -> bool:
        """Take an order back whose way back could not be proven: no loss equals one that is nan."""
        before = float(reporter.note.evidence["probe_before"])
        told = group.agree_on_problem(
            "" if math.isfinite(before) else f"the probe loss is {before} before the switch"
        )
        if told:
            detail = f"{told}; what arrives, here or there, could not be compared with it"
            reporter.tell(SwitchState.ROLLED_BACK, detail=detail)
            self._orders.end()
        return bool(told)

    def _shortage(self, order: Order) -> str:
        """Say which rank has too few open files or threads for the next layout; "" for none."""
        used, budget = usage.now(), self._runner.budget
        budget.settled(used)
        allowed = usage.limits(used, ranks_here() or 1)
        return group.agree_on_problem(budget.problem((order.layout, order.ranks), allowed))
