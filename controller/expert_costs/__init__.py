"""What the experts of live runs cost on each GPU, learned from the journal's counters.

The map:
    learner.py    the turn that learns and publishes, for every run that reports expert-tokens
    reports.py    the newest reports of runs, in memory
    sentences.py  what a run was told, as `wattmesh why` says it
    strength.py   the outer loop of a run's strength: its facts from counts and the grid
    views.py      what the API tells of it

Nothing of it is kept over a restart: it is learned again within a few save steps, and a run keeps
what it has until then.
"""
