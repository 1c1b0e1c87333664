"""The port that acts on the live journal: a decision becomes an intent row, which is the order.

I/O out. Invariant: the intent is committed before anything happens, under the leader's epoch. The
run fetches the row itself, so a daemon killed at any moment leaves no order or a complete one.
"""

import logging
import socket
import uuid
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from typing import assert_never

from wattmesh.controller.cycle.clocks import due_clock, has_clocks, lapsed
from wattmesh.controller.cycle.demand_response import DemandResponder
from wattmesh.controller.cycle.isolation import Isolation
from wattmesh.controller.cycle.journal_snapshot import JournalObservation
from wattmesh.controller.cycle.measured_speeds import note_speeds
from wattmesh.controller.cycle.states import OpenSwitch, RunNow, verdict
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import EXPIRED, RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.errors import Fenced, JournalUnavailable, NotSwitched
from wattmesh.policies.decision import Action, Decision, Mode, Observation, Rung
from wattmesh.policies.isolation import UNDECIDABLE
from wattmesh.quantities import duration
from wattmesh.reconfig.catalogue import PAUSED, Catalogue, OperatingPoint
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Order, SwitchMode

log = logging.getLogger(__name__)

LEAST_WAIT_S = 300.0
"""A launch of another size may wait this long at least before one of the old size may begin: to
leave, and some rounds of a scheduler. The guard counts no less for a switch that fails, by default.
"""

BOUNDARIES_VALID = 3
"""An order is void if it is not taken at one of this many boundaries."""

LONGEST_S = 1e9

OPERATOR = "operator"


class JournalActor:
    """Settles, records and orders in the journal, under the epoch of `JournalObservation`."""

    def __init__(self, journal: Journal, isolation: Isolation | None = None) -> None:
        """Take the journal, and the counter of failures that concern one run only."""
        self._journal = journal
        self._isolation = isolation or Isolation()
        self._demand = DemandResponder(journal)

    def settle(self, seen: JournalObservation) -> bool:
        """Close switches that cannot be confirmed, drop clocks that cannot be kept, end lost runs.

        What demand response announces or takes back is written here: decisions count on it.

        Returns:
            Whether anything changed.

        Raises:
            Fenced: another daemon leads by now.
            JournalUnavailable: the database does not answer.
        """
        changed, epoch = False, seen.epoch
        if epoch is None:
            return False
        for row in seen.snapshot.runs:
            with self._isolation.alone(row.run, "settling what is over"):
                changed |= self._expire(row, seen, epoch)
                changed |= self._settle_switch(row, seen, epoch)
                if row.state == "live" or row.clock_mhz is not None:
                    changed |= self._settle_clock(row, seen, epoch)
        return self._demand.carry_out(seen.demand, now=seen.snapshot.now, epoch=epoch) or changed

    def act(self, seen: JournalObservation, decisions: Sequence[Decision]) -> None:
        """Record every decision and measured speed; in mode `act`, carry the decisions out.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
            JournalUnavailable: the database does not answer.
        """
        planned = seen.observation
        self._tell_undecidable(planned, decisions)
        if seen.epoch is None:
            return
        self._note_rung(seen)
        note_speeds(
            self._journal,
            seen.snapshot.live(),
            planned,
            epoch=seen.epoch,
            isolation=self._isolation,
        )
        rows = {row.run: row for row in seen.snapshot.runs}
        recorded = self._recorded(seen, seen.epoch, decisions)
        if planned.mode is not Mode.ACT:
            return
        done = self._clocks_together(seen, seen.epoch, rows, recorded)
        for decision in recorded:
            if decision.run not in done:
                with self._isolation.alone(decision.run, "carrying out what was decided"):
                    row = rows[decision.run]
                    carry_out(self._journal, row, decision, now=seen.snapshot.now, epoch=seen.epoch)

    def _clocks_together(
        self,
        seen: JournalObservation,
        epoch: int,
        rows: Mapping[str, RunRow],
        decisions: Sequence[Decision],
    ) -> Container[str]:
        """Wish for all clocks that were decided, in one transaction; return whose it wished for.

        An announced cap changes the clocks of all runs in one cycle, and a commit takes
        milliseconds. None if one of them cannot be wished for: each by itself then.
        """
        try:
            wishes = {
                each.run: _clock_mhz(rows[each.run], each)
                for each in decisions
                if each.action is Action.CLOCK
            }
            if wishes:
                self._journal.runs.wish_clocks(wishes, now=seen.snapshot.now, epoch=epoch)
        except (JournalUnavailable, Fenced):
            raise
        except Exception:
            return ()
        return wishes

    def _recorded(
        self,
        seen: JournalObservation,
        epoch: int,
        decisions: Sequence[Decision],
    ) -> Sequence[Decision]:
        """Record the decisions, together if possible; return those that were recorded."""

        def record(some: Sequence[Decision]) -> None:
            self._journal.decisions.record(
                some,
                now=seen.snapshot.now,
                epoch=epoch,
                mode=seen.observation.mode,
                forecast=seen.observation.carbon.forecast,
            )

        try:
            record(decisions)
        except (JournalUnavailable, Fenced):
            raise
        except Exception:
            # One of them cannot be written, and took the others with it: each by itself then.
            written = []
            for decision in decisions:
                with self._isolation.alone(decision.run, "recording what was decided"):
                    record([decision])
                    written.append(decision)
            return written
        return decisions

    def _expire(self, row: RunRow, seen: JournalObservation, epoch: int) -> bool:
        """End a run that has been silent for too long; it resumes if it reports again.

        An observed run whose process is seen to have ended is ended as soon as it is lost: the
        kernel ended it, or a signal that its script does not handle, as a scheduler sends it. Other
        runs may be launched again.
        """
        now = seen.snapshot.now
        silent_s = (now - max(row.last_seen_at, row.wakes_at or row.last_seen_at)).total_seconds()
        # If `lost_s` is infinite, no run is ended: no real silence lasts `LONGEST_S`.
        long_silent = silent_s > min(seen.settings.lost_s, LONGEST_S)
        closing = seen.settings.lost_s != inf and row.observed and not row.finish_reason
        if row.state != "lost" or not (long_silent or (closing and self._process_has_ended(row))):
            return False
        reason = f"not heard for {duration(silent_s)}"
        if not long_silent:
            reason = f"its process {row.pid} has ended and did not say how"
        self._journal.runs.end(row.run, EXPIRED + reason, now=now, epoch=epoch)
        log.info("%s: ended, %s", row.name, reason)
        return True

    def _process_has_ended(self, row: RunRow) -> bool:
        """Return whether this daemon saw the run's process on this host, and it is gone."""
        here = row.host == socket.gethostname()
        return here and self._journal.runs.processes.has_ended(row.run, row.pid)

    def _settle_switch(self, row: RunRow, seen: JournalObservation, epoch: int) -> bool:
        """Close an open switch that can no longer be confirmed."""
        if row.run not in seen.snapshot.histories.switching:
            return False
        history = seen.snapshot.histories.of(row.run)
        switch = history.open
        if switch is None:
            return False
        ended = verdict(
            OpenSwitch(
                order=switch.order,
                state=switch.state,
                created_at=switch.created_at,
                begun_at=self._begun_at(row, switch, history.begun_at),
                by_operator=switch.requested_by == OPERATOR,
            ),
            RunNow(
                step=row.step,
                attempt=row.attempt,
                finished=row.state == "finished",
                frozen=row.frozen or seen.snapshot.frozen,
                live=row.state == "live",
                queued=row.state == "queued",
                window_s=BOUNDARIES_VALID * max(1, row.boundary_every) * (row.step_s or 0.0),
            ),
            now=seen.snapshot.now,
            timeout_s=seen.settings.switch_timeout_s,
        )
        if ended is None:
            return False
        self._journal.switches.close(
            switch.switch_id, ended.state, detail=ended.reason, now=seen.snapshot.now, epoch=epoch
        )
        level = logging.WARNING if ended.state is SwitchState.FAILED else logging.INFO
        log.log(level, "%s: switch to %s: %s", row.name, switch.to_point, ended.reason)
        return True

    def _begun_at(
        self, row: RunRow, switch: SwitchRow, begun_at: datetime | None
    ) -> datetime | None:
        """Return when a switch began; None: its order waits.

        A run that was told to leave and is silent may have left, and tell a daemon that was down
        only once it leads again. The wait for another size is no time of a switch.
        """
        if switch.state is SwitchState.ORDERED or begun_at is None:
            return None
        order, leads_since = switch.order, self._journal.runs.liveness.leads_since or begun_at
        if order.mode is SwitchMode.RESIZE:
            arrived_at = row.incarnation_at if row.attempt > order.attempt else begun_at
            return max(begun_at, leads_since, arrived_at)
        silent = order.mode is SwitchMode.SUSPEND and row.state == "lost"
        return max(begun_at, leads_since) if silent else begun_at

    def _settle_clock(self, row: RunRow, seen: JournalObservation, epoch: int) -> bool:
        """Withdraw a clock that cannot be kept; set the clock that a confirmed switch asked for."""
        if not has_clocks(row):
            return False
        frozen, mode = seen.snapshot.frozen, seen.settings.mode
        clock_mhz: int | None = None
        if not lapsed(row, seen.snapshot.fleet.controls, mode=mode, frozen=frozen):
            newest = next(iter(seen.snapshot.histories.of(row.run).rows), None)
            in_force = mode is Mode.ACT and not frozen and not row.frozen
            clock_mhz = due_clock(row, newest) if in_force else row.clock_mhz
        if clock_mhz == row.clock_mhz:
            return False
        self._journal.runs.wish_clocks({row.run: clock_mhz}, now=seen.snapshot.now, epoch=epoch)
        log.info("%s: the clock wished for its GPUs is now %s", row.name, clock_mhz or "none")
        return True

    def _note_rung(self, seen: JournalObservation) -> None:
        """Record the rung that decisions rest on, and since when; the first has no "since"."""
        facts, rung = seen.settings.facts, seen.observation.carbon.rung
        before = seen.snapshot.written_rung or ""
        if facts is None or before == rung or not (before or rung is not Rung.NONE):
            return
        since = seen.snapshot.now if before else None
        self._journal.carbon.stands_on(facts.signal, rung.value, since)

    def _tell_undecidable(self, planned: Observation, decisions: Sequence[Decision]) -> None:
        """Count the runs for which no decision was possible; each cause is logged once."""
        for each in decisions:
            if each.kind == UNDECIDABLE:
                view = next(run for run in planned.runs if run.run == each.run)
                self._isolation.note(each.run, f"{view.name}: {each.reason}")


def carry_out(
    journal: Journal, row: RunRow, decision: Decision, *, now: datetime, epoch: int
) -> None:
    """Carry out one decision; safe to repeat.

    Raises:
        Fenced: another daemon leads by now; nothing was written.
        JournalUnavailable: the intent could not be committed, so nothing happens.
        NotSwitched: it cannot be carried out; the run stays as it is.
    """
    match decision.action:
        case Action.HOLD:
            if row.ordered_point and row.ordered_point == decision.current:
                # The run is already at the point that the operator asked for.
                journal.runs.clear_ordered_point(row.run, row.ordered_point, epoch=epoch)
        case Action.FREEZE:
            journal.runs.freeze(
                row.run, reason=decision.reason, by="wattmesh", now=now, epoch=epoch
            )
        case Action.SWITCH:
            _write_intent_row(journal, row, decision, now=now, epoch=epoch)
        case Action.CLOCK:
            journal.runs.wish_clocks({row.run: _clock_mhz(row, decision)}, now=now, epoch=epoch)
        case Action.SUSPEND:
            _order_sleep(journal, row, decision, now=now, epoch=epoch)
        case Action.RESUME:
            _order_to_wake(journal, row, decision, now=now, epoch=epoch)
        case _:
            assert_never(decision.action)


def _clock_mhz(row: RunRow, decision: Decision) -> int | None:
    """Return the clock that a decision sets; raises as `_catalogue` does."""
    return _catalogue(row, decision).point(decision.target).clock_mhz


def _catalogue(row: RunRow, decision: Decision) -> Catalogue:
    """Return the run's catalogue.

    Raises:
        NotSwitched: the run has none.
    """
    if row.catalogue is None:
        raise NotSwitched(f"to {decision.action} to {decision.target!r} the run has no catalogue")
    return row.catalogue


def _write_intent_row(
    journal: Journal, row: RunRow, decision: Decision, *, now: datetime, epoch: int
) -> None:
    target = _catalogue(row, decision).point(decision.target)
    asked = row.ordered_point == target.id
    order = replace(
        order_where_it_is(row, target.id, _mode(row, target), _reason(row, decision, asked), epoch),
        layout=target.layout,
        ranks=tuple(range(target.layout.world_size)),
        waits_s=_waits_s(row, target),
    )
    _commit(journal, row, decision, order, asked=asked, now=now)


def _order_sleep(
    journal: Journal, row: RunRow, decision: Decision, *, now: datetime, epoch: int
) -> None:
    """Order a run to sleep where it is; an operator's wish stays until the run is awake again."""
    if decision.wakes_at is None:
        raise NotSwitched("nobody said until when it is to sleep")
    asked = row.ordered_point == PAUSED
    reason = _reason(row, decision, asked)
    order = replace(
        order_where_it_is(row, PAUSED, SwitchMode.SUSPEND, reason, epoch),
        wakes_at=decision.wakes_at.isoformat(),
        sleeps_s=max(0.0, (decision.wakes_at - now).total_seconds()),
    )
    _commit(journal, row, decision, order, asked=asked, now=now, keep_wish=True)


def _order_to_wake(
    journal: Journal, row: RunRow, decision: Decision, *, now: datetime, epoch: int
) -> None:
    """Order a run that sleeps to train on, at a point or where it fell asleep."""
    layout, ranks = row.layout, row.ranks
    if decision.target:
        layout = _catalogue(row, decision).point(decision.target).layout
    if layout != row.layout:
        ranks = tuple(range(layout.world_size))
    asked = bool(decision.target) and row.ordered_point == decision.target
    reason = _reason(row, decision, asked)
    order = replace(
        order_where_it_is(row, decision.target, SwitchMode.RESUME, reason, epoch),
        layout=layout,
        ranks=ranks,
        not_before_step=row.step,
        valid_until_step=row.step,
    )
    _commit(journal, row, replace(decision, current=PAUSED), order, asked=asked, now=now)


def order_where_it_is(row: RunRow, point: str, mode: SwitchMode, reason: str, epoch: int) -> Order:
    """Make an order for the layout that a run has, valid at its next boundaries."""
    return Order(
        switch_id=str(uuid.uuid4()),
        epoch=epoch,
        run=row.run,
        attempt=row.attempt,
        point=point,
        layout=row.layout,
        ranks=row.ranks,
        not_before_step=row.step + 1,
        valid_until_step=row.step + BOUNDARIES_VALID * max(1, row.boundary_every),
        mode=mode,
        reason=reason,
    )


def _reason(row: RunRow, decision: Decision, asked: bool) -> str:
    # Keep who asked and why with the switch, because the request is deleted once it is ordered.
    return f"{decision.reason} Asked by {row.ordered_reason}." if asked else decision.reason


def _commit(
    journal: Journal,
    row: RunRow,
    decision: Decision,
    order: Order,
    *,
    asked: bool,
    now: datetime,
    keep_wish: bool = False,
) -> None:
    """Commit the intent row; `asked`: an operator wishes it, and that wish is over unless kept."""
    written = journal.switches.order(
        order,
        from_point=decision.current,
        requested_by=OPERATOR if asked else "policy",
        reason=order.reason,
        predicted_g=decision.predicted_g,
        switch_cost_g=decision.switch_cost_g,
        now=now,
    )
    if written and asked and not keep_wish:
        journal.runs.clear_ordered_point(row.run, row.ordered_point, epoch=order.epoch)


def _mode(row: RunRow, target: OperatingPoint) -> SwitchMode:
    if row.resizes_to(target):
        return SwitchMode.RESIZE
    return rebuilding(row)


def rebuilding(row: RunRow) -> SwitchMode:
    """Return how a run is rebuilt on the GPUs that it has: in its processes, if it can be."""
    return SwitchMode.IN_PLACE if "in_place" in row.capabilities else SwitchMode.RESTART


def _waits_s(row: RunRow, target: OperatingPoint) -> float:
    """Return how long that launch may wait before one of the old size may begin as well.

    That is what the deadline guard counts for it, where that is more than the least.
    """
    if row.catalogue is None or not row.resizes_to(target):
        return 0.0
    return max(row.catalogue.switch.reacquire_s or 0.0, LEAST_WAIT_S)
