"""What moving a job between layouts costs, in place and by restart.

The map:
    __main__.py   `--part latency`, `bytes`, `soak`, `spend` or `kept`
    spend.py      the part `spend`: a list over sizes and ranks, and the error of its prediction
    kept.py       the part `kept`: switches on the same mesh
    launching.py  starts the job and reads what it noted
    job.py        one rank of the job
    orders.py     gives the job its orders, as a daemon would
"""
