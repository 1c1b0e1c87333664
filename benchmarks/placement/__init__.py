"""Where experts lie, beside contiguous, random and the exact best.

The map:
    __main__.py  traffic and modelled energy
    exact.py     the best there is, by integer programming
"""
