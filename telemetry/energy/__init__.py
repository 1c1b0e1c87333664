"""From readings to joules: which run they belong to, what is booked, what was not observed.

The map:
    attribution.py  which run a GPU works for (pure)
    burst.py        samples at 10 Hz for a while: mean power with its error bound
    crosscheck.py   compares the energy counter with the integral of power (pure)
    delivery.py     what an agent hands to the controller (pure)
    exporter.py     exports a node's devices as Prometheus metrics
    ledger.py       rows and slots of the energy ledger, exact splitting (pure)
    meter.py        joules between two readings of a GPU: the rules (pure)
    node_claims.py  reads both at every step, and keeps the last view for a while
    node_view.py    processes on a node's GPUs, their users and jobs, from /proc
    pending.py      amounts that are not booked yet
    residual.py     power of a node's meter beyond its metered parts
    sampler.py      reads a source, applies the rules, books rows
    unobserved.py   time of a held GPU that nobody booked (pure)
"""
