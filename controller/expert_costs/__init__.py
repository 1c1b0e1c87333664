"""What the experts of live runs cost on each GPU, learned from the journal's counters.

The map:
    kept.py       what is kept of a run over a restart of the daemon, as one text
    learner.py    the turn that learns and publishes, for every run that reports expert-tokens
    learning.py   what the learner holds of one run
    reports.py    the newest reports of runs, in memory
    sentences.py  what a run was told, as `wattmesh why` says it
    steering.py   what settings, mode and limits make of it, for what a run is told
    strength.py   the outer loop of a run's strength: its facts from counts and the grid
    views.py      what the API tells of it

All of it is kept in the journal after each count, so whoever leads next goes on from there.
"""
