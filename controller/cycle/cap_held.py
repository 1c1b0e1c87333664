"""How a power cap is kept: the leases for boards, and the sentence for people. Pure.

Invariant: everything about a cap follows from one plan, so that boards, screens and the journal
never disagree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.policies.decision import Observation
from wattmesh.policies.powercap.powercap import BoardTarget, Capping
from wattmesh.policies.powercap.triggers import CapOrigin, TriggerFacts
from wattmesh.policies.reason_text import moment
from wattmesh.quantities import figures, watts
from wattmesh.telemetry.desired import LeaseKind, Wish

HOLDER = "power-cap"
"""Holder of the obligation leases of a power cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapNow:
    """A cap in force and how it is kept.

    Attributes:
        before: what the cycle saw, without the cap.
        slowed: the point that each slowed run left for the cap, by the run's name.
        obeying: how many boards obey.
        unreported: GPUs that runs name and no node reports: their power is neither known nor
            capped.
        kept_until: how long boards keep it if nobody leads by then: an operator's cap that lasts
            longer has no lease of its own beside this one. None: until its own end.
    """

    row: CapRow
    plan: Capping
    before: Observation
    slowed: Mapping[str, str] = field(default_factory=dict)
    obeying: int = 0
    unreported: tuple[str, ...] = ()
    kept_until: datetime | None = None


def lasting(row: CapRow, beside: Iterable[CapRow]) -> datetime:
    """Say until when boards keep the lowest cap if nobody leads any more.

    A board has one obligation. What an operator ordered for longer would end with a lower cap
    beside it, had the lower one only its own end; so boards stay lower, and no cap is broken.
    """
    others = (each.until for each in beside if each.origin is CapOrigin.OPERATOR)
    return max((row.until, *others))


def following(row: CapRow, beside: Iterable[CapRow]) -> tuple[CapRow, ...]:
    """Give what holds once the lowest cap has ended: the others, each from there on."""
    found: list[CapRow] = []
    until = row.until
    for each in beside:
        if each.until > until:
            found.append(replace(each, start=until))
            until = each.until
    return tuple(found)


def obligations(now: CapNow | None, gpus: Iterable[str]) -> dict[str, Wish]:
    """Return the leases of a cap for some GPUs; they last as long as the cap, whoever dies."""
    if now is None:
        return {}
    found = {}
    for gpu in gpus:
        lowered = now.plan.boards.get(gpu, BoardTarget())
        if lowered != BoardTarget():
            found[gpu] = Wish(
                gpu_uuid=gpu,
                kind=LeaseKind.OBLIGATION,
                holder=HOLDER,
                clock_mhz=lowered.clock_mhz,
                cap_w=lowered.cap_w,
                until=now.kept_until or now.row.until,
            )
    return found


def sentence(now: CapNow, at: datetime) -> str:
    """Say how a cap is kept, or why it is not, and what is not known of which GPUs."""
    said = _how_kept(now, at)
    if now.plan.untold and not now.plan.bound_known:
        said += (
            f" No node tells the power limit of {_named(now.plan.untold)}: see whether their "
            "drivers report a limit."
        )
    elif now.plan.untold:
        said += (
            f" No node tells the power limit of {_named(now.plan.untold)}; a GPU without one "
            "counts like the largest limit, or measured draw, that is known: see whether its "
            "driver reports a limit."
        )
    if now.unreported:
        said += (
            f" It does not know of {_named(now.unreported)}, which runs name and no node reports; "
            "start `wattmesh agent` where they are, or see whether they exist."
        )
    return said


def announcement(row: CapRow, at: datetime) -> str:
    """Say when an announced cap holds."""
    by = "" if row.trigger is None else f", triggered by {row.origin},"
    return (
        f"A power cap of {watts(row.cap_w)}{by} is announced from {moment(row.start, at)} until "
        f"{moment(row.until, at)}."
    )


def holds_beside(row: CapRow, at: datetime) -> str:
    """Say that a cap holds which a lower one stands before."""
    return (
        f"A power cap of {watts(row.cap_w)} until {moment(row.until, at)} holds beside it, and "
        "counts where no lower one does."
    )


def trigger_sentence(trigger: TriggerFacts, at: datetime) -> str:
    """Say why demand response set a cap: value, threshold, signal, issue time."""
    issued = f", issued {moment(trigger.issued_at, at)}" if trigger.issued_at else ""
    return (
        f"{figures(trigger.value)} {trigger.unit} on average, at or above "
        f"{figures(trigger.threshold)} {trigger.unit} ({trigger.signal}{issued})"
    )


def expected(now: CapNow) -> str:
    """Say whether an announced cap could be kept, were it to begin now."""
    plan = now.plan
    if not plan.bound_known:
        return "Whether it can be kept is unknown: no GPU's limit is known."
    if plan.meets:
        slowed = f" and slow {len(now.slowed)} of the runs down" if now.slowed else ""
        return f"As things are now it would hold {len(plan.boards)} GPUs lower{slowed}."
    return (
        f"As things are now it could not be kept: the lowest that can be reached is "
        f"{watts(plan.lowest_w)}."
    )


def _named(gpus: Sequence[str]) -> str:
    """Name the first of some GPUs, and count the others."""
    more = len(gpus) - 1
    return f"{gpus[0]} and {more} more GPU{'s' if more > 1 else ''}" if more else gpus[0]


def _how_kept(now: CapNow, at: datetime) -> str:
    plan, row = now.plan, now.row
    until = moment(row.until, at)
    what = f"The power cap of {watts(row.cap_w)} until {until}"
    count = len(plan.boards)
    if not plan.bound_known:
        return f"Whether {what[0].lower()}{what[1:]} is kept is unknown: no GPU's limit is known."
    if plan.meets and not count:
        return f"{what} is kept as things are: all GPUs together may draw {watts(plan.bound_w)}."
    slowed = f", {len(now.slowed)} of the runs slowed down" if now.slowed else ""
    if plan.meets:
        return f"{what} holds {count} GPUs at {watts(plan.bound_w)} at most{slowed}."
    why = f"the lowest that can be reached is {watts(plan.lowest_w)}"
    if plan.deaf:
        why += f", and {len(plan.deaf)} GPUs obey no actuator and count in full "
        why += f"({plan.deaf[0]}, ...)"
    return (
        f"{what} cannot be kept: GPUs may still draw {watts(plan.bound_w)}, {why}; stop a run, "
        "raise the cap, or let the actuators of more nodes act."
    )
