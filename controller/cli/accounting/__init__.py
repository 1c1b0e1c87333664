"""Commands about joules and grams: budgets and reports.

The map:
    audit_screen.py    the screen of `wattmesh budget --audit RUN`
    budget.py          `wattmesh budget`: spent, saved, --audit RUN, --replan NAME
    budget_screen.py   the screen of `wattmesh budget`
    model_card.py      the block of a model card with a run's emissions (pure)
    period_screen.py   one budget in its present period, for that screen (pure)
    report.py          `wattmesh report`: a month, or a run
    report_csv.py      the report as CSV (pure)
    report_picture.py  draws the report as a picture, in a child process
    report_screen.py   the screen of `wattmesh report`
    run_facts.py       what the report of a run says, fact by fact (pure)
    run_page.py        the report of a run as a page for a browser (pure)
    run_report.py      `wattmesh report RUN`: in which form, and where to
    run_report_picture.py  draws the pictures of that page, in a child process
"""
