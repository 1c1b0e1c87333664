"""The leader vanishes in the middle of every state of a switch.

The map:
    __main__.py  who leads after how long, and what becomes of the job
    job.py       the job: two small ranks
    site.py      two daemons on one PostgreSQL, and one node
"""
