"""The journal: everything wattmesh remembers, in SQLite or PostgreSQL.

The map:
    carbon/         grid signals: points and forecasts
    database/       tables, transactions, faults, copies
    energy/         joules and grams: slots, sums, coverage, budgets
    nodes/          nodes: devices, tokens, power caps
    runs/           runs: launches, switches, history
    clock_marks.py  the time at which a daemon of each machine last looked
    decisions.py    decisions: a row each time one changes
    events.py       clock steps, outages, reloads
    journal.py      `Journal`: one store per idea, opened at the right schema revision
    leadership.py   the lease of the leader, and its epoch
    retention.py    sums up and deletes old rows
"""
