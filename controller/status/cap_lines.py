"""Power caps and demand response as screens and metrics show them.

Invariant: what is shown is what the newest cycle saw, and of it only what still holds or is to
come.
"""

from datetime import datetime

from wattmesh.controller import marks
from wattmesh.controller.cycle.cap_held import announcement, holds_beside, sentence
from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.planner.joint_asking import joint_sentence
from wattmesh.controller.views import AnnouncedCap, CapLine, CapTrigger, DemandLine
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import flags_of


def cap_line(loop_facts: LoopFacts, now: datetime) -> CapLine | None:
    """Show the power cap as the newest cycle keeps it; None: none was in force."""
    report = loop_facts.turned.report if loop_facts.turned else None
    if report is None or report.cap is None:
        return None
    if not report.cap.row.holds(now, loop_facts.trusted.unstepped(now)):
        return None
    shared = joint_sentence(loop_facts.planning().joint, now)
    cap, names = report.cap, {each.run: each.name for each in report.cap.before.runs}
    flags = power_flags(loop_facts)
    return CapLine(
        cap_w=cap.row.cap_w,
        start=cap.row.start,
        until=cap.row.until,
        by=cap.row.by,
        reason=cap.row.reason,
        meets=cap.plan.meets,
        bound_w=cap.plan.bound_w if cap.plan.bound_known else None,
        lowest_w=cap.plan.lowest_w if cap.plan.bound_known else None,
        sentence=marks.sentence(sentence(cap, now) + shared, flags),
        gpus=len(cap.plan.boards),
        deaf=cap.plan.deaf,
        slowed=cap.slowed,
        late=tuple(
            names[each.run]
            for each in report.decisions
            if each.slack_s is not None and each.slack_s < 0
        ),
        flags=flags,
        origin=cap.row.origin.value,
        trigger=_trigger(cap.row),
    )


def announced_caps(loop_facts: LoopFacts, now: datetime) -> tuple[AnnouncedCap, ...]:
    """Show the caps that the newest cycle saw announced, and that have not begun since."""
    rows = loop_facts.turned.report.caps_ahead if loop_facts.turned else ()
    held = loop_facts.turned is not None and loop_facts.turned.report.cap is not None
    shared = "" if held else joint_sentence(loop_facts.planning().joint, now)
    return tuple(
        _shown(row, announcement(row, now) + shared)
        for row in rows
        if row.is_ahead(now, loop_facts.trusted.unstepped(now))
    )


def power_flags(loop_facts: LoopFacts) -> tuple[str, ...]:
    """Give the flags of the newest power readings."""
    sample = loop_facts.sampled.sample if loop_facts.sampled else Sample()
    return flags_of(*(each.quality for each in sample.readings))


def caps_beside(loop_facts: LoopFacts, now: datetime) -> tuple[AnnouncedCap, ...]:
    """Show the caps that the newest cycle saw in force beside a lower one."""
    rows = loop_facts.turned.report.caps_beside if loop_facts.turned else ()
    unstepped = loop_facts.trusted.unstepped(now)
    return tuple(_shown(row, holds_beside(row, now)) for row in rows if row.holds(now, unstepped))


def demand_lines(loop_facts: LoopFacts) -> tuple[DemandLine, ...]:
    """Show what demand response made of its signals in the newest cycle."""
    found = loop_facts.turned.report.demand if loop_facts.turned else ()
    return tuple(
        DemandLine(origin=each.origin.value, sentence=each.sentence, held=each.held)
        for each in found
    )


def _shown(row: CapRow, said: str) -> AnnouncedCap:
    return AnnouncedCap(
        cap_w=row.cap_w,
        start=row.start,
        until=row.until,
        by=row.by,
        reason=row.reason,
        sentence=said,
        origin=row.origin.value,
        trigger=_trigger(row),
    )


def _trigger(row: CapRow) -> CapTrigger | None:
    told = row.trigger
    if told is None:
        return None
    return CapTrigger(
        signal=told.signal,
        unit=told.unit,
        value=told.value,
        threshold=told.threshold,
        issued_at=told.issued_at,
    )
