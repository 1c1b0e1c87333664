"""How many lines a quiet day leaves in the logs.

The map:
    __main__.py  the day, and the count of its lines
    job.py       the job: two ranks, four switches
"""
