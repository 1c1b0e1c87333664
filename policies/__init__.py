"""What should be done with every run, and why: pure functions, `now` is in the observation.

decision.py    what a cycle sees and what it decides (types)
decide.py      one decision per live run: the rules in the order of priorities
orders.py      what an operator ordered: carried out or refused
case.py        one run with its menu and its guard, and what is missing to decide about it
menu.py        which points a run may be switched to at all
powercap.py    an operator's power cap: which clock and limit each board gets
capped.py      what a cap means for runs
guard.py       the deadline guard, with its proof
hull.py        which points are ever worth running
ladder.py      what decisions rest on as signals grow old
forecast.py    what the grid will emit: provider, own and profile, weighed by skill
skill.py       how far off each source was, by how far ahead it looked
series.py      what was observed, as whole hours
anchored.py    a forecast from eight days, without training
learned.py     our own: the profile corrected by what the series taught (numpy)
lookback.py    the features it looks at (numpy)
horizon.py     intensity from now to the deadline, beyond the forecast too
price.py       the carbon price of a token: exact least grams, bound, schedule
outlook.py     hull, plan and price from where one run is
gate.py        is a switch worth its cost
mpc.py         the question for a plan, from what a cycle saw, and the answer as a plan to follow
follow.py      the newest plan's point for now, behind every gate
asleep.py      a suspended run: asleep while the plan says so, else woken
far.py         the grid further ahead than a forecast knows: its usual day
automatic.py   the policy that saves grams: plan, guard, limits, gain
reasons.py     what that policy says
rivals/        rules that others use, for replay
planning.py    answers the question (numpy, in a worker)
problem.py     what the planner is asked and what it answers (types)
options.py     a catalogue as the planner's options and transitions
grid.py        the slots a plan is made in
planner.py     plans with a certified bound; it and the six after it need numpy
prices.py      the search for the price of a token
levels.py      the service level as prices of windows
viterbi.py     the recursion over (slot, option), many prices at once
arrays.py      a problem as arrays
repair.py      from the paths of two prices to one legal plan
route.py       a path as prefix sums
evaluate.py    what a path comes to, second by second: the judge of every plan
steady.py      keeping to a plan while a new one is hardly better
cautious.py    planning by quantiles or over scenarios
regret.py      what hindsight would have saved, and whose fault it is
words.py       grams, durations and times as the sentences say them
budget.py      a budget as a curve: burn in windows, course with a band; decides nothing
baseline.py    the counterfactual: where the run would be had it never been touched
"""
