"""The arithmetic of budgets and baselines. Pure.

The map:
    baseline.py     the counterfactual: how far the run would be, had it never been touched
    budget.py       a budget as a curve: burn in windows, expected end with a band
    point_ratio.py  a point's measured speed and watts over its catalogue's
"""
