"""What should be done with every run, and why: pure functions, `now` is in the observation.

The map:
    accounting/     the arithmetic of budgets and baselines (pure)
    forecast/       what the grid will emit: provider, own and profile, weighed by skill
    planner/        plans with a certified bound (numpy, in a worker)
    powercap/       sharing a power cap out over the runs (pure)
    rivals/         rules that others use, for replay
    rules/          deciding: the guard rules first, then orders, then a plan or the fallback rule
                    (pure)
    best_single.py  the point a careful person would choose once, by which a saving is split
    decision.py     what a cycle sees and what it decides (types)
    guard.py        the deadline guard, with its proof
    horizon.py      intensity from now to the deadline, beyond the forecast too
    hull.py         which points are ever worth running
    isolation.py    one run that cannot be reckoned with is held, with a sentence
    ladder.py       what decisions rest on as signals grow old
    menu.py         which points a run may be switched to at all
    run_context.py  one run with its menu and its guard, and what is missing to decide about it
    slowing.py      runs that go to slower clocks for it, cheapest step first
    speed.py        what speed can be counted on at each point, by what is known of it (pure)
    switch_time.py  how long a switch takes, as the deadline guard counts it (pure)
    words.py        grams, durations and times as the sentences say them
"""
