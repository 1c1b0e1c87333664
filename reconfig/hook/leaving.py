"""Leaves the present generation: for another layout, for sleep, for another size, or for good.

A checkpoint has been saved, and all ranks have agreed; each calls the same method.

Invariant: a generation is left only for one whose checkpoint is named in it, and a launch only once
the next one is asked for, or held.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from wattmesh.reconfig.client.orderbook import OrderBook
from wattmesh.reconfig.hook import placed
from wattmesh.reconfig.hook.background_fsync import SavedCheckpoint
from wattmesh.reconfig.hook.job import AttachedJob, Evidence, SwitchReporter
from wattmesh.reconfig.hook.launching import sleep
from wattmesh.reconfig.hook.rank_runner import RankRunner
from wattmesh.reconfig.hook.reports import switch_line
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.failures.deadlines import Phase
from wattmesh.reconfig.launch.generation import Generation, Outcome, Purpose
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.held import LIVE_SHARE
from wattmesh.reconfig.switch import REFUSED, SwitchState
from wattmesh.reconfig.wire.messages import Finish, Order, SwitchMode

log = logging.getLogger(__name__)

MOST_SAID = 200
"""Characters of a launcher's refusal that go into the evidence of a switch."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """One rank that leaves its generation at a position."""

    job: AttachedJob
    runner: RankRunner
    orders: OrderBook
    position: Position

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Let the watchdog know what is done here, so that it knows how long that may take."""
        generation = self.runner.generation
        number = generation.number if generation else 0
        return self.job.watchdog.phase(phase, generation=number, step=self.position.step)

    def by(
        self,
        reporter: SwitchReporter,
        order: Order,
        saved: SavedCheckpoint,
        loss: float | None,
        short: str,
    ) -> Callable[[], None] | None:
        """Carry out an order; a switch in place is given back, to be called when it may be.

        `short`: which resource the ordered layout would run out of here.
        """
        if order.mode in (SwitchMode.SUSPEND, SwitchMode.RESIZE):
            self._hand_over(reporter, order, saved, loss)
        elif order.mode is SwitchMode.RESTART or (short and self.job.relaunched):
            self._restart(reporter, order, saved, loss, short or "the order asks for it")
        elif short:
            if self.job.leads(reporter.generation):
                log.error("no switch to %s: %s", order.layout, short)
            reporter.tell(SwitchState.ROLLED_BACK, detail=f"not begun: {short}")
            self.orders.end()
        else:
            return partial(self._rebuild, reporter, order, saved, loss)
        return None

    def _rebuild(
        self, reporter: SwitchReporter, order: Order, saved: SavedCheckpoint, loss: float | None
    ) -> None:
        """Tear down, and follow the ordered layout's generation, or that of the one before."""
        reporter.tell(SwitchState.REBUILDING)
        began = time.monotonic()
        if self.runner.ask_to_keep(order.layout, order.ranks):
            reporter.note.evidence["kept"] = "groups and compiled code"
        held = self._tear_down(reporter)
        reporter.note.evidence["teardown_s"] = round(time.monotonic() - began, 4)
        if held and self.job.relaunched:
            self._restart(reporter, order, saved, loss, held)
            return
        self._follow(_next_generation(reporter, order, saved, self.position, held), reporter)

    def _tear_down(self, reporter: SwitchReporter) -> str:
        """Empty every rank's state; say what keeps more than `LIVE_SHARE` of it alive, else ""."""
        with self.phase(Phase.TEARDOWN):
            share, name = self.runner.tear_down()
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
            if self.job.leads(reporter.generation):
                step, elapsed_s = self.position.step, reporter.elapsed_s
                log.warning("%s", switch_line.taken_back(reporter.note, step, elapsed_s, why))
            reporter.tell(SwitchState.ROLLING_BACK, detail=why)
        if self.job.leads(reporter.generation):
            self.job.launch_store.publish(following)
        self.runner.end_group()
        self.runner.follow(following.number)

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
        if self.job.leads(generation):
            log.warning(
                "the switch from %s to %s goes by restart: %s; the next launch says how it ended",
                generation.layout,
                order.layout,
                why,
            )
        reporter.tell(SwitchState.STOPPING, detail=why)
        if saved.staged:
            with self.phase(Phase.SAVE):
                self.runner.fsync.settle_for_restart(generation, saved.staged)
        if self.job.leads(generation):
            self.job.folder.ask_next(
                checkpoint=saved.name,
                layout=order.layout,
                ranks=order.ranks,
                probe=float(reporter.note.evidence["probe_before"]),
                switch=reporter.note.to_json(),
                placement=placed.after(order, generation),
            )
        self.end(Outcome.RESTART, f"restart into {order.layout}", loss)

    def _hand_over(
        self, reporter: SwitchReporter, order: Order, saved: SavedCheckpoint, loss: float | None
    ) -> None:
        """Leave to sleep or for another size, or train on where no next launch is held."""
        leads, answer = self.job.leads(reporter.generation), None
        sleeps = order.mode is SwitchMode.SUSPEND
        order = (sleep.bounded if sleeps else sleep.patient)(order, datetime.now(UTC))
        hold = sleep.hold_next_launch if sleeps else sleep.hold_other_size
        with self.phase(Phase.SAVE):
            if leads:
                answer = hold(self.job, reporter, order, saved)
            told = group.agree_on_problem(answer.problem if answer else "")
        held_as = answer.held_as if answer else ""
        if told:
            kept = "not asleep" if sleeps else f"still {reporter.generation.layout}"
            if leads:
                log.error("training goes on: %s, because %s", kept, told)
            said = answer.problem if answer and answer.problem else told
            refused: Evidence = {REFUSED: said[:MOST_SAID]}
            reporter.tell(SwitchState.ROLLED_BACK, detail=f"{kept}: {told}", evidence=refused)
            self.orders.end()
            return
        reporter.tell(SwitchState.STOPPING, detail=f"the next launch is held by {held_as}")
        if not sleeps:
            self.end(
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
            self.orders.end()
            log.warning("%s", switch_line.asleep(reporter.generation.step, order, held_as))
        self.end(
            Outcome.SUSPENDED,
            f"until {order.wakes_at}",
            loss,
            wakes_at=order.wakes_at,
            held_as=held_as,
        )

    def end(
        self,
        outcome: Outcome,
        detail: str,
        loss: float | None,
        *,
        wakes_at: str | None = None,
        held_as: str = "",
    ) -> None:
        """End training in this launch: tell the daemon, and publish a final generation."""
        generation = self.runner.generation
        assert generation is not None
        position = self.position
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
        if self.job.leads(generation):
            with suppress(OSError):
                self.job.folder.stop_file.unlink(missing_ok=True)
            self.job.voice().finish(
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
            self.job.launch_store.publish(over)
        self.runner.generation = over


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
