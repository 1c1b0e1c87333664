"""The report of a month, and two acts: to plan a budget anew, to open a closed month again.

Invariant: a report only reads; a plan made anew stands beside the one before it, and what a month
was closed with beside what it comes to now, with who asked.
"""

from wattmesh.controller.api.desk import Call, Conflict, Desk, NotFound
from wattmesh.controller.books.periods import month_named, period_of
from wattmesh.controller.report.month import report
from wattmesh.controller.report.reported import plans_of, reported
from wattmesh.controller.report.views import MonthReport
from wattmesh.controller.views import Done
from wattmesh.errors import InputInvalid


def month(desk: Desk, call: Call) -> MonthReport:
    """Report a month: joules and grams of runs and lines, in every scenario."""
    settings, now = desk.pulse.settings, desk.now
    zone, name = settings.site.timezone, call.query.get("month")
    period = month_named(name, zone) if name else period_of(now, "month", zone)
    if period.start > now:
        raise InputInvalid(f"{period.name} has not begun; the running month is the newest there is")
    return report(desk.journal, period, reported(settings, desk.pulse.signals), now)


def reopen(desk: Desk, call: Call) -> Done:
    """Open a month that was closed wrongly; what it was closed with stays, with who did it."""
    epoch = desk.lead()
    call.as_operator(desk, "open a closed month again")
    zone, now = desk.pulse.settings.site.timezone, desk.now
    name, reason = month_named(call.path["month"], zone).name, call.text("reason")
    done = desk.journal.budgets.reopen(name, zone, by=call.who, reason=reason, now=now, epoch=epoch)
    if not done:
        raise Conflict(f"{name} ({zone}) is not closed, so there is nothing to open again.")
    said = f"{name} ({zone}) was reopened by {call.who}: {reason}."
    desk.journal.events.add("reopened", said, now)
    ahead = desk.pulse.sealed_ahead
    desk.pulse.sealed_ahead = tuple(each for each in ahead if each != name)
    return Done(
        done=f"Reopened {name}: what it was closed with stays in its report and in audits, and it "
        "is closed anew 48 h after its end, once nothing of it is provisional.",
        changed=(name,),
    )


def replan(desk: Desk, call: Call) -> Done:
    """Plan a budget anew for the rest of its period: what was spent so far is accepted."""
    desk.lead()
    call.as_operator(desk, "plan a budget anew")
    name, settings, now = call.path["name"], desk.pulse.settings, desk.now
    if name not in settings.budget:
        known = ", ".join(sorted(settings.budget)) or "none"
        raise NotFound(f"There is no budget {name!r} in the settings; there is: {known}.")
    plans = plans_of(desk.journal, settings, desk.pulse.signals)
    row = plans.anew(name, now, call.who)
    desk.journal.budgets.add(row)
    desk.journal.events.add("plan", f"Budget {name}: {row.why}.", now)
    return Done(
        done=(
            f"Planned budget {name} anew for {row.period}: what was spent is accepted, and the "
            f"rest of {row.curve.limit_ug / 1e6:.1f} g is spread over the time that is left."
        ),
        changed=(name,),
    )
