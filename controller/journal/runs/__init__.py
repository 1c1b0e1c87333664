"""What the journal keeps of runs: launches, switches, where each stood and when.

The map:
    admission.py         who may begin a run and speak for it, and how it ends
    doubtful_runs.py     runs that began while the wall clock was in doubt
    frozen_catalogue.py  a run's catalogue as it was when it was registered
    introduced.py        what an introduction puts into a run's row (pure)
    liveness.py          which runs live: their newest signs of life, in memory
    outages.py           how much of its time a run stood in outages nobody ordered
    run_nodes.py         on which node a run speaks
    run_row.py           one run, as the settings name it and as the journal tells it
    run_store.py         what runs report, freezes, operator's wishes
    signs.py             hearing signs of life, and writing them down now and then
    stays.py             where each run was when, and its launches
    switches.py          switches (the intent row is the order) and their transitions
"""
