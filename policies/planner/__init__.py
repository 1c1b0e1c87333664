"""Plans with few grams and a bound that certifies them (docs/planner.md). Pure.

The map:
    arrays.py         a planning problem as arrays, for a fast recursion
    constraints.py    power cap, service level and budget, as a problem states them
    evaluate.py       computes what a path emits, second by second
    grid.py           the time slots that a plan is made in
    mpc.py            makes a planning question from an observation, and steps from its answer
    options.py        a catalogue as options, with the cost of going from one to another
    planning.py       answers a question: solver, previous plan, forecast band (in a worker)
    prices.py         searches the price of a token
    problem.py        types: the solver's problem and its answer
    repair.py         joins the paths of two prices into one that is allowed
    route.py          a path as prefix sums
    service_level.py  the service level: prices of windows, and repair of stretches
    solver.py         solves one problem; gives a plan with its bound
    steady.py         when the previous plan is kept
    viterbi.py        the recursion over slots and options
"""
