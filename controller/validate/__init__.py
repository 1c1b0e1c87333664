"""Validation: proves with a user's own job that its operating points train alike.

The map:
    judge.py     judges one launch beside the reference and its controls
    results.py   what was proven so far, in a file
    rules.py     what must hold before a job is started, and before a point is stamped
    validate.py  `wattmesh configs validate`
"""
