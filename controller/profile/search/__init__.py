"""Profiling that looks for points by itself: what to measure next, from what was just measured.

The map:
    asking.py      asks for the next point, in a child process, and says why it is the next
    table.py       the `[search]` table of a job file
"""
