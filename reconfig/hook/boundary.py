"""What happens at a save step: agree, checkpoint, and carry out an order if there is one.

Invariant: every rank of the generation leaves this sequence on the same branch, because each
choice is made from facts that all ranks have gathered.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from wattmesh.errors import Fenced
from wattmesh.reconfig.client.orderbook import OrderBook
from wattmesh.reconfig.hook import placed
from wattmesh.reconfig.hook.background_fsync import SavedCheckpoint
from wattmesh.reconfig.hook.boundary_vote import Fact, VoteResult, conclude, left_out
from wattmesh.reconfig.hook.job import AttachedJob, Evidence, SwitchReporter
from wattmesh.reconfig.hook.launching import sleep
from wattmesh.reconfig.hook.rank_runner import RankRunner
from wattmesh.reconfig.hook.reports import switch_line
from wattmesh.reconfig.hook.saves import Saves
from wattmesh.reconfig.launch import group, usage
from wattmesh.reconfig.launch.failures.deadlines import Phase
from wattmesh.reconfig.launch.generation import Generation, Outcome, Purpose, SwitchNote
from wattmesh.reconfig.launch.group import RankFailed
from wattmesh.reconfig.launch.guard import all_or_none, ending
from wattmesh.reconfig.launch.in_step import CheckpointNotSaved
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.probe import probing
from wattmesh.reconfig.state.held import LIVE_SHARE
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.switch import REFUSED, SwitchState
from wattmesh.reconfig.wire import Finish, Order, SwitchMode

log = logging.getLogger(__name__)

MOST_SAID = 200
"""Characters of a launcher's refusal that go into the evidence of a switch."""


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
        self._position = Position()
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

    def _phase(self, phase: Phase) -> AbstractContextManager[None]:
        generation = self._runner.generation
        number = generation.number if generation else 0
        return self._job.watchdog.phase(phase, generation=number, step=self._position.step)

    def run(self, loss: float | None, *, due: bool = True, may_switch: bool = True) -> VoteResult:
        """Do everything that is due at this step; if not `due`, only finish a save in flight.

        On return this rank trains on (perhaps in another generation), or the runner's generation
        is `Purpose.OVER`. If `deferred` is set in the answer, call again at the next step. Unless
        it `may_switch`, a switch in place is not carried out: it `waits`, for `carry_out`.
        """
        began = time.monotonic()
        state, _ = self._now
        self._position, self._reporter, self._told = state.position, None, -1
        with self._phase(Phase.AGREE):
            try:
                ready = all_or_none(partial(self._prepare, began, due=due))
            except RankFailed as failure:
                ready = SwitchReadiness(agreed=self._train_on(failure))
        agreed = ready.agreed
        if not due:
            return agreed
        self._job.noted(state.position.step, agreed, self.saves.trouble)
        if agreed.outcome is not None:
            self._end(agreed.outcome, agreed.detail, loss)
        elif agreed.deferred:
            log.info("the boundary of step %d waits: %s", state.position.step, agreed.deferred)
            return agreed
        elif ready.reporter is not None and ready.order is not None and ready.saved is not None:
            self._switch(ready.reporter, ready.order, ready.saved, loss, ready.short)
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
            with self._phase(Phase.SAVE):
                self.saves.finish_write(began)
        if not due or (agreed.deferred and not ends) or self._job.uncarried:
            return SwitchReadiness(agreed=agreed)
        order, short, in_place = agreed.order, "", False
        if order is not None:
            self._reporter = self._announce(order, began)
            in_place = order.mode is SwitchMode.IN_PLACE
            short = self._shortage(order) if in_place else ""
        reporter = self._reporter
        saved = self._save(
            reporter, wait=ends or reporter is not None, in_place=in_place and not short
        )
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
        job, position = self._job, self._position
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
            "acted_on": leads and job.may_be_switched(generation),
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
        heard = self._job.voice(generation).orders()
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
        self, reporter: SwitchReporter | None, *, wait: bool, in_place: bool
    ) -> SavedCheckpoint | None:
        """Save a checkpoint; None when it is still being written, or could not be written.

        Training goes on either way.
        """
        state, _ = self._now
        began = time.monotonic()
        job = self._job
        with self._phase(Phase.SAVE):
            self._runner.fsync.wait()
            if reporter is not None:
                # The probe runs collectives of its own: notice here a rank that failed before it.
                group.gather(None)
                at_s = time.monotonic()
                reporter.note.evidence["probe_before"] = probing.take(job.probe, state)
                reporter.note.evidence["probe_before_s"] = round(time.monotonic() - at_s, 4)
            try:
                saved = self.saves.write(reporter if in_place else None, began, wait=wait)
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

    def _switch(
        self,
        reporter: SwitchReporter,
        order: Order,
        saved: SavedCheckpoint,
        loss: float | None,
        short: str,
    ) -> None:
        """Switch to the ordered layout, or have that wait if it is in place.

        `short`: which resource it would run out of here.
        """
        if order.mode in (SwitchMode.SUSPEND, SwitchMode.RESIZE):
            self._hand_over(reporter, order, saved, loss)
            return
        if order.mode is SwitchMode.RESTART or (short and self._job.relaunched):
            self._restart(reporter, order, saved, loss, short or "the order asks for it")
            return
        if short:
            if self._job.leads(reporter.generation):
                log.error("no switch to %s: %s", order.layout, short)
            reporter.tell(SwitchState.ROLLED_BACK, detail=f"not begun: {short}")
            self._orders.end()
            return
        self._waiting = partial(self._rebuild, reporter, order, saved, loss)

    def _rebuild(
        self, reporter: SwitchReporter, order: Order, saved: SavedCheckpoint, loss: float | None
    ) -> None:
        """Tear down, and follow the ordered layout's generation, or that of the one before."""
        reporter.tell(SwitchState.REBUILDING)
        began = time.monotonic()
        if self._runner.ask_to_keep(order.layout, order.ranks):
            reporter.note.evidence["kept"] = "groups and compiled code"
        held = self._tear_down(reporter)
        reporter.note.evidence["teardown_s"] = round(time.monotonic() - began, 4)
        if held and self._job.relaunched:
            self._restart(reporter, order, saved, loss, held)
            return
        self._follow(_next_generation(reporter, order, saved, self._position, held), reporter)

    def _tear_down(self, reporter: SwitchReporter) -> str:
        """Empty every rank's state; say what keeps more than `LIVE_SHARE` of it alive, else ""."""
        with self._phase(Phase.TEARDOWN):
            share, name = self._runner.tear_down()
            share, name = max(group.gather([share, name]))
        reporter.note.evidence["held_share"] = round(share, 4)
        if share <= LIVE_SHARE:
            return ""
        return f"{share:.0%} of the old layout is still held in memory ({name})"

    def _follow(self, following: Generation, reporter: SwitchReporter) -> None:
        """Publish and follow the next generation: the ordered layout, or a rollback to this one."""
        if following.purpose is Purpose.ROLLBACK:
            assert following.switch is not None
            why = following.switch.why
            if self._job.leads(reporter.generation):
                step, elapsed_s = self._position.step, reporter.elapsed_s
                log.warning("%s", switch_line.taken_back(reporter.note, step, elapsed_s, why))
            reporter.tell(SwitchState.ROLLING_BACK, detail=why)
        if self._job.leads(reporter.generation):
            self._job.launch_store.publish(following)
        self._runner.end_group()
        self._runner.follow(following.number)

    def _shortage(self, order: Order) -> str:
        """Say which rank has too few open files or threads for the next layout; "" for none."""
        used, budget = usage.now(), self._runner.budget
        budget.settled(used)
        allowed = usage.limits(used, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return group.agree_on_problem(budget.problem((order.layout, order.ranks), allowed))

    def _restart(
        self,
        reporter: SwitchReporter,
        order: Order,
        saved: SavedCheckpoint,
        loss: float | None,
        why: str,
    ) -> None:
        """End this launch so that the next one begins in the ordered layout."""
        generation = reporter.generation
        if self._job.leads(generation):
            log.warning(
                "the switch from %s to %s goes by restart: %s; the next launch says how it ended",
                generation.layout,
                order.layout,
                why,
            )
        reporter.tell(SwitchState.STOPPING, detail=why)
        if saved.staged:
            with self._phase(Phase.SAVE):
                self._runner.fsync.settle_for_restart(generation, saved.staged)
        if self._job.leads(generation):
            self._job.folder.ask_next(
                checkpoint=saved.name,
                layout=order.layout,
                ranks=order.ranks,
                probe=float(reporter.note.evidence["probe_before"]),
                switch=reporter.note.to_json(),
                placement=placed.after(order, generation),
            )
        self._end(Outcome.RESTART, f"restart into {order.layout}", loss)

    def _hand_over(
        self, reporter: SwitchReporter, order: Order, saved: SavedCheckpoint, loss: float | None
    ) -> None:
        """Leave to sleep or for another size, or train on where no next launch is held."""
        leads, answer = self._job.leads(reporter.generation), None
        sleeps = order.mode is SwitchMode.SUSPEND
        order = (sleep.bounded if sleeps else sleep.patient)(order, datetime.now(UTC))
        hold = sleep.hold_next_launch if sleeps else sleep.hold_other_size
        with self._phase(Phase.SAVE):
            if leads:
                answer = hold(self._job, reporter, order, saved)
            told = group.agree_on_problem(answer.problem if answer else "")
        held_as = answer.held_as if answer else ""
        if told:
            kept = "not asleep" if sleeps else f"still {reporter.generation.layout}"
            if leads:
                log.error("training goes on: %s, because %s", kept, told)
            said = answer.problem if answer and answer.problem else told
            refused: Evidence = {REFUSED: said[:MOST_SAID]}
            reporter.tell(SwitchState.ROLLED_BACK, detail=f"{kept}: {told}", evidence=refused)
            self._orders.end()
            return
        reporter.tell(SwitchState.STOPPING, detail=f"the next launch is held by {held_as}")
        if not sleeps:
            self._end(
                Outcome.RESTART,
                f"restart as {order.layout} by {held_as}",
                loss,
                wakes_at=order.wakes_at,
                held_as=held_as,
            )
            return
        total: Evidence = {"total_s": round(reporter.elapsed_s, 4)}
        reporter.tell(SwitchState.CONFIRMED, evidence=total)
        if leads:
            self._orders.end()
            log.warning("%s", switch_line.asleep(reporter.generation.step, order, held_as))
        self._end(
            Outcome.SUSPENDED,
            f"until {order.wakes_at}",
            loss,
            wakes_at=order.wakes_at,
            held_as=held_as,
        )

    def _end(
        self,
        outcome: Outcome,
        detail: str,
        loss: float | None,
        *,
        wakes_at: str | None = None,
        held_as: str = "",
    ) -> None:
        """End training in this launch: tell the daemon, and publish a final generation."""
        generation = self._runner.generation
        assert generation is not None
        position = self._position
        over = replace(
            generation,
            number=generation.number + 1,
            purpose=Purpose.OVER,
            step=position.step,
            samples=position.samples,
            tokens=position.tokens,
            outcome=outcome,
            detail=detail,
            switch=None,
        )
        if self._job.leads(generation):
            with suppress(OSError):
                self._job.folder.stop_file.unlink(missing_ok=True)
            self._job.voice(generation).finish(
                Finish(
                    run=generation.run,
                    incarnation=generation.incarnation,
                    attempt=generation.attempt,
                    step=position.step,
                    tokens=position.tokens,
                    reason=outcome if outcome is not Outcome.STOPPED else f"stopped: {detail}",
                    loss=loss,
                    wakes_at=wakes_at,
                    held_as=held_as,
                    left_at=datetime.now(UTC).isoformat() if wakes_at else None,
                )
            )
            self._job.launch_store.publish(over)
        self._runner.generation = over


def _next_generation(
    reporter: SwitchReporter, order: Order, saved: SavedCheckpoint, position: Position, held: str
) -> Generation:
    """Return the next generation: the ordered layout, or this one where memory is still `held`.

    `held` is set only for a job that nobody relaunches, so it stays in the layout that is known to
    fit.
    """
    here = replace(
        reporter.generation,
        number=reporter.generation.number + 1,
        checkpoint=saved.name,
        staged=saved.staged,
        step=position.step,
        samples=position.samples,
        tokens=position.tokens,
        digest=saved.digest,
        probe=float(reporter.note.evidence["probe_before"]),
    )
    if held:
        return replace(here, purpose=Purpose.ROLLBACK, switch=replace(reporter.note, why=held))
    return replace(
        here,
        purpose=Purpose.SWITCH,
        layout=order.layout,
        ranks=order.ranks,
        placement=placed.after(order, here),
        switch=reporter.note,
    )
