"""Profiling: runs a job at each of its points, and measures it.

The map:
    job.py      the file that describes the job
    launch.py   runs one launch of the job along a walk; says what went wrong
    meter.py    measures a profiled job from outside
    numbers.py  the measured numbers of each layout
    profile.py  `wattmesh configs profile`
    walk.py     the stand-in daemon that leads a job through layouts
"""
