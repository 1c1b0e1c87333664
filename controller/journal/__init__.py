"""The journal: everything wattmesh remembers, in SQLite or PostgreSQL.

The map:
    carbon/         what the journal keeps of grid signals: points and forecasts
    database/       the journal's database: tables, transactions, faults, copies
    energy/         what the journal keeps of joules and grams
    nodes/          what the journal keeps of nodes
    runs/           what the journal keeps of runs
    clock_marks.py  what time it was when a daemon of each machine last looked
    decisions.py    decisions, one row per change of mind
    events.py       clock steps, outages, reloads
    journal.py      `Journal`: one store per idea, opened at the right schema revision
    leadership.py   who leads, and the epoch that fences everybody else
    retention.py    roll-up and pruning
"""
