"""What is left of the budgets of single runs, for their plans. Pure.

Invariant: grams of two signals are never compared: where budgets use another signal than decisions,
plans get no budget.
"""

from wattmesh.controller.accounting.budgets.budget_plans import CLUSTER
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.policies.decision import BudgetLeft


def own_budgets(loop_facts: LoopFacts) -> dict[str, BudgetLeft]:
    """Give the budgets of single runs, by the run's name, as they stood in the last cycle.

    The cluster's budget is left out: nothing says which run may spend how much of it. Grams are
    without PUE, as plans count them: where power is measured.
    """
    accounting, decision = loop_facts.signals.accounting, loop_facts.signals.decision
    if accounting is None or decision is None or accounting.signal != decision.signal:
        return {}
    pue = loop_facts.settings.site.pue_milli() / 1000
    return {
        line.name: BudgetLeft(
            left_g=line.residual_g / pue, unpriced_j=line.unpriced_j, until=line.end
        )
        for line in loop_facts.budgets.lines
        if line.name != CLUSTER
    }
