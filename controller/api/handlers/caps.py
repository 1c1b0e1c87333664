"""Order, end and show the operators' power cap.

Invariant: the cap is in the journal, under the leader's epoch, before the answer; the next cycle,
which is woken, limits the boards.
"""

from datetime import datetime, timedelta
from math import isfinite

from wattmesh.controller import marks
from wattmesh.controller.api.request_context import Call, Conflict, RequestContext
from wattmesh.controller.cycle.cap_held import CapNow, sentence
from wattmesh.controller.cycle.capping import apply, boards, shared_boards
from wattmesh.controller.cycle.fences import sentences
from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.controller.status.status import cap_line, power_flags
from wattmesh.controller.views import Done, PowerCap
from wattmesh.errors import InputInvalid, RetryLater
from wattmesh.policies.decision import Mode
from wattmesh.policies.words import moment
from wattmesh.quantities import watts


def show(context: RequestContext, call: Call) -> PowerCap:
    """Give the cap in force, and how it is kept."""
    return PowerCap(
        at=context.now,
        cap=cap_line(context.pulse, context.now),
        trouble=_refusing_actuators(context),
    )


def order(context: RequestContext, call: Call) -> Done:
    """Cap the power of all GPUs together until a time; this replaces an earlier cap."""
    epoch = context.act()
    call.as_operator(context, "order a power cap")
    days = context.pulse.settings.actuator.obligation_days
    cap_w, until = _watts(call), _until(call, context.now, days)
    reason = call.text("reason", default="by hand")
    trial = CapRow(id=0, cap_w=cap_w, start=context.now, until=until, by=call.who, reason=reason)
    expected = _expected(context, trial)
    before = context.journal.caps.order(
        cap_w,
        until,
        by=call.who,
        reason=reason,
        now=context.now,
        epoch=epoch,
        unstepped=context.pulse.trusted.unstepped(context.now),
    )
    said = marks.sentence(sentence(expected, context.now), power_flags(context.pulse))
    context.journal.events.add("power_cap", f"{call.who} ({reason}): {said}", context.now)
    context.wake()
    tail = f" It takes the place of the cap of {watts(before.cap_w)}." if before else ""
    fenced = "".join(f" {each}" for each in _refusing_actuators(context))
    return Done(
        done=f"{said}{tail} Nodes that answer obey in the next cycle; `wattmesh powercap show` "
        f"follows it.{fenced}",
        changed=tuple(sorted(expected.plan.boards)),
    )


def end(context: RequestContext, call: Call) -> Done:
    """End the cap in force; its boards return to their limits in steps."""
    epoch = context.act()
    call.as_operator(context, "end a power cap")
    unstepped = context.pulse.trusted.unstepped(context.now)
    ended = context.journal.caps.end(by=call.who, now=context.now, epoch=epoch, unstepped=unstepped)
    if ended is None:
        return Done(done="No power cap is in force.")
    until = moment(ended.until, context.now)
    said = f"The power cap of {watts(ended.cap_w)} until {until} was ended"
    context.journal.events.add("power_cap", f"{said} by {call.who}.", context.now)
    context.wake()
    return Done(
        done=f"{said}; the boards go back in the next cycle, in steps while they are at work. A "
        "node that cannot be reached keeps it until then."
    )


def _expected(context: RequestContext, row: CapRow) -> CapNow:
    """Plan the cap on what the newest cycle saw.

    Raises:
        Conflict: the cap would have no effect; the sentence says what to do first.
        RetryLater: no cycle has ended yet.
    """
    mode, turned = context.pulse.settings.mode, context.pulse.turned
    if mode is not Mode.ACT:
        raise Conflict(
            f'The daemon\'s mode is {mode.value}, so no board is limited; set mode = "act" in the '
            "settings and reload it first."
        )
    if turned is None or turned.report.observation is None:
        raise RetryLater("The first control cycle has not ended yet; ask again.")
    report = turned.report
    seen = report.cap.before if report.cap else turned.report.observation
    _, expected = apply(seen, row, context.pulse.fleet.nodes, context.journal.runs.all(context.now))
    if not expected.obeying and (fenced := _refusing_actuators(context)):
        raise Conflict(f"No board obeys. {' '.join(fenced)}")
    shared = shared_boards(context.pulse.fleet.nodes, context.now)
    if not expected.obeying and len(shared) == len(boards(context.pulse.fleet.nodes, context.now)):
        raise Conflict(
            f"No board obeys: all {len(shared)} GPUs are shared (MIG, or a virtual GPU), and a "
            "shared GPU is read and never set; turn MIG off where a cap is to hold "
            "(docs/safety.md)."
        )
    if not expected.obeying and shared:
        raise Conflict(
            f"No board obeys: {len(shared)} GPUs are shared (MIG, or a virtual GPU), and a shared "
            "GPU is read and never set. For the others no agent that is heard reports an actuator "
            'that acts; set power.source = "agents", and actuator.mode = "enforce" on their nodes '
            "(docs/safety.md)."
        )
    if not expected.obeying:
        raise Conflict(
            "No board obeys: no agent that is heard reports an actuator that acts; set "
            'power.source = "agents", and actuator.mode = "enforce" on the GPU nodes '
            "(docs/safety.md)."
        )
    return expected


def _refusing_actuators(context: RequestContext) -> tuple[str, ...]:
    pulse = context.pulse
    return sentences(
        pulse.fleet.nodes, context.now, journal=pulse.lead.journal, epoch=pulse.lead.epoch or 0
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


def _until(call: Call, now: datetime, days: float) -> datetime:
    """Read when the cap ends: at most `days` from now, because actuators accept no longer one.

    Raises:
        InputInvalid: it is not a time with a zone, not in the future, or too far away.
    """
    text = call.text("until")
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        until = datetime.min
    if until.tzinfo is None:
        raise InputInvalid(f"until={text!r} is not a time; write 2026-12-01T18:00:00Z")
    if not now < until <= now + timedelta(days=days):
        raise InputInvalid(
            f"until={text} must lie between now and {days:g} days from now "
            "(actuator.obligation_days): a cap always ends by itself"
        )
    return until
