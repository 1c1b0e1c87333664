"""Experts of a mixture, what each GPU asks for them, and where they should lie. Pure.

The map:
    placement/       which GPU holds which expert, and which hold copies (numpy)
    costs.py         joules per expert-token of a GPU, learned from its counters
    counts.py        how many experts each GPU of a mixed group holds, by its speed
    layer_energy.py  modelled energy of an expert layer; who waits draws its idle power
    live_spans.py    spans of a live run: its counts beside its counters
    published.py     which scores a run is told, and when they count as new
    quality.py       whether leaning costs too much: a sequential test on paired probes
    scores.py        costs as the scores that a router gets; all zero where they say nothing
    strength.py      how far routers may lean now: the outer loop with its bounds
    tilt.py          loads that lean towards cheap GPUs, up to a cap
"""
