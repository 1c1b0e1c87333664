"""Grams: both ledgers priced, what was saved, and budgets.

The map:
    report/             a month in every scenario, and closing it
    accounts.py         the accounts: joules become grams, and the baseline is kept beside the run
    audit.py            a run's saving laid open for auditors
    baseline_ledger.py  the other scenarios of one run: its baseline, the best single point
    budget.py           what was spent and what was saved
    budget_plans.py     plans of budgets
    closing_runs.py     what a run came to is kept, so that its slots may be summed up
    constant_pue.py     what a run emitted, had one PUE held all the time
    own_budgets.py      what is left of the budgets that are a run's own
    periods.py          budget periods in the site's time zone
    run_history.py      what a run did: where it was, when it paused, what it drew
    saving.py           the saving of one run
    scopes.py           what meters and catalogue contain: GPUs alone, or more of the node
    spending.py         where each budget of the settings stands in its running period
    spread.py           joules that were laid over several slots by time
    unclaimed.py        joules of held GPUs that were booked to nobody
    unread.py           time of held GPUs that nobody read
"""
