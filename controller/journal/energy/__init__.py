"""Joules and grams in the journal: slots, sums, coverage, budgets.

The map:
    budgets.py         plans of budgets, and closed and reopened months: append-only
    by_slot.py         joules and grams slot by slot, for budgets and reports
    changes.py         which days were written: whoever keeps sums of them asks
    counters.py        up to which counter each device is booked
    coverage.py        the booked time of each GPU, and its holder
    emission_rows.py   writes grams; names and prices that rows share once
    ledger.py          joules and grams per slot: writes and reads
    ledger_queries.py  what the ledger asks of the database, each statement built once
    ledger_slots.py    where slots begin and end, across changes of the settings
    run_slots.py       one run slot by slot, for its report
    scenario_slots.py  one run slot by slot, in every scenario
    spent.py           grams spent by budgets; old slots are read once
    sums.py            totals of the ledger; old slots are added up once
"""
