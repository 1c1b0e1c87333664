"""Tests of the accounts: the baseline's arithmetic, pricing, budgets.

build.py            small facts: a run, its joules, intensities
test_baseline.py    the baseline's arithmetic against brute force
test_accounts.py    joules become grams, once, on both databases
test_reckoning.py   the baseline's clock: outages, switches, stepped clocks, restarts
test_budget.py      lines that add up, savings that may be claimed
"""
