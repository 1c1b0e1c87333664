"""Commands about joules and grams: budgets and reports.

The map:
    audit_screen.py    what `wattmesh budget --audit RUN` looks like
    budget.py          `wattmesh budget`: spent, saved, --audit RUN, --replan NAME
    budget_screen.py   what `wattmesh budget` looks like
    period_screen.py   one budget in its running period, as `wattmesh budget` shows it (pure)
    report.py          `wattmesh report`: a month
    report_csv.py      the report as a table for spreadsheets (pure)
    report_picture.py  draw a month's report as a picture (a process)
    report_screen.py   what `wattmesh report` looks like
"""
