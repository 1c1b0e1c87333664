"""The report of a month and of a run, and two acts: plan a budget anew, open a closed month again.

Invariant: a report only reads. A new plan is kept beside the one before it, and the figures that a
month was closed with beside the present ones, with who asked.
"""

from dataclasses import replace
from datetime import UTC, datetime

from wattmesh.controller.accounting.budget import boundary, run_budget
from wattmesh.controller.accounting.budgets.periods import month_named, period_of
from wattmesh.controller.accounting.report.month import report
from wattmesh.controller.accounting.report.one_run import RunReport, stretches
from wattmesh.controller.accounting.report.reported import plans_of, reported
from wattmesh.controller.accounting.report.views import MonthReport
from wattmesh.controller.accounting.saving import run_saving
from wattmesh.controller.api.handlers.reading import decisions_and_switches
from wattmesh.controller.api.request_context import Call, Conflict, NotFound, RequestContext
from wattmesh.controller.journal.energy.run_slots import run_slots
from wattmesh.controller.status.status import run_line, why_unread
from wattmesh.controller.views import Done
from wattmesh.errors import InputInvalid
from wattmesh.quantities import grams

EVER = (datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))

MOST_SWITCHES = 100
"""Switches that the report of a run tells, the newest."""


def month(context: RequestContext, call: Call) -> MonthReport:
    """Report a month: joules and grams of runs and lines, in every scenario."""
    settings, now = context.loop_facts.settings, context.now
    zone, name = settings.site.timezone, call.query.get("month")
    period = month_named(name, zone) if name else period_of(now, "month", zone)
    if period.start > now:
        raise InputInvalid(f"{period.name} has not begun; the present month is the newest")
    return report(context.journal, period, reported(settings, context.loop_facts.signals), now)


def one_run(context: RequestContext, call: Call) -> RunReport:
    """Report one run: what it spent and saved, and when."""
    row, journal = context.run(call.path["run"], call.peer), context.journal
    pue = context.loop_facts.settings.site.pue_milli() / 1000
    totals = journal.ledger.between(*EVER, row.run)
    spent = run_budget(journal, row, totals, run_saving(journal, row), pue=pue)
    if spent.energy_j is None:
        spent = replace(spent, unread=why_unread(context.loop_facts, row))
    slots = run_slots(journal.database, row.run)
    return RunReport(
        at=context.now,
        line=run_line(journal, context.loop_facts, row, context.now),
        spent=spent,
        boundary=boundary(pue),
        registered_at=row.registered_at,
        finished_at=row.finished_at,
        finish_reason=row.finish_reason,
        observed=row.observed,
        stretches=stretches(slots, one_signal=len(spent.carbon) <= 1),
        switches=tuple(decisions_and_switches(context, row, MOST_SWITCHES)[1]),
    )


def reopen(context: RequestContext, call: Call) -> Done:
    """Reopen a month that was closed wrongly; the old figures are kept, with who did it."""
    epoch = context.act()
    call.as_operator(context, "open a closed month again")
    zone, now = context.loop_facts.settings.site.timezone, context.now
    name, reason = month_named(call.path["month"], zone).name, call.text("reason")
    done = context.journal.budgets.reopen(
        name, zone, by=call.who, reason=reason, now=now, epoch=epoch
    )
    if not done:
        raise Conflict(f"{name} ({zone}) is not closed, so it cannot be reopened.")
    said = f"{name} ({zone}) was reopened by {call.who}: {reason}."
    context.journal.events.add("reopened", said, now)
    known = context.loop_facts.budgets
    ahead = tuple(each for each in known.sealed_ahead if each != name)
    context.loop_facts.budgets = replace(known, sealed_ahead=ahead)
    return Done(
        done=f"Reopened {name}: the old figures stay in its report and in audits, and it "
        "is closed again 48 h after its end, once nothing in it is provisional.",
        changed=(name,),
    )


def replan(context: RequestContext, call: Call) -> Done:
    """Plan the rest of a budget's period anew, and accept what was spent so far."""
    context.act()
    call.as_operator(context, "plan a budget anew")
    name, settings, now = call.path["name"], context.loop_facts.settings, context.now
    if name not in settings.budget:
        known = ", ".join(sorted(settings.budget)) or "none"
        raise NotFound(f"There is no budget {name!r} in the settings; there is: {known}.")
    plans = plans_of(context.journal, settings, context.loop_facts.signals)
    row = plans.anew(name, now, call.who)
    context.journal.budgets.add(row)
    context.journal.events.add("plan", f"Budget {name}: {row.why}.", now)
    return Done(
        done=(
            f"Planned budget {name} anew for {row.period}: what was spent is accepted, and the "
            f"rest of {grams(row.curve.limit_ug / 1e6)} is spread over the time that is left."
        ),
        changed=(name,),
    )
