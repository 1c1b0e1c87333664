"""When things happen, and remembering them: the daemon, its cycle, its journal, its screens.

The map:
    accounting/    both ledgers in grams, what was saved, and budgets
    agent/         `wattmesh agent`, the process on each GPU node
    api/           HTTP over a Unix socket
    attach_check/  a user's own script, walked through layouts on the spot
    cli/           the command line
    cycle/         observe, decide, act: the control cycle and the facts that it decides on
    daemon/        the daemon: its life, and how its parts are put together
    journal/       everything that survives, in SQLite or PostgreSQL
    metrics/       the figures for Prometheus: absolute values from the journal
    planner/       plans, made off the cycle in a child process
    process/       what every long-lived process of ours is made of
    profile/       profiling a job into a catalogue
    replay/        `wattmesh policy bench`: runs over recorded grids, under the same decisions
    settings/      the settings file: read, checked, shown
    signals/       the grid signals: polled, kept, foretold, shown
    status/        the whole daemon on one screen, and what is wrong with it
    marks.py       what a joule, a watt or a gram is beside measured, said beside it
    pictures.py    how our pictures look
    pulse.py       the newest facts of the daemon's own loops
    views.py       the answers of the API as documented dataclasses
"""
