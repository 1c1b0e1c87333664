"""Sharing a power cap out over the runs. Pure.

The map:
    capped.py    what a cap means for runs
    powercap.py  an operator's power cap: which clock and limit each board gets
"""
