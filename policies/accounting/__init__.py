"""The arithmetic of budgets and baselines. Pure.

The map:
    baseline.py  the counterfactual: where the run would be had it never been touched
    budget.py    a budget as a curve: burn in windows, course with a band; decides nothing
"""
