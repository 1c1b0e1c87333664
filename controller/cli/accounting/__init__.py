"""Commands about joules and grams: budgets and reports.

The map:
    audit_screen.py    the screen of `wattmesh budget --audit RUN`
    budget.py          `wattmesh budget`: spent, saved, --audit RUN, --replan NAME
    budget_screen.py   the screen of `wattmesh budget`
    period_screen.py   one budget in its present period, for that screen (pure)
    report.py          `wattmesh report`: a month
    report_csv.py      the report as CSV (pure)
    report_picture.py  draws the report as a picture, in a child process
    report_screen.py   the screen of `wattmesh report`
"""
