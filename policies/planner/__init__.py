"""Plans with few grams and a certificate (docs/planner.md). Pure.

The map:
    arrays.py    a planning problem as arrays, so that the recursion adds and compares only
    evaluate.py  what a path comes to, second by second: the judge of every plan
    grid.py      the slots a plan is made in
    lift.py      the service level by single stretches
    levels.py    the service level in the price of a token
    options.py   a catalogue as the planner's options
    plan.py      plans with few grams and a certificate
    prices.py    the search for the price of a token
    problem.py   what the planner is asked and what it answers
    repair.py    from the paths of two prices to one good legal path
    route.py     a path as prefix sums
    steady.py    keeping to a plan
    viterbi.py   the recursion over slots and options
"""
