"""From readings to joules: whose they are, what is booked, what nobody saw.

The map:
    attribution.py  which run a GPU works for (pure)
    burst.py        ten looks a second for a while, with an error bound
    crosscheck.py   the counter held against the integral of power (pure)
    delivery.py     what an agent hands to the controller (pure)
    exporter.py     devices as metrics for Prometheus
    ledger.py       what the energy ledger's rows are and how amounts are split (pure)
    meter.py        from two looks at a GPU to joules: the rules (pure)
    node_claims.py  both together, look after look
    node_view.py    who computes on a node's GPUs, as its process table shows
    pending.py      amounts that wait to be booked
    residual.py     what a node's meter shows beyond its parts (pure)
    sampler.py      reads a source, applies the rules, books rows
    unobserved.py   time of a held GPU that nobody booked (pure)
"""
