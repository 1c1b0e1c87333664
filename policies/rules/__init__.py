"""Deciding: the guard rules first, then orders, then a plan or the fallback rule. Pure.

The map:
    asleep.py     a suspended run: asleep while the plan says so, else woken
    automatic.py  the policy that saves grams: plan, guard, limits, gain
    decide.py     one decision per live run: the rules in the order of priorities
    follow.py     the newest plan's point for now, behind every gate
    gate.py       is a switch worth its cost
    limits.py     the operator's limits on how often a run may change
    orders.py     what an operator ordered: carried out or refused
    outlook.py    hull, plan and price from where one run is
    price.py      the carbon price of a token: exact least grams, bound, schedule
    reasons.py    what that policy says
"""
