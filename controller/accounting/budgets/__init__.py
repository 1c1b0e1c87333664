"""Budgets: their periods, their plans, and what is spent and left in each.

The map:
    budget_plans.py  plans of budgets
    own_budgets.py   what is left of budgets that belong to one run
    periods.py       budget periods in the site's time zone
    spending.py      each budget in its present period
"""
