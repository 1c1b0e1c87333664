"""When budget periods begin and end: freeze plans, report ended periods, close months.

Invariant: each of these is done once, however often this runs, and none is missed because no daemon
ran when a period ended. Only the leader writes; every daemon looks at the budgets, so that its own
status shows alerts. While the wall clock is in doubt, nothing is frozen, reported or closed.
"""

import logging
from dataclasses import replace

from wattmesh.controller import marks
from wattmesh.controller.accounting.budgets.budget_plans import BudgetPlans, runs_of
from wattmesh.controller.accounting.budgets.periods import Period, period_before
from wattmesh.controller.accounting.budgets.spending import PeriodLine, spending
from wattmesh.controller.accounting.report.closing import close
from wattmesh.controller.accounting.report.reported import (
    accounting_signal,
    bounds_of,
    plans_of,
    reported,
)
from wattmesh.controller.accounting.unclaimed import unclaimed_spent
from wattmesh.controller.daemon.loop_bodies import remember
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.quantities import grams, joules
from wattmesh.telemetry.readings import flags_of

log = logging.getLogger(__name__)

UG_PER_G = 1e6
MOST_EVENTS = 10_000


class PeriodRoll:
    """Looks at all budget periods, in one turn."""

    def __init__(self, journal: Journal, loop_facts: LoopFacts) -> None:
        """Keep the journal and the loop facts."""
        self._journal = journal
        self._loop_facts = loop_facts
        self._looked = False

    def turn(self) -> None:
        """Freeze missing plans, look at the budgets, report ended periods, close months.

        Raises:
            JournalUnavailable: the next turn does what this one could not.
        """
        loop_facts, now = self._loop_facts, self._loop_facts.clock.now()
        settings, leads = loop_facts.settings, loop_facts.lead.epoch is not None
        if loop_facts.trusted.held_s() > 0:
            return  # it is not known which periods run now: the budgets stay as last computed
        doubt = loop_facts.trusted.doubt()
        if leads and not doubt:
            self._write_due_plans(plans_of(self._journal, settings, loop_facts.signals))
        before = {each.name: each.urgency for each in loop_facts.budgets.lines}
        lines = spending(
            self._journal,
            settings.budget,
            settings.site.timezone,
            now,
            signal=accounting_signal(loop_facts.signals),
            bounds=bounds_of(loop_facts),
        )
        loop_facts.budgets = replace(loop_facts.budgets, lines=lines)
        if not leads:
            return
        for line in lines:
            self._tell_alert(line, before.get(line.name, ""))
        ahead = self._journal.budgets.closed_after(now)
        loop_facts.budgets = replace(loop_facts.budgets, sealed_ahead=ahead)
        if doubt:
            return
        for name, budget in settings.budget.items():
            period = period_before(now, budget.period, settings.site.timezone)
            self._tell_ended(name, budget.grams, period)
        for sentence in close(self._journal, reported(settings, loop_facts.signals), now):
            log.info("%s", sentence)
            remember(self._journal, loop_facts, "closed", sentence)

    def _write_due_plans(self, plans: BudgetPlans) -> None:
        # In its first minute a daemon may still be fetching the history that plans rest on.
        patient, self._looked = not self._looked, True
        for row in plans.due(self._loop_facts.clock.now(), patient=patient):
            self._journal.budgets.add(row)
            sentence = (
                f"Budget {row.name}: planned {row.period} with a limit of "
                f"{grams(row.curve.limit_ug / UG_PER_G)}; {row.why}."
            )
            remember(self._journal, self._loop_facts, "plan", sentence)

    def _tell_alert(self, line: PeriodLine, before: str) -> None:
        if line.urgency == before:
            return
        alert = marks.sentence(line.alert, line.flags)
        sentence = f"{alert}." if line.urgency else f"Budget {line.name} is on course again."
        log.warning("%s", sentence)
        remember(self._journal, self._loop_facts, "budget", sentence)

    def _tell_ended(self, name: str, limit_g: float, period: Period) -> None:
        head = f"{period.name} of budget {name} ended:"
        known = self._journal.events.list(limit=MOST_EVENTS, since=period.end)
        if any(each.kind == "period" and each.detail.startswith(head) for each in known):
            return
        every = self._journal.runs.all(self._loop_facts.clock.now())
        runs = runs_of(every, name, period.start)
        rows = [
            row
            for run in ([None] if runs is None else runs)
            for row in self._journal.ledger.between(period.start, period.end, run)
            if row.scenario == "actual"
        ]
        signal = accounting_signal(self._loop_facts.signals)
        by_signal: dict[str, int] = {}
        for row in rows:
            by_signal[row.signal] = by_signal.get(row.signal, 0) + row.carbon_ug
        spent_g = by_signal.pop(signal, 0) / UG_PER_G
        beyond = [
            each
            for run in runs or ()
            for each in unclaimed_spent(self._journal, run, period.start, period.end).get(
                signal, ()
            )
        ]
        upper_ug = sum(row.upper_ug for row in rows if row.signal == signal)
        upper_g = (upper_ug + sum(each.upper_ug for each in beyond)) / UG_PER_G
        unpriced_j = sum(row.energy_mj for row in rows if row.quality == "unpriced") / 1000
        tail = f", {joules(unpriced_j)} without a price yet" if unpriced_j else ""
        tail += f", at most {grams(upper_g)} more unobserved" if upper_g else ""
        for other, carbon_ug in sorted(by_signal.items()):
            tail += f", and {grams(carbon_ug / UG_PER_G)} in {other}" if carbon_ug else ""
        flags = flags_of(*(word for row in rows for word in row.qualities))
        sentence = (
            f"{head} {grams(spent_g)} of {grams(limit_g)} ({spent_g / limit_g:.0%}), "
            f"{self._loop_facts.settings.site.timezone}{tail}."
        )
        sentence = marks.sentence(sentence, flags)
        remember(self._journal, self._loop_facts, "period", sentence)
