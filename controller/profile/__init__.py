"""Profiling: runs a job at each of its points, and measures it.

The map:
    job.py      the file that describes the job
    meter.py    measures a profiled job from outside
    numbers.py  the measured numbers of each layout
    profile.py  `wattmesh configs profile`
    walk.py     runs one job through a list of layouts
"""
