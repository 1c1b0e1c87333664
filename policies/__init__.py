"""Decides what every run should do, and why: pure functions; `now` is in the observation.

The map:
    accounting/     the arithmetic of budgets and baselines
    cluster/        plans several runs under one cap, with a bound (numpy, SciPy; offline)
    experts/        joules of experts by GPU, and where experts should lie (numpy)
    forecast/       forecasts of the grid: the provider's and our own, weighted by skill
    layout_search/  looks for layouts: which there are, and what to measure next (numpy)
    parallelism/    predicts time, memory and energy of parallel layouts (numpy)
    planner/        plans with a certified bound (numpy, in a worker)
    powercap/       shares an operator's power cap between the runs
    rivals/         rules from the literature, for replay
    rules/          the decision: deadline guard first, then orders, then a plan or the price rule
    best_single.py  the best single point of a run, by which a saving is split
    break_even.py   the intensity from which each point of a catalogue pays
    decision.py     types: what a cycle sees and what it decides
    guard.py        the deadline guard, with its proof
    horizon.py      intensity from now to the deadline, beyond the forecast too
    hull.py         which points are ever worth running
    isolation.py    holds a run whose numbers cannot be used, with a sentence
    ladder.py       what decisions rest on as a signal grows old
    menu.py         the points that a run may be switched to, and whether it may sleep
    run_context.py  one run with its menu and its guard, or why it cannot be decided about
    shared_grid.py  the grid ahead, as the runs of one observation share it
    slowing.py      which runs a power cap slows, the cheapest step first
    speed.py        the speed that can be counted on at each point
    staleness.py    which points were proven too long ago, or on something else
    switch_model.py predicts what a switch spends from what others spent
    switch_time.py  how long a switch takes: as the deadline guard counts it, as plans expect it
    reason_text.py  writes times and points in sentences
"""
