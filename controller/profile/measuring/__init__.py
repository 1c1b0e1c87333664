"""What is read of a launch while one point is measured.

The map:
    probes.py     what the probe's loss did at a switch (pure)
    ranks.py      memory and processor time of the ranks, from outside
    step_tail.py  reads a step log while it grows
    windows.py    a point's numbers from step ends and joules (pure)
"""
