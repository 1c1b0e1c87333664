"""Checks V3 to V8, each of which returns a `Verdict`.

The map:
    masks.py    V4 dropout masks, V6 expert choices
    ragged.py   V5 loss over ragged masks, by size of microbatch
    samples.py  V3 the samples that each step consumed
    seeds.py    V8 on a user's job: gradient, state and losses alike on the mean over seeds
    trials.py   V8 final losses over seeds: equivalence by two one-sided tests
"""
