"""Act: a decision becomes an intent row, and the intent row is the order. I/O out.

Invariant: intent is committed before anything happens, under the epoch of the leader; the run
fetches the row itself, so a daemon killed at any moment leaves either no order or a whole one.
"""

import logging
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from wattmesh.controller.cycle.clocks import Controls, due_clock, has_clocks, lapsed
from wattmesh.controller.cycle.states import OpenSwitch, RunNow, verdict
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.errors import NotSwitched
from wattmesh.policies.decision import SUSPENDS, Action, Decision, Mode
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire import Order, SwitchMode

log = logging.getLogger(__name__)

BOUNDARIES_VALID = 3
"""An order not taken at one of this many boundaries is void."""

OPERATOR = "operator"


def settle(journal: Journal, row: RunRow, *, now: datetime, epoch: int, timeout_s: float) -> None:
    """Give up on an open switch that cannot be confirmed any more."""
    switch = journal.switches.open(row.run)
    if switch is None:
        return
    ended = verdict(
        OpenSwitch(
            order=switch.order,
            state=switch.state,
            created_at=switch.created_at,
            begun_at=_begun_at(journal, switch),
            asked=switch.requested_by == OPERATOR,
        ),
        RunNow(
            step=row.step,
            attempt=row.attempt,
            finished=row.state == "finished",
            frozen=row.frozen or journal.runs.frozen_all(),
            live=row.state == "live",
            window_s=BOUNDARIES_VALID * max(1, row.boundary_every) * (row.step_s or 0.0),
        ),
        now=now,
        timeout_s=timeout_s,
    )
    if ended is not None:
        journal.switches.close(switch.plan, ended.state, detail=ended.reason, now=now, epoch=epoch)
        level = logging.WARNING if ended.state is SwitchState.FAILED else logging.INFO
        log.log(level, "%s: switch to %s: %s", row.name, switch.to_point, ended.reason)


def _begun_at(journal: Journal, switch: SwitchRow) -> datetime | None:
    """When the run said that it took the order; None while the order waits."""
    if switch.state is SwitchState.ORDERED:
        return None
    return min((each.at for each in journal.switches.transitions(switch.plan)), default=None)


def settle_clock(
    journal: Journal,
    row: RunRow,
    controls: Controls,
    *,
    now: datetime,
    epoch: int,
    mode: Mode,
    frozen: str,
) -> None:
    """Take back a clock that cannot be kept; let the clock follow a confirmed switch."""
    if not has_clocks(row):
        return
    clock_mhz: int | None = None
    if not lapsed(row, controls, mode=mode, frozen=frozen):
        newest = next(iter(journal.switches.history(row.run, limit=1)), None)
        in_force = mode is Mode.ACT and not frozen and not row.frozen
        clock_mhz = due_clock(row, newest) if in_force else row.clock_mhz
    if clock_mhz != row.clock_mhz:
        journal.runs.wish_clock(row.run, clock_mhz, now=now, epoch=epoch)
        log.info("%s: the clock wished for its GPUs is now %s", row.name, clock_mhz or "none")


def carry_out(
    journal: Journal, row: RunRow, decision: Decision, *, now: datetime, epoch: int
) -> None:
    """Do what one decision asks for; safe to repeat.

    Raises:
        Fenced: another daemon leads by now; nothing was written.
        JournalUnavailable: the intent could not be committed, so nothing happens.
        NotSwitched: nobody can carry it out; the run stays as it is.
    """
    match decision.action:
        case Action.HOLD:
            if row.ordered_point and row.ordered_point == decision.current:
                # The run is where it was asked to be: the wish binds nobody any longer.
                journal.runs.clear_ordered_point(row.run, row.ordered_point)
        case Action.FREEZE:
            journal.runs.freeze(row.run, reason=decision.reason, by="wattmesh", now=now)
        case Action.SWITCH:
            _order(journal, row, decision, now=now, epoch=epoch)
        case Action.CLOCK:
            clock_mhz = _catalogue(row, decision).point(decision.target).clock_mhz
            journal.runs.wish_clock(row.run, clock_mhz, now=now, epoch=epoch)
        case Action.SUSPEND | Action.RESUME:
            raise NotSwitched(f"no launcher here can {decision.action} a run")
        case _:
            assert_never(decision.action)


def can_be_carried_out(capabilities: Iterable[str]) -> tuple[str, ...]:
    """Give what a run can do, without what nobody here would carry out: then it is not decided."""
    return tuple(each for each in capabilities if each != SUSPENDS)


def _catalogue(row: RunRow, decision: Decision) -> Catalogue:
    """Give the catalogue in which a decision's target stands."""
    if row.catalogue is None:
        raise NotSwitched(f"to {decision.action} to {decision.target!r} the run has no catalogue")
    return row.catalogue


def _order(journal: Journal, row: RunRow, decision: Decision, *, now: datetime, epoch: int) -> None:
    """Write the intent row of a switch; the run will fetch it as its order."""
    target = _catalogue(row, decision).point(decision.target)
    asked = row.ordered_point == target.id
    # Who asked and why belongs to the switch; the wish itself is forgotten once it is carried out.
    reason = f"{decision.reason} Asked by {row.ordered_reason}." if asked else decision.reason
    order = Order(
        plan=str(uuid.uuid4()),
        epoch=epoch,
        run=row.run,
        attempt=row.attempt,
        point=target.id,
        layout=target.layout,
        ranks=tuple(range(target.layout.world_size)),
        not_before_step=row.step + 1,
        valid_until_step=row.step + BOUNDARIES_VALID * max(1, row.boundary_every),
        mode=_mode(row),
        reason=reason,
    )
    written = journal.switches.order(
        order,
        from_point=decision.current,
        requested_by=OPERATOR if asked else "policy",
        reason=reason,
        predicted_g=decision.predicted_g,
        switch_cost_g=decision.switch_cost_g,
        now=now,
    )
    if written and asked:
        journal.runs.clear_ordered_point(row.run, row.ordered_point)


def _mode(row: RunRow) -> SwitchMode:
    """In place when the run can; else by restart."""
    return SwitchMode.IN_PLACE if "in_place" in row.capabilities else SwitchMode.RESTART
