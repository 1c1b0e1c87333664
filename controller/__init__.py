"""The daemon, its control cycle, its journal, and what people see of them.

The map:
    accounting/    grams of both ledgers, savings and budgets
    agent/         `wattmesh agent`, the process on each GPU node
    api/           HTTP over a Unix socket
    attach_check/  runs a user's script through several layouts
    cli/           the command line
    cost_model/    predictions of what a layout costs, as tables
    cycle/         the control cycle: observe, decide, act
    daemon/        the daemon's process: start, loops, stop
    expert_costs/  what experts of live runs cost on each GPU
    journal/       everything that survives a restart, in SQLite or PostgreSQL
    metrics/       metrics for Prometheus, from the journal's absolute values
    planner/       computes plans in a child process, off the cycle
    process/       what every long-lived process shares: loops, clocks, children
    profile/       profiles a job, and writes its catalogue
    replay/        `wattmesh policy bench`: replays runs over recorded grids, with the live
                   decisions
    settings/      the settings file: read, checked, shown
    signals/       the grid signals: polling, history, forecast
    status/        the status screen's facts, and what needs a human
    validate/      proves with a job itself which of its points train alike
    carbon_views.py  what the API tells of the grid
    marks.py       the flags estimated, provisional, simulated
    pictures.py    the style of pictures
    loop_facts.py       the newest facts of the daemon's loops, in memory
    views.py       the answers of the API as documented dataclasses
    zoned_time.py  reads a moment with its zone from text
"""
