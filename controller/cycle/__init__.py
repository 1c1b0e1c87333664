"""Observe, decide, act: the control cycle and the facts that it decides on.

The map:
    act.py              the live port that acts: commits each decision as an intent row
    cap_held.py         how a power cap is kept, and what operators do about it
    capping.py          the power cap in one cycle
    carbon_view.py      the decision signal as the journal knows it
    clocks.py           the clocks that the runs' GPUs are to have (pure)
    cycle.py            observe, decide, act, through two ports; one English sentence per turn
    demand_response.py  what demand response announces and takes back, as rows
    demand_signals.py   the signals that it follows, as the journal knows them
    fences.py           nodes whose actuator obeys another journal or epoch, and what to do (pure)
    fleet.py            what all nodes together know: coverage, clocks, owners (pure)
    isolation.py        keeps a failure within one run or node
    journal_snapshot.py everything that one turn reads of the journal, in one transaction
    measured_speeds.py  the measured speed of each run at each of its points
    observe.py          the live port that observes: a snapshot becomes an observation
    plans.py            the newest plan of each run, which an observation carries (pure)
    queue_waits.py      the measured wait for GPUs in a run's catalogue (pure)
    states.py           gives up an open switch that took too long
"""
