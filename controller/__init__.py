"""When things happen, and remembering them: the daemon, its cycle, its journal, its screens.

The daemon's life:
    daemon.py            start, signals, reload, stop; what systemd is told
    wiring.py            every part made from the settings, started in order, stopped in reverse
    loops.py             loops on monotonic time: cycle, sampler, leases, accounts
    scheduler.py         jobs on wall time: polls, retention
    duties.py            what each loop and job does in one turn
    grid.py              the grid signals of the settings, each opened once for all its roles
    poller.py            what is asked of a provider when, and what is kept of the answers
    forecaster.py        our own forecast of a signal, made after each poll, and its skill
    forecast_parts.py    what each source said in it, kept until it can be scored
    history.py           the stored history on its grid, and the plain profile of it
    lease.py             one daemon leads, the others stand by
    schema.py            a SQLite journal brought up to date in a child process
    wall_clock.py        noticing that the wall clock was stepped
    notify.py            the service manager's protocol
    life.py              what every process of ours does at its start and end

Deciding (the same code live, in replay and in the demo):
    cycle.py             observe, decide, act; one English sentence per turn
    observe.py           journal rows become one frozen observation
    think.py             the newest plans laid beside the runs, then decide
    act.py               a decision becomes an intent row
    states.py            when an open switch is given up

Remembering and accounting:
    journal/             everything that survives, in SQLite or PostgreSQL
    accounts.py          joules become grams; the baseline beside every run
    slot_prices.py       what a slot is priced with: measured, fallback, stand-in, settled
    budget.py            both ledgers added up for people, and laid open for auditors
    periods.py           days, weeks, months and years in the site's time zone (pure)
    planning.py          plans of budgets, frozen at the start of a period
    spending.py          where each budget stands: spent, burning, on course
    report.py            a month in every scenario; report_*.py are its parts
    reported.py          what the settings say of budgets and reports
    closing.py           a month that is settled is closed, once
    period_roll.py       all of that at the borders of periods, every hour

Telling:
    pulse.py             the newest facts of the daemon's own loops
    bell.py              waking whoever waits for news
    views.py             the answers of the API as documented dataclasses
    status.py            the whole daemon on one screen
    trouble.py           what needs a human, and what to do
    carbon_lines.py      the grid signals for screens: lines, and the forecast with its skill
    carbon_metrics.py    the same for Prometheus
    budget_metrics.py    the budgets for Prometheus
    metrics.py           the figures for Prometheus
    figures.py           what they need of the journal
    api/                 HTTP over a Unix socket
    cli/                 the command line
    demo/                `wattmesh demo`
    replay/              `wattmesh policy bench`: runs over recorded grids, under the same decisions

Nodes:
    agent/               `wattmesh agent`, the process on each GPU node
    power.py             where power readings come from, as the settings say
    fleet.py             what all nodes together know: coverage, clocks, owners (pure)
    clocks.py            what is wished for the runs' GPUs (pure)
    capping.py           an operator's power cap in one cycle (pure)
    cap_held.py          what boards hear of it, and what people do (pure)

Settings:
    settings.py          read the file and name every mistake at once
    settings_model.py    every key, its default and its meaning
    settings_section.py  what every table has in common
    settings_carbon.py   the keys of [carbon]
    settings_checks.py   what only several keys together can tell
    settings_carbon_checks.py   the same of [carbon]
    settings_secrets.py  what a file with a secret must be
    settings_words.py    mistakes as sentences
    settings_text.py     the sample, and the keys for the manual

Profiling a job into a catalogue: profile.py and its neighbours profile_*.py.
"""
