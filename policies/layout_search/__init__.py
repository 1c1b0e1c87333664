"""Looks for parallel layouts: which there are, which nothing beats, what to measure next. Pure.

The map:
    compared_counts.py  expert groups over two classes: equal counts beside counts by speed
    expert_groups.py    what such groups are, and what they cost
    gpu_parts.py        a job on two classes of GPUs
    mixed.py            layouts over two classes: unequal replicas, stages, counts of experts
    next_profile.py     what to measure next: the point that would save a job most grams
    own_points.py       a job's predictions, corrected by its own measured points
    runnable.py         the points that one job can run, corrected by its own measured ones
    search.py           the layouts and clocks that nothing beats
    space.py            every uniform layout of a model on a cluster
"""
