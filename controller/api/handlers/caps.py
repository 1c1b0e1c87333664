"""Order, announce, end, withdraw and show power caps.

Invariant: the cap is in the journal, under the leader's epoch, before the answer; the next cycle,
which is woken, limits the boards.
"""

from datetime import datetime, timedelta
from math import isfinite

from wattmesh.controller import marks
from wattmesh.controller.api.request_context import Call, Conflict, RequestContext, moment_of
from wattmesh.controller.cycle.cap_held import CapNow, announcement, expected, sentence
from wattmesh.controller.cycle.capping import apply, boards, shared_boards
from wattmesh.controller.cycle.fences import sentences
from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.controller.status.cap_lines import (
    announced_caps,
    cap_line,
    caps_beside,
    demand_lines,
    power_flags,
)
from wattmesh.controller.views import Done, PowerCap
from wattmesh.errors import InputInvalid, RetryLater
from wattmesh.policies.decision import Mode
from wattmesh.policies.powercap.triggers import TRIGGERED, CapOrigin
from wattmesh.policies.reason_text import moment
from wattmesh.quantities import watts
from wattmesh.reconfig.ranges import shown

MOST_ANNOUNCED = 8
"""Operators' announced caps at a time: every cycle plans each of them over all boards."""


def show(context: RequestContext, call: Call) -> PowerCap:
    """Give the cap in force, and how it is kept."""
    return PowerCap(
        at=context.now,
        cap=cap_line(context.loop_facts, context.now),
        announced=announced_caps(context.loop_facts, context.now),
        beside=caps_beside(context.loop_facts, context.now),
        demand_response=demand_lines(context.loop_facts),
        trouble=_refusing_actuators(context),
    )


def order(context: RequestContext, call: Call) -> Done:
    """Cap the power of all GPUs together until a time; from now, or announced.

    One from now on takes the place of operators' in force; of it and another that is announced, or
    that demand response triggered, the lower holds.
    """
    epoch = context.act()
    call.as_operator(context, "order a power cap")
    days = context.loop_facts.settings.actuator.obligation_days
    cap_w, until = _watts(call), _until(call, context.now, days)
    start = _start(call, context.now, until)
    reason = call.text("reason", default="by hand")
    trial = CapRow(
        id=0, cap_w=cap_w, start=start or context.now, until=until, by=call.who, reason=reason
    )
    planned = _planned(context, trial)
    if start is not None:
        return _announce(context, call, planned, epoch)
    before = context.journal.caps.order(
        cap_w,
        until,
        by=call.who,
        reason=reason,
        now=context.now,
        epoch=epoch,
        unstepped=context.loop_facts.trusted.unstepped(context.now),
    )
    said = marks.sentence(sentence(planned, context.now), power_flags(context.loop_facts))
    context.journal.events.add("power_cap", f"{call.who} ({reason}): {said}", context.now)
    context.wake()
    tail = f" It takes the place of the cap of {watts(before.cap_w)}." if before else ""
    tail += _lower(context, cap_w)
    fenced = "".join(f" {each}" for each in _refusing_actuators(context))
    return Done(
        done=f"{said}{tail} Nodes that answer obey in the next cycle; `wattmesh powercap show` "
        f"follows it.{fenced}",
        changed=tuple(sorted(planned.plan.boards)),
    )


def _announce(context: RequestContext, call: Call, planned: CapNow, epoch: int) -> Done:
    """Write down a cap that begins later.

    Raises:
        Conflict: as many are announced as may be.
    """
    row, caps = planned.row, context.journal.caps
    unstepped = context.loop_facts.trusted.unstepped(context.now)
    ahead = caps.standing(context.now, unstepped).ahead
    if sum(each.origin is CapOrigin.OPERATOR for each in ahead) >= MOST_ANNOUNCED:
        raise Conflict(
            f"{MOST_ANNOUNCED} power caps are announced, and more may not be; "
            "`wattmesh powercap withdraw` takes all of them back."
        )
    caps.announce(row.cap_w, row.start, row.until, by=row.by, reason=row.reason, epoch=epoch)
    said = f"{announcement(row, context.now)} {expected(planned)}"
    said = marks.sentence(said, power_flags(context.loop_facts))
    context.journal.events.add("power_cap", f"{call.who} ({row.reason}): {said}", context.now)
    context.wake()
    fenced = "".join(f" {each}" for each in _refusing_actuators(context))
    return Done(done=f"{said} Deadlines and plans count on it from the next cycle on.{fenced}")


def end(context: RequestContext, call: Call) -> Done:
    """End the caps in force; their boards return to their limits in steps.

    With `triggered` only those that demand response set: they do not come back for their hours.
    """
    epoch = context.act()
    call.as_operator(context, "end a power cap")
    unstepped = context.loop_facts.trusted.unstepped(context.now)
    ended = context.journal.caps.end(
        by=call.who, now=context.now, epoch=epoch, unstepped=unstepped, origins=_origins(call)
    )
    if not ended:
        which = " that demand response triggered" if _origins(call) == TRIGGERED else ""
        return Done(done=f"No power cap{which} is in force.{_still_announced(context)}")
    said = " ".join(
        f"The power cap of {watts(each.cap_w)} until {moment(each.until, context.now)}"
        f"{_by(each)} was ended."
        for each in ended
    )
    context.journal.events.add("power_cap", f"{said[:-1]} by {call.who}.", context.now)
    context.wake()
    return Done(
        done=f"{said} The boards go back in the next cycle, in steps while they are at work. A "
        f"node that cannot be reached keeps it until then.{_still_announced(context)}"
    )


def withdraw(context: RequestContext, call: Call) -> Done:
    """Take back every announced cap that has not begun.

    With `triggered` only those of demand response. Those do not come back for their hours.
    """
    epoch = context.act()
    call.as_operator(context, "withdraw a power cap")
    unstepped = context.loop_facts.trusted.unstepped(context.now)
    rows = context.journal.caps.withdraw(
        by=call.who, now=context.now, epoch=epoch, unstepped=unstepped, origins=_origins(call)
    )
    if not rows:
        which = " by demand response" if _origins(call) == TRIGGERED else ""
        return Done(done=f"No power cap is announced{which}.")
    named = ", ".join(
        f"{watts(row.cap_w)} from {moment(row.start, context.now)}{_by(row)}" for row in rows
    )
    said = f"Announced power caps were withdrawn: {named}"
    context.journal.events.add("power_cap", f"{said}, by {call.who}.", context.now)
    context.wake()
    return Done(done=f"{said}. A cap in force is not ended by this.")


def _still_announced(context: RequestContext) -> str:
    unstepped = context.loop_facts.trusted.unstepped(context.now)
    ahead = context.journal.caps.standing(context.now, unstepped).ahead
    if not ahead:
        return ""
    return f" {announcement(ahead[0], context.now)} `wattmesh powercap withdraw` takes it back."


def _origins(call: Call) -> tuple[CapOrigin, ...]:
    """Read whose caps are meant: all, or those of demand response alone.

    Raises:
        InputInvalid: the field is neither true nor false.
    """
    only = call.body.get("triggered", False)
    if not isinstance(only, bool):
        raise InputInvalid(f'the field "triggered" must be true or false, got {shown(only)}')
    return TRIGGERED if only else tuple(CapOrigin)


def _by(row: CapRow) -> str:
    return "" if row.origin is CapOrigin.OPERATOR else f" (demand response by {row.origin})"


def _lower(context: RequestContext, cap_w: float) -> str:
    """Say that a lower cap holds beside the one that was ordered; "" where none does."""
    unstepped = context.loop_facts.trusted.unstepped(context.now)
    lowest = context.journal.caps.standing(context.now, unstepped).cap
    if lowest is None or lowest.cap_w >= cap_w:
        return ""
    until = moment(lowest.until, context.now)
    return f" Until {until} the lower cap of {watts(lowest.cap_w)}{_by(lowest)} counts."


def _planned(context: RequestContext, row: CapRow) -> CapNow:
    """Plan the cap on what the newest cycle saw.

    Raises:
        Conflict: the cap would have no effect; the sentence says what to do first.
        RetryLater: no cycle has ended yet.
    """
    mode, turned = context.loop_facts.settings.mode, context.loop_facts.turned
    if mode is not Mode.ACT:
        raise Conflict(
            f'The daemon\'s mode is {mode.value}, so no board is limited; set mode = "act" in the '
            "settings and reload it first."
        )
    if turned is None or turned.report.observation is None:
        raise RetryLater("The first control cycle has not ended yet; ask again.")
    report = turned.report
    seen = report.cap.before if report.cap else turned.report.observation
    _, planned = apply(
        seen, row, context.loop_facts.fleet.nodes, context.journal.runs.all(context.now)
    )
    if not planned.obeying and (fenced := _refusing_actuators(context)):
        raise Conflict(f"No board obeys. {' '.join(fenced)}")
    shared = shared_boards(context.loop_facts.fleet.nodes, context.now)
    if not planned.obeying and len(shared) == len(
        boards(context.loop_facts.fleet.nodes, context.now)
    ):
        raise Conflict(
            f"No board obeys: all {len(shared)} GPUs are shared (MIG, or a virtual GPU), and a "
            "shared GPU is read and never set; turn MIG off where a cap is to hold "
            "(docs/safety.md)."
        )
    if not planned.obeying and shared:
        raise Conflict(
            f"No board obeys: {len(shared)} GPUs are shared (MIG, or a virtual GPU), and a shared "
            "GPU is read and never set. For the others no agent that is heard reports an actuator "
            'that acts; set power.source = "agents", and actuator.mode = "enforce" on their nodes '
            "(docs/safety.md)."
        )
    if not planned.obeying:
        raise Conflict(
            "No board obeys: no agent that is heard reports an actuator that acts; set "
            'power.source = "agents", and actuator.mode = "enforce" on the GPU nodes '
            "(docs/safety.md)."
        )
    return planned


def _refusing_actuators(context: RequestContext) -> tuple[str, ...]:
    loop_facts = context.loop_facts
    return sentences(
        loop_facts.fleet.nodes,
        context.now,
        journal=loop_facts.lead.journal,
        epoch=loop_facts.lead.epoch or 0,
    )


def _watts(call: Call) -> float:
    """Read the cap.

    Raises:
        InputInvalid: it is not a finite number of watts above 0.
    """
    value = call.body.get("cap_w")
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputInvalid(f'the field "cap_w" must be a number of watts, got {value!r}')
    if not (isfinite(value) and 0 < value <= 1e12):
        raise InputInvalid(f'the field "cap_w" must be above 0 and finite, got {value!r}')
    return float(value)


def _start(call: Call, now: datetime, until: datetime) -> datetime | None:
    """Read when an announced cap begins; None: at once.

    Raises:
        InputInvalid: it is not a time with a zone, not in the future, or not before the end.
    """
    if "from" not in call.body:
        return None
    text = call.text("from")
    start = moment_of(text, "from")
    if not now < start < until:
        raise InputInvalid(
            f"from={text} must lie between now and the cap's end; leave it out for a cap from now"
        )
    return start


def _until(call: Call, now: datetime, days: float) -> datetime:
    """Read when the cap ends: at most `days` from now, because actuators accept no longer one.

    Raises:
        InputInvalid: it is not a time with a zone, not in the future, or too far away.
    """
    text = call.text("until")
    until = moment_of(text, "until")
    if not now < until <= now + timedelta(days=days):
        raise InputInvalid(
            f"until={text} must lie between now and {days:g} days from now "
            "(actuator.obligation_days): a cap always ends by itself"
        )
    return until
