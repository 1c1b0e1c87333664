"""`configs profile`: points are run and measured.

The map:
    job.py      the file that says what to profile
    meter.py    watches a profiled job from outside
    numbers.py  what a profiled walk says about each layout
    profile.py  `wattmesh configs profile`
    walk.py     walks one job through a list of layouts
"""
