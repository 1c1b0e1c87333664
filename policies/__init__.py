"""What should be done with every run, and why: pure functions, `now` is in the observation.

decision.py    what a cycle sees and what it decides (types)
decide.py      one decision per live run: the rules in the order of priorities
orders.py      what an operator ordered: carried out or refused
case.py        one run with its menu and its guard, and what is missing to decide about it
menu.py        which points a run may be switched to at all
powercap.py    an operator's power cap: which clock and limit each board gets
slowing.py     runs that go to slower clocks for it, cheapest step first
capped.py      what a cap means for runs
constraints.py what a plan must keep beside its deadline: cap, service level, budget
guard.py       the deadline guard, with its proof
hull.py        which points are ever worth running
worth.py       when each point of a catalogue is, in words: hull, and the making of GPUs
ladder.py      what decisions rest on as signals grow old
forecast/      what the grid will emit: provider, own and profile, weighed by skill
horizon.py     intensity from now to the deadline, beyond the forecast too
caution.py     hours that nobody can foresee count somewhat dirtier
price.py       the carbon price of a token: exact least grams, bound, schedule
outlook.py     hull, plan and price from where one run is
gate.py        is a switch worth its cost
mpc.py         the question for a plan, from what a cycle saw, and the answer as a plan to follow
follow.py      the newest plan's point for now, behind every gate
asleep.py      a suspended run: asleep while the plan says so, else woken
automatic.py   the policy that saves grams: plan, guard, limits, gain
reasons.py     what that policy says
rivals/        rules that others use, for replay
planner/       plans with a certified bound (numpy, in a worker)
planning.py    answers the question (numpy, in a worker)
words.py       grams, durations and times as the sentences say them
budget.py      a budget as a curve: burn in windows, course with a band; decides nothing
baseline.py    the counterfactual: where the run would be had it never been touched
best_single.py the point a careful person would choose once, by which a saving is split
"""
