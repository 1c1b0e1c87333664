"""Which GPU holds which expert of which layer: little traffic, few joules, no one late.

Where an expert lies changes nothing that it computes, so a placement has no price in quality.

The map:
    affinity.py   counts of what tokens chose: loads, pairs, and the next layer's experts
    problem.py    types: GPUs, counts, what a crossing costs; the seconds that are allowed
    objective.py  what a placement costs
    starts.py     where a search begins: by load, and by affinity
    exchange.py   makes one layer better by exchanges (Kernighan-Lin)
    search.py     the search: starts, layers in turn, the best of all
    replicas.py   copies of hot experts on the cheapest GPUs that have time for them
"""
