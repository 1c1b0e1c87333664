"""What a person asks for: freeze, thaw, switch or retire a run.

Invariant: who asked, and why, is in the journal before the answer; nothing here moves a run itself,
the next cycle does.
"""

from datetime import datetime

from wattmesh.controller.api.request_context import (
    NOT_ENDED_FIRST,
    Call,
    Conflict,
    RequestContext,
)
from wattmesh.controller.journal.runs.run_row import AWAY, LIVES
from wattmesh.controller.journal.runs.run_store import RETIRED, RunRow
from wattmesh.controller.views import Done
from wattmesh.errors import InputInvalid
from wattmesh.policies.decision import Mode
from wattmesh.reconfig.catalogue import PAUSED
from wattmesh.reconfig.wire.messages import SUSPENDS


def moment(at: datetime | None) -> str:
    """Write when a run wakes, for a sentence."""
    return f"{at:%a %H:%M} UTC" if at is not None else "a time that is not known"


def freeze(context: RequestContext, call: Call) -> Done:
    """Stop acting on one run, or on all."""
    context.act()
    reason = call.text("reason", default="by hand")
    row = _named(context, call, "freeze")
    context.journal.runs.freeze(
        row.run if row else None, reason=reason, by=call.who, now=context.now
    )
    said = f"{_what(row)} was frozen by {call.who}: {reason}."
    context.changes.ring()
    context.wake()
    context.journal.events.add("freeze", said, context.now)
    if row is None:
        said = (
            f"Froze everything ({reason}): runs train on unswitched and are accounted; end it with "
            "`wattmesh thaw`."
        )
    else:
        said = (
            f"Froze {row.name} ({reason}): {_what_freeze_means(row)}; end it with "
            f"`wattmesh thaw {row.name}`."
        )
    return Done(done=said, changed=(row.run,) if row else ())


def _what(row: RunRow | None) -> str:
    return f"{row.name} ({row.run})" if row else "Everything"


def _what_freeze_means(row: RunRow) -> str:
    if row.state == "finished":
        return "it has ended, and a launch that continues it trains unswitched"
    if row.state == "lost":
        return "it is not heard, and trains unswitched if it still does"
    if row.state == "queued":
        return "it waits for its next launch, which trains on unswitched and is accounted"
    if row.state == "asleep":
        return "it is woken, and then trains on unswitched and is accounted"
    return "it trains on unswitched and is accounted"


def thaw(context: RequestContext, call: Call) -> Done:
    """End a freeze, and forget the failed switches that caused it."""
    context.act()
    row = _named(context, call, "thaw")
    everything = context.journal.runs.frozen_all()
    was_frozen = row.frozen if row else everything
    context.journal.runs.thaw(row.run if row else None, now=context.now)
    held = f"; it was frozen: {was_frozen}" if was_frozen else ""
    said = f"{_what(row)} was thawed by {call.who}{held}."
    context.changes.ring()
    context.wake()
    context.journal.events.add("thaw", said, context.now)
    what = row.name if row else "Everything"
    if not was_frozen:
        done = f"{what} was not frozen; failed switches in a row count from 0 again."
    else:
        done = f"{what} is acted upon again; it was frozen: {was_frozen}."
    if row and everything:
        done += f" But everything is frozen ({everything}): `wattmesh thaw` ends that."
    return Done(done=done, changed=(row.run,) if row else ())


def switch(context: RequestContext, call: Call) -> Done:
    """Order one run to a point of its catalogue."""
    context.act()
    row = context.run(call.path["run"], call.peer)
    call.as_owner(context, row, "switch")
    point, reason = call.text("point"), call.text("reason")
    _check_switchable(context, row, point)
    context.journal.runs.order_point(row.run, point, reason=reason, by=call.who)
    context.wake()
    return Done(
        done=(
            f"Ordered {row.name} to {point}: {_when(row, point)}, if the deadline guard permits; "
            "follow it with `wattmesh status`."
        ),
        changed=(row.run,),
    )


def retire(context: RequestContext, call: Call) -> Done:
    """Stop following a run; its rows stay."""
    epoch = context.act()
    if context.journal.runs.unreadable(call.path["run"]):
        return _retire_unread(context, call, epoch)
    row = context.run(call.path["run"], call.peer, NOT_ENDED_FIRST)
    call.as_owner(context, row, "retire")
    if row.state == "finished":
        return Done(done=f"{row.name} has ended already ({row.finish_reason}).")
    reason = call.text("reason", default="by hand")
    context.journal.runs.end(
        row.run, f"{RETIRED}{call.who}: {reason}", now=context.now, epoch=epoch
    )
    said = f"{row.name} ({row.run}) was retired by {call.who}: {reason}."
    context.journal.events.add("retired", said, context.now)
    context.changes.ring()
    context.wake()
    still = ""
    if row.state == "live" and not row.ending:
        still = "; its job still runs and is not measured any more"
    elif row.state in AWAY:
        still = (
            f"; {row.held_as or 'its launcher'} starts it again at {moment(row.wakes_at)} all the "
            "same, unless it is ended there"
        )
    return Done(
        done=f"Retired {row.name} ({row.run}){still}: its rows stay, and a new launch takes it "
        "up again.",
        changed=(row.run,),
    )


def _retire_unread(context: RequestContext, call: Call, epoch: int) -> Done:
    """End a run whose row cannot be read; only operators may, because its owner is unknown."""
    run = call.path["run"]
    call.as_operator(context, f"retire {run}, whose row cannot be read,")
    reason = call.text("reason", default="its row cannot be read")
    context.journal.runs.end(run, f"{RETIRED}{call.who}: {reason}", now=context.now, epoch=epoch)
    context.journal.events.add(
        "retired", f"{run} was retired by {call.who}: {reason}.", context.now
    )
    context.wake()
    return Done(done=f"Retired {run}: its rows stay.", changed=(run,))


def _when(row: RunRow, point: str) -> str:
    """Say when an order is carried out: a clock needs no boundary, nor does a run that sleeps."""
    if row.state in AWAY:
        return _when_back(row, point)
    if point == PAUSED:
        return (
            "it goes to sleep at a coming boundary until its alarm, or `wattmesh switch "
            f"{row.name} POINT`, wakes it"
        )
    target = row.catalogue.point(point) if row.catalogue is not None else None
    if target is not None and target.layout == row.layout:
        return "the clock of its GPUs is set in the next cycle"
    every = f" (every {row.boundary_every} steps)" if row.boundary_every else ""
    if target is not None and row.resizes_to(target):
        ranks = target.layout.world_size
        return f"it leaves at a coming boundary{every}, and a job of {ranks} ranks goes on"
    return f"it switches at a coming boundary{every}"


def _when_back(row: RunRow, point: str) -> str:
    """Say when a run that has left carries an order out."""
    if row.state == "queued":
        return "it is looked at again once its next launch trains"
    if point == PAUSED:
        return f"it sleeps on until {moment(row.wakes_at)}"
    return "it is woken there as soon as its launcher asks for orders"


def _named(context: RequestContext, call: Call, act: str) -> RunRow | None:
    """Find the run that the body names; None means everything, which only operators may ask."""
    name = call.body.get("run")
    if name is None:
        call.as_operator(context, f"{act} everything")
        return None
    row = context.run(call.text("run"), call.peer)
    call.as_owner(context, row, act)
    return row


def _check_switchable(context: RequestContext, row: RunRow, point: str) -> None:
    """Refuse an order that could never be carried out.

    Raises:
        Conflict: something has to be done first; the sentence says what.
        InputInvalid: the run cannot be switched, or has no such point.
    """
    if row.observed:
        raise InputInvalid(
            f"{row.name} is only observed, so nothing can be switched; `wattmesh.attach` in its "
            "script lets it be moved"
        )
    if row.catalogue is None:
        raise InputInvalid(
            f"{row.name} has no catalogue, so there is no point to switch to; name one in "
            f"runs.{row.name}.catalogue and restart the run"
        )
    if point != PAUSED:
        row.catalogue.point(point)
    elif SUSPENDS not in row.capabilities:
        raise InputInvalid(
            f"{row.name} cannot sleep, because nobody holds its next launch meanwhile: start it "
            "with `python -m wattmesh.integrations.torchrun`"
        )
    check_acted_on(context, row)


def check_acted_on(context: RequestContext, row: RunRow) -> None:
    """Refuse an order that the daemon's mode, a freeze or the run's state would leave undone.

    Raises:
        Conflict: something has to be done first; the sentence says what.
    """
    mode = context.loop_facts.settings.mode
    frozen = row.frozen or context.journal.runs.frozen_all()
    if mode is not Mode.ACT:
        raise Conflict(
            f"The daemon's mode is {mode.value}, so no switch is carried out; set mode = "
            '"act" in the settings and reload it first.'
        )
    if frozen:
        raise Conflict(f"{row.name} is frozen ({frozen}); thaw it first.")
    if row.state not in LIVES:
        raise Conflict(f"{row.name} is {row.state}; only a run that reports can be switched.")
