"""The decision: guard rules first, then orders, then a plan or the price rule. Pure.

The map:
    asleep.py     a suspended run: stays asleep while the plan says so, then wakes
    automatic.py  the policy that saves grams: plan, guard, limits, gain
    decide.py     one decision per live run: the rules in the order of priorities
    follow.py     switches to the newest plan's point, if every gate allows it
    gate.py       whether a switch is worth its cost
    limits.py     the operator's limits on how often a run may change
    orders.py     carries out or refuses an operator's order
    outlook.py    hull, plan and price from a run's present point
    price.py      the carbon price of a token: exact least grams, bound, schedule
    reasons.py    the sentences of the policy that saves grams
    suspend.py    puts a run to sleep, and says when its alarm wakes it
"""
