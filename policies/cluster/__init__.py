"""Plans several runs that share GPUs and an operator's cap, with a certified bound. Pure.

numpy and SciPy are needed, so of this only `joint_question.py` is in the daemon
(docs/several-runs.md).

The map:
    rules/         rules that make no joint plan, to compare with
    account.py     what all runs came to together, second by second
    arrivals.py    the joint plan of a stream, made anew whenever a run arrives
    joint.py       the joint plan: prices, bound, whole plans
    joint_question.py  what the daemon asks its planning process about all runs
    known_ahead.py  the joint plan of runs that are all known, and the bound
    many_runs.py   the joint plan of very many runs under a power cap, in seconds
    master.py      which plan of each run, as a linear and as a whole-number program
    mixed_runs.py  a bound and prices for very many runs
    neighbourhood.py  makes a joint plan better, a few runs at a time
    pricing.py     one run's planner under the prices of what is shared, or in the room left
    relaxation.py  first prices: the linear program without switches
    share.py       what a run takes of what is shared, by slot
    shared.py      types: runs, slots, limits
"""
