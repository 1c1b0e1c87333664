"""The report of a month, and closing it (docs/reports.md).

The map:
    closed.py     what a closed month still tells when retention has summed its slots up
    closing.py    closing a month
    lines.py      every subject in every scenario and signal, and their totals
    month.py      the report of a month
    prices.py     further prices of a slot
    reopening.py  opening a closed month again
    reported.py   what the settings and the signals say of budgets and reports
    runs.py       what a report says of one run beside its ledger rows
    views.py      what the report of a month says, as facts: `GET /v1/report`
    walk.py       one pass over the slots of a month
"""
