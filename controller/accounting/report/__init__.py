"""The report of a month, and how a month is closed (docs/reports.md).

The map:
    closed.py     what a closed month reports after retention has summed up its slots
    closing.py    closes a month
    lines.py      each subject in every scenario and signal, and the totals
    month.py      computes the report of a month
    one_run.py    computes the report of one run
    prices.py     prices a slot in further scenarios
    reopening.py  reopens a closed month
    reported.py   what settings and signals contribute to budgets and reports
    runs.py       a run's tokens, embodied carbon and SCI
    views.py      the types of `GET /v1/report`
    walk.py       one pass over the slots of a month
"""
