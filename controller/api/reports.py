"""The report of a month, and the one act on a budget: to plan it anew.

Invariant: a report only reads; a plan made anew stands beside the one before it, with who asked.
"""

from wattmesh.controller.api.desk import Call, Desk, NotFound
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
