"""What the physics of a step leaves over, and how alike two runs err in it. Pure.

The map:
    error_covariance.py  how alike two runs err
    known_errors.py      what the physics leaves over, learned: a Gaussian process
"""
