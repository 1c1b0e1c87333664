"""What the journal keeps of joules and grams: slots, sums, coverage, budgets.

The map:
    budgets.py         plans of budgets, months closed and reopened: all append-only
    by_slot.py         the same slot by slot, for budgets and reports
    changes.py         which days were written, for whoever keeps sums of them
    coverage.py        which time of each GPU is booked, and who held it
    ledger.py          joules and grams per slot
    ledger_slots.py    where its slots begin and end, over every change of the settings
    scenario_slots.py  the same of one run in every scenario
    spent.py           what was spent of it, old slots read once
    sums.py            what the ledger adds up to, old slots added up once
"""
