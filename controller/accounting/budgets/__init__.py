"""Budgets: their periods, their plans, and what is spent in each.

The map:
    budget_plans.py  plans of budgets
    periods.py       budget periods in the site's time zone
    spending.py      each budget in its present period
"""
