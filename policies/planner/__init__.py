"""Plans with few grams and a certificate (docs/planner.md). Pure.

The map:
    arrays.py                a planning problem as arrays, so that the recursion adds and compares
                             only
    break_even.py            when each point of a catalogue is, in words: hull, and the making of
                             GPUs
    constraints.py           what a plan must keep beside its deadline
    evaluate.py              what a path comes to, second by second: the judge of every plan
    grid.py                  the slots a plan is made in
    levels.py                the service level in the price of a token
    mpc.py                   the question for a plan, from what a cycle saw, and the answer as a
                             plan to follow
    options.py               a catalogue as the planner's options
    plan.py                  plans with few grams and a certificate
    planning.py              answers the question (numpy, in a worker)
    prices.py                the search for the price of a token
    problem.py               what the planner is asked and what it answers
    repair.py                from the paths of two prices to one good legal path
    route.py                 a path as prefix sums
    service_level_repair.py  the service level by single stretches
    steady.py                keeping to a plan
    viterbi.py               the recursion over slots and options
"""
