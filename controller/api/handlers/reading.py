"""What everybody who may open the socket may read.

Invariant: reading changes nothing, and `status`, `healthz` and `readyz` answer even while the
journal does not.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from wattmesh.controller import marks
from wattmesh.controller.accounting import audit as audits
from wattmesh.controller.accounting import budget as budgets
from wattmesh.controller.accounting.budget import BudgetView, ClusterLine
from wattmesh.controller.accounting.budgets.spending import spending
from wattmesh.controller.accounting.report.reopening import reopenings
from wattmesh.controller.accounting.report.reported import accounting_signal, bounds_of
from wattmesh.controller.api.handlers.flagged import (
    audit_json,
    catalogue_json,
    decision_json,
    switch_json,
)
from wattmesh.controller.api.request_context import Call, NotFound, RequestContext
from wattmesh.controller.carbon_views import ForecastView
from wattmesh.controller.expert_costs.sentences import EXPERT_COSTS, told_of
from wattmesh.controller.journal.decisions import DecisionRow
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.planner.asking import PlanState
from wattmesh.controller.planner.view import PlanAnswer, no_look, plan_answer
from wattmesh.controller.signals.lines import carbon_line, forecast_view, preview
from wattmesh.controller.status.status import (
    cycle_line,
    last_known,
    run_line,
    run_lines,
    status,
    why_unread,
)
from wattmesh.controller.views import StatusView, as_json
from wattmesh.errors import JournalUnavailable, RetryLater
from wattmesh.reconfig.wire.messages import SWITCH_ID_KEY, Spent
from wattmesh.telemetry.carbon import signal_quality
from wattmesh.telemetry.readings import flags_of

MOST_ROWS = 1000

MOST_TOLD = 20
"""Changes of expert costs that `why` tells, the newest."""


def read_status(context: RequestContext, call: Call) -> StatusView:
    """Show the whole daemon on one screen."""
    loop_facts = context.loop_facts
    try:
        view = status(context.journal, loop_facts)
    except JournalUnavailable as error:
        if loop_facts.outage is None:
            loop_facts.journal_failed(str(error))
        return last_known(loop_facts, loop_facts.newest_status)
    loop_facts.newest_status = view
    return view


def healthz(context: RequestContext, call: Call) -> dict[str, Any]:
    """Say that the process answers; nothing else is checked."""
    return {"ok": True}


def readyz(context: RequestContext, call: Call) -> dict[str, Any]:
    """Say whether the daemon works: the journal answers and the cycle runs.

    Raises:
        RetryLater: it does not, and why.
    """
    loop_facts = context.loop_facts
    if loop_facts.outage is not None:
        raise RetryLater(loop_facts.outage.sentence)
    state = loop_facts.loops["cycle"]()
    since_s = loop_facts.clock.monotonic() - (state.last_progress_s or loop_facts.started_s)
    if since_s > 3 * state.every_s + 10:
        raise RetryLater(
            f"The control cycle has not ended a turn for {since_s:.0f} s; it should every "
            f"{state.every_s:g} s."
        )
    return {"ok": True, "leading": loop_facts.leading, "sentence": cycle_line(loop_facts).sentence}


def runs(context: RequestContext, call: Call) -> dict[str, Any]:
    """List every run the journal knows."""
    now = context.now
    rows = context.journal.runs.all(now)
    return {"runs": run_lines(context.journal, context.loop_facts, rows, now)}


def run(context: RequestContext, call: Call) -> dict[str, Any]:
    """Show one run: its line, its catalogue and its newest switches."""
    row, limit = context.run(call.path["run"], call.peer), _limit(call)
    return {
        "run": run_line(context.journal, context.loop_facts, row, context.now),
        "catalogue": catalogue_json(row.catalogue),
        "baseline": row.baseline,
        "registered_at": row.registered_at,
        "finished_at": row.finished_at,
        "finish_reason": row.finish_reason,
        "checkpoint_step": row.checkpoint_step,
        "host": row.host,
        "process": row.pid,
        "switches": decisions_and_switches(context, row, limit)[1],
    }


def spent(context: RequestContext, call: Call) -> Spent:
    """Give the energy and the emissions of a run so far, over all its launches."""
    row = context.run(call.path["run"], call.peer)
    line = budgets.line_of(row.run, context.journal.ledger.lately(row.run))
    carbon_g = None if line.unpriced_j and not line.carbon_g else line.carbon_g
    why = why_unread(context.loop_facts, row) if not line.energy_j else ""
    if line.energy_j and carbon_g is None:
        why = _why_no_grams(context, line)
    if row.state == "finished":
        # A job that was retired may still run, and take its last figures for today's.
        why = f"It is not measured any more ({row.finish_reason})."
    return Spent(
        energy_j=line.energy_j or None,
        carbon_g=carbon_g if line.energy_j else None,
        signal=line.carbon[0].signal if len(line.carbon) == 1 else "",
        unpriced_j=line.unpriced_j,
        unobserved_s=line.unobserved_s,
        upper_j=line.upper_j,
        flags=line.flags,
        why_unknown=why,
    )


def _why_no_grams(context: RequestContext, line: ClusterLine) -> str:
    if len(line.carbon) > 1:
        return "Its grams are in several signals, which are never added."
    if not _signal(context):
        return "Joules have no grams: set a signal in the daemon's settings ([carbon.accounting])."
    return "Its joules have no grams yet."


def why(context: RequestContext, call: Call) -> dict[str, Any]:
    """Give the history of one run: its decisions, its switches and their states."""
    row = context.run(call.path["run"], call.peer)
    told, switches = decisions_and_switches(context, row, _limit(call))
    return {
        "run": run_line(context.journal, context.loop_facts, row, context.now),
        "decisions": told,
        "switches": switches,
        "transitions": {
            each[SWITCH_ID_KEY]: context.journal.switches.transitions(each[SWITCH_ID_KEY])
            for each in switches
        },
        "expert_costs": context.journal.events.list(
            MOST_TOLD, kind=EXPERT_COSTS, begins=told_of(row)
        ),
    }


def decisions_and_switches(
    context: RequestContext, row: RunRow, limit: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Give the newest decisions and switches of a run, newest first."""
    found = context.journal.decisions.list(run=row.run, limit=limit)
    signals = _signals_by_forecast(context, found)
    switches = context.journal.switches.history(row.run, limit=limit)
    return (
        [decision_json(each, row, signals.get(each.forecast or 0, "")) for each in found],
        [switch_json(each, row, found, signals) for each in switches],
    )


def _signals_by_forecast(context: RequestContext, rows: Sequence[DecisionRow]) -> dict[int, str]:
    ids = {each.forecast for each in rows if each.forecast is not None}
    return context.journal.forecasts.signals(ids) if ids else {}


def plan(context: RequestContext, call: Call) -> PlanAnswer:
    """Show the plan of one run: its point in each hour and the forecast, or why it has none."""
    row, loop_facts = context.run(call.path["run"], call.peer), context.loop_facts
    seen = loop_facts.turned.report.observation if loop_facts.turned else None
    view = next((each for each in seen.runs if each.run == row.run), None) if seen else None
    if seen is None or view is None:
        return no_look(row.run, row.name, finished=row.state == "finished")
    state = loop_facts.planning().runs.get(row.run, PlanState())
    decision = loop_facts.decisions().get(row.run)
    return plan_answer(seen, view, state, decision.reason if decision else "")


def decisions(context: RequestContext, call: Call) -> dict[str, Any]:
    """List the newest decisions, of one run or of all."""
    name = call.query.get("run")
    found = context.journal.decisions.list(
        run=context.run(name, call.peer).run if name else None,
        limit=_limit(call),
        since=call.moment("since"),
    )
    known = {each.run: each for each in context.journal.runs.all(context.now)}
    signals = _signals_by_forecast(context, found)
    told = [
        decision_json(each, known.get(each.run), signals.get(each.forecast or 0, ""))
        for each in found
    ]
    return {"decisions": told}


def events(context: RequestContext, call: Call) -> dict[str, Any]:
    """List events other than decisions: clock steps, outages, reloads."""
    found = context.journal.events.list(limit=_limit(call), since=call.moment("since"))
    return {"events": found}


def budget(context: RequestContext, call: Call) -> BudgetView:
    """Show the grams spent and saved, with the baseline of each saving."""
    settings, now = context.loop_facts.settings, context.now
    signal, bounds = _signal(context), bounds_of(context.loop_facts)
    zone = settings.site.timezone
    periods = tuple(
        replace(
            each,
            alert=marks.sentence(each.alert, each.flags),
            plan=marks.sentence(each.plan, each.flags),
        )
        for each in spending(
            context.journal, settings.budget, zone, now, signal=signal, bounds=bounds
        )
    )
    pue, covered = settings.site.pue_milli() / 1000, context.loop_facts.gpu_coverage
    return budgets.budget(
        context.journal,
        now,
        signal,
        periods,
        pue=pue,
        covered=covered,
        why_unread=partial(why_unread, context.loop_facts),
    )


def audit(context: RequestContext, call: Call) -> dict[str, Any]:
    """Show every slot of one run, in every scenario."""
    pue = context.loop_facts.settings.site.pue_milli() / 1000
    row = context.run(call.path["run"], call.peer)
    found = audits.audit(context.journal, row, _signal(context), pue)
    reopened = reopenings(context.journal, row.registered_at, row.finished_at or context.now)
    return audit_json(replace(found, reopened=reopened))


def carbon_now(context: RequestContext, call: Call) -> dict[str, Any]:
    """Show both grid signals now."""
    now, signals = context.now, context.loop_facts.signals
    return {
        "at": now,
        "carbon": carbon_line(context.journal, signals.decision, now, exogenous=signals.exogenous),
        "accounting": carbon_line(
            context.journal,
            signals.accounting,
            now,
            decides=signals.accounting == signals.decision,
        ),
    }


def carbon_forecast(context: RequestContext, call: Call) -> ForecastView:
    """Show the forecast that decisions rest on: its source, its band and its past errors.

    Of another signal that is polled, what is expected of it.
    """
    signals, name = context.loop_facts.signals, call.query.get("signal", "")
    if not name:
        return forecast_view(
            context.journal, signals.decision, context.now, exogenous=signals.exogenous
        )
    named = {str(each.signal): each for each in signals.all}
    found = [named[name]] if name in named else [v for k, v in named.items() if k.startswith(name)]
    if len(found) != 1:
        known = ", ".join(named) or "none"
        raise NotFound(f"{name!r} fits no polled signal, or several; there are {known}.")
    (facts,) = found
    if facts not in signals.ahead:
        return preview(context.journal, facts, context.now)
    decides = facts == signals.decision
    return forecast_view(
        context.journal,
        facts,
        context.now,
        decides=decides,
        exogenous=signals.exogenous if decides else (),
    )


def carbon_history(context: RequestContext, call: Call) -> dict[str, Any]:
    """List past intervals, each with its quality."""
    hours = call.number("hours", default=24.0, lowest=0.001, highest=24.0 * 400)
    facts = context.loop_facts.signals.accounting or context.loop_facts.signals.decision
    if facts is None:
        return {"signal": "", "points": []}
    now = context.now
    points = context.journal.carbon.observed(facts.signal, now - timedelta(hours=hours), now)
    replayed = signal_quality(str(facts.signal))
    plain = [
        {
            **as_json(each),
            "signal": str(facts.signal),
            "flags": flags_of(str(each.quality), replayed),
        }
        for each in points
    ]
    return {"signal": str(facts.signal), "points": plain}


def _signal(context: RequestContext) -> str:
    """Name the accounting signal; "" when there is none."""
    return accounting_signal(context.loop_facts.signals)


def _limit(call: Call) -> int:
    return int(call.number("limit", default=100, lowest=1, highest=MOST_ROWS))
