"""Validation: proves with a user's own job that its operating points train alike.

The map:
    judge.py        judges one launch beside the reference and its controls
    launches.py     runs the launches, each once
    pairs.py        switches between candidates, and which points may stand together
    results.py      what was proven so far, in a file
    rules.py        what must hold before a job is started, and before a point is stamped
    seed_trials.py  compares a point over seeds
    validate.py     `wattmesh configs validate`
"""
