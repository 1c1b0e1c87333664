"""Profiling: runs a job at each of its points, and measures it.

The map:
    measuring/     what is read of a launch while one point is measured
    job.py         the file that describes the job
    kept.py        what an earlier call left in the folder, or why it is refused
    launch.py      runs one launch of the job along a walk; says what went wrong
    measured.py    what was measured, as a catalogue (pure)
    next_points.py  proposes further points, by what was just measured
    point_checks.py  whether a draw is idle, or a point dominated (pure)
    point_line.py  the line that tells a measured point (pure)
    power/         what measures power, and what sets clocks
    profile.py     `wattmesh configs profile`
    proof.py       holds the losses of a profile against a run that never switches
    results.py     what was measured so far, in a file that survives a kill
    search_table.py  the `[search]` table of a job file
    switch_order.py  which switches are measured beside the points (pure)
    tour.py        where a launch goes next, and when a point is measured
    walk.py        the stand-in daemon that leads a job through layouts
"""
