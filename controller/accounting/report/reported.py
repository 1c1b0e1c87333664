"""What the settings and the signals say of budgets and reports, in the types of their modules."""

from wattmesh.controller.accounting.budgets.budget_plans import BudgetPlans
from wattmesh.controller.accounting.report.month import ReportSettings
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts, Signals
from wattmesh.controller.settings.model import Settings


def accounting_signal(signals: Signals) -> str:
    """Name the accounting signal; "" when there is none."""
    return str(signals.accounting.signal) if signals.accounting else ""


def plans_of(journal: Journal, settings: Settings, signals: Signals) -> BudgetPlans:
    """Give the plans of all budgets."""
    return BudgetPlans(journal, settings.budget, settings.site.timezone, accounting_signal(signals))


def reported(settings: Settings, signals: Signals) -> ReportSettings:
    """Give what a report needs from settings and signals."""
    site = settings.site
    return ReportSettings(
        timezone=site.timezone,
        signal=accounting_signal(signals),
        further=tuple(each.signal for each in signals.reports),
        contracts=site.market_based,
        pue=site.pue if site.energy_boundary == "facility" else None,
    )


def bounds_of(loop_facts: LoopFacts) -> dict[str, float]:
    """Give, by run, the least grams its newest plan still needs, in the site's energy boundary."""
    decisions = loop_facts.turned.report.decisions if loop_facts.turned else ()
    pue = loop_facts.settings.site.pue_milli() / 1000
    return {
        each.run: each.plan_bound_g * pue for each in decisions if each.plan_bound_g is not None
    }
