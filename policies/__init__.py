"""What should be done with every run, and why: pure functions, `now` is in the observation.

The map:
    accounting/     the arithmetic of budgets and baselines
    forecast/       what the grid will emit: the provider's forecast and our own, weighed by skill
    planner/        plans with a certified bound (numpy, in a worker)
    powercap/       how runs share an operator's power cap
    rivals/         rules that others use, for replay
    rules/          the decision: deadline guard first, then orders, then a plan or the price rule
    best_single.py  the best one-time choice of a point, by which a saving is split
    break_even.py   from which intensity on each point of a catalogue pays
    decision.py     types: what a cycle sees and what it decides
    guard.py        the deadline guard, with its proof
    horizon.py      intensity from now to the deadline, beyond the forecast too
    hull.py         which points are ever worth running
    isolation.py    a run whose numbers cannot be used is held, with a sentence
    ladder.py       which signal decisions rest on as it grows old
    menu.py         which points a run may be switched to at all
    run_context.py  one run with its menu and its guard, or what is missing to decide about it
    slowing.py      which runs go to a slower clock for a power cap, the cheapest step first
    speed.py        the speed that can be counted on at each point, by what is known of it
    switch_time.py  how long a switch takes, as the deadline guard counts it
    words.py        times and points as the sentences write them
"""
