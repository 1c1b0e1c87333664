"""The journal: everything wattmesh remembers, in SQLite or PostgreSQL.

The map:
    journal.py           `Journal`: one store per idea, opened at the right schema revision
    address.py           where it is, by the settings
    engine.py            the database with its safest settings and clear errors
    patience.py          connections to PostgreSQL whose every wait has an end
    failures.py          what is wrong with the database, in words
    tables.py            every table
    values.py            exact times, JSON text, upserts
    admission.py         who may begin a run and speak for it, and how it ends
    run_row.py           one run, as the settings name it and as the journal tells it
    runs.py              what runs report, freezes, operator's wishes
    liveness.py          which of them live: their newest signs of life, in memory
    signs.py             hearing these, and writing them down now and then
    introduced.py        what an introduction puts into them (pure)
    nodes.py             GPU nodes, what their agents delivered, each batch once
    frozen_catalogue.py  a run's catalogue as it was when it was registered
    switches.py          switches (the intent row is the order) and their transitions
    decisions.py         decisions, one row per change of mind
    caps.py              power caps that operators ordered: append-only
    stays.py             where each run was when, and its launches
    coverage.py          which time of each GPU is booked, and who held it
    read_once.py         what two readers of one device booked of the same time, cut
    outages.py           how much of its time a run stood in outages nobody ordered
    forecasts.py         forecasts as they were issued, and the skill of their sources
    carbon.py            what was observed of the grid, append-only, and how its polls went
    ledger.py            joules and grams per slot
    ledger_slots.py      where its slots begin and end, over every change of the settings
    sums.py              what the ledger adds up to, old slots added up once
    by_slot.py           the same slot by slot, for budgets and reports
    scenario_slots.py    the same of one run in every scenario
    spent.py             what was spent of it, old slots read once
    budgets.py           plans of budgets, months closed and reopened: all append-only
    leadership.py        who leads, and the epoch that fences everybody else
    identity.py          which journal this is: what epochs count in
    copies.py            a SQLite journal's backup and restore
    events.py            clock steps, outages, reloads
    retention.py         roll-up and pruning
    clock_marks.py       what time it was when a daemon of each machine last looked
"""
