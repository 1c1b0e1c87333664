"""What should be done with every run, and why: pure functions, `now` is in the observation.

decision.py    what a cycle sees and what it decides (types)
decide.py      one decision per live run: the rules in the order of priorities
orders.py      what an operator ordered: carried out or refused
case.py        one run with its menu and its guard, and what is missing to decide about it
menu.py        which points a run may be switched to at all
guard.py       the deadline guard, with its proof
hull.py        which points are ever worth running
ladder.py      what decisions rest on as signals grow old
horizon.py     intensity from now to the deadline, beyond the forecast too
price.py       the carbon price of a token: exact least grams, bound, schedule
outlook.py     hull, plan and price from where one run is
gate.py        is a switch worth its cost
automatic.py   the policy that saves grams: plan, guard, limits, gain
reasons.py     what that policy says
words.py       grams, durations and times as the sentences say them
baseline.py    the counterfactual: where the run would be had it never been touched
"""
