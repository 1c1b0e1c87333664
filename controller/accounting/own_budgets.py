"""What is left of the budgets that are a run's own, as its plans may reckon with it. Pure.

Invariant: grams of two signals are never compared: where budgets are kept in another signal than
decisions are made by, no plan hears of one.
"""

from wattmesh.controller.accounting.budget_plans import CLUSTER
from wattmesh.controller.pulse import Pulse
from wattmesh.policies.decision import BudgetLeft


def own_budgets(pulse: Pulse) -> dict[str, BudgetLeft]:
    """Give the budgets of single runs, by the run's name, as they stood at the last look.

    The cluster's is not shared out: which run may spend how much of it nobody said. Grams are those
    where power is measured, without PUE, as plans count them.
    """
    accounting, decision = pulse.signals.accounting, pulse.signals.decision
    if accounting is None or decision is None or accounting.signal != decision.signal:
        return {}
    pue = pulse.settings.site.pue_milli() / 1000
    return {
        line.name: BudgetLeft(
            left_g=line.residual_g / pue, unpriced_j=line.unpriced_j, until=line.end
        )
        for line in pulse.budgets.lines
        if line.name != CLUSTER
    }
