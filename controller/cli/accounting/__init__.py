"""Commands about joules and grams: budgets and reports.

The map:
    audit_screen.py    what `wattmesh budget --audit RUN` looks like
    budget.py          budget, budget --audit RUN, --replan NAME; budget_screen.py, period_screen.py
    budget_screen.py   what `wattmesh budget` looks like
    period_screen.py   one budget in its running period, as `wattmesh budget` shows it (pure)
    report.py          report --month; report_screen.py, report_csv.py, report_picture.py (a
                       process)
    report_csv.py      the report as a table for spreadsheets (pure)
    report_picture.py  draw a month's report as a picture
    report_screen.py   what `wattmesh report` looks like
"""
