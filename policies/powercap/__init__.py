"""Shares an operator's power cap between the runs. Pure.

The map:
    capped.py    what a cap means for each run
    powercap.py  which clock and limit each board gets under a cap
"""
