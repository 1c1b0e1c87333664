"""Observe, decide, act: the control cycle and the facts that it decides on.

The map:
    act.py              a decision becomes an intent row
    cap_held.py         an operator's power cap as it is kept: what boards hear of it, and what
                        people do
    capping.py          the operator's power cap in one cycle
    clocks.py           what is wished for the runs' GPUs (pure)
    cycle.py            observe, decide, act; one English sentence per turn
    fences.py           nodes whose actuator refuses this controller by its fence, and what to do
                        about it (pure)
    fleet.py            what all nodes together know: coverage, clocks, owners (pure)
    isolation.py        what is done for one run or node alone, in a loop over all
    measured_speeds.py  how fast each run trains at each of its points, as the journal remembers it
    observe.py          journal rows become one frozen observation
    states.py           when an open switch is given up
    think.py            the newest plans laid beside the runs, then decide
"""
