"""How long a plan takes, and how near to the best it is.

The map:
    __main__.py  seconds and certified gap
    peers.py     HiGHS on the same problems
"""
