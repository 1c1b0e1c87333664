"""When things happen, and remembering them: the daemon, its cycle, its journal, its screens.

The daemon's life:
    daemon.py            start, signals, reload, stop; what systemd is told
    wiring.py            every part made from the settings, started in order, stopped in reverse
    loops.py             loops on monotonic time: cycle, sampler, leases, accounts
    scheduler.py         jobs on wall time: polls, retention
    duties.py            what each loop and job does in one turn
    lease.py             one daemon leads, the others stand by
    schema.py            a SQLite journal brought up to date in a child process
    sqlite_url.py        a file as a database URL, and back
    trusted_time.py      may the wall clock be trusted now: who deletes, closes or settles asks
    wall_clock.py        noticing that it was stepped (pure)
    kernel_clock.py      whether the kernel calls it synchronised
    notify.py            the service manager's protocol
    life.py              what every process of ours does at its start and end

Deciding (the same code live, in replay and in the demo):
    cycle.py             observe, decide, act; one English sentence per turn
    observe.py           journal rows become one frozen observation
    think.py             the newest plans laid beside the runs, then decide
    act.py               a decision becomes an intent row
    planner/             plans, made off the cycle in a child process
    states.py            when an open switch is given up

Remembering and accounting:
    journal/             everything that survives, in SQLite or PostgreSQL
    signals/             the grid signals: polled, kept, foretold, shown
    books/               both ledgers in grams, what was saved, and budgets
    report/              a month in every scenario, and closing it

Telling:
    pulse.py             the newest facts of the daemon's own loops
    bell.py              waking whoever waits for news
    views.py             the answers of the API as documented dataclasses
    status.py            the whole daemon on one screen
    trouble.py           what needs a human, and what to do
    waiting.py           what a run that takes no step waits for
    metrics.py           the figures for Prometheus
    figures.py           what they need of the journal
    pictures.py          how our pictures look
    api/                 HTTP over a Unix socket
    cli/                 the command line
    demo/                `wattmesh demo`
    replay/              `wattmesh policy bench`: runs over recorded grids, under the same decisions

Nodes:
    agent/               `wattmesh agent`, the process on each GPU node
    power.py             where power readings come from, as the settings say
    fleet.py             what all nodes together know: coverage, clocks, owners (pure)
    clocks.py            what is wished for the runs' GPUs (pure)
    cap/                 an operator's power cap, from the order to the boards

Around a job:
    settings/            the settings file: read, checked, shown
    profile/             profiling a job into a catalogue
    attach_check/        a user's own script, walked through layouts on the spot
"""
