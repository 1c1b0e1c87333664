"""What moving a job between layouts costs, in place and by restart.

The map:
    __main__.py  `--part latency`, `bytes` or `soak`
    job.py       one rank of the job
    orders.py    gives the job its orders, as a daemon would
"""
