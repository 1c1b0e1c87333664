"""Plans with few grams and a bound that certifies them (docs/planner.md). Pure.

The map:
    arrays.py         a planning problem as arrays, so that the recursion only adds and compares
    constraints.py    power cap, service level and budget, as a problem states them
    evaluate.py       what a path comes to, second by second: the judge of every plan
    grid.py           the time slots that a plan is made in
    mpc.py            the question for a plan, from one observation, and its answer as steps
    options.py        a catalogue as options, and what going from one to another takes
    planning.py       answers a question: solver, the plan before, forecast band (in a worker)
    prices.py         the search for the price of a token
    problem.py        types: what the solver is asked and what it answers
    repair.py         from the paths of two prices to one good legal path
    route.py          a path as prefix sums
    service_level.py  the service level: prices of windows, and repair of single stretches
    solver.py         one problem in, a plan with its bound out
    steady.py         when the plan before is kept
    viterbi.py        the recursion over slots and options
"""
