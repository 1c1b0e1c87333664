"""Observe, decide, act: the control cycle and the facts that it decides on.

The map:
    act.py              the live port that acts: a decision becomes an intent row
    cap_held.py         an operator's power cap as it is kept: what boards hear of it, and what
                        people do
    capping.py          the operator's power cap in one cycle
    carbon_view.py      the decision signal as the journal knows it
    clocks.py           what is wished for the runs' GPUs (pure)
    cycle.py            observe, decide, act, through two ports; one English sentence per turn
    fences.py           nodes whose actuator refuses this controller by its fence, and what to do
                        about it (pure)
    fleet.py            what all nodes together know: coverage, clocks, owners (pure)
    isolation.py        what is done for one run or node alone, in a loop over all
    journal_snapshot.py everything that a turn reads of the journal, in one transaction
    measured_speeds.py  how fast each run trains at each of its points, as the journal remembers it
    observe.py          the live port that observes: a snapshot becomes an observation
    states.py           when an open switch is given up
"""
