"""Grams: prices both ledgers, and computes savings and budgets.

The map:
    budgets/            budgets: periods, plans, what is spent and left
    report/             the report of a month, and how a month is closed
    accounts.py         turns joules into grams, and keeps the baseline beside the run
    audit.py            every figure behind a run's saving, for auditors
    baseline_ledger.py  the other scenarios of a run: its baseline, its best single point
    budget.py           what was spent and what was saved
    closing_runs.py     keeps the results of a run before its slots are summed up
    constant_pue.py     the emissions of a run if one PUE had held all the time
    measured_points.py  what a run's points did lately, beside what its catalogue says
    own_budgets.py      what is left of budgets that belong to one run
    run_history.py      the history of a run: its points, its pauses, its energy
    saving.py           the saving of one run
    scopes.py           whether meters and catalogue cover the GPUs alone or more of the node
    spread.py           joules that were spread over several slots by time
    unclaimed.py        joules of held GPUs that were booked to nobody
    unread.py           time of held GPUs that nobody read
"""
