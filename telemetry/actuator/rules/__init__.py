"""What the actuator may do to a GPU, and for how long. Pure.

The map:
    clock.py     the machine's clocks
    facts.py     what is seen of a GPU, what is ours there, what is to be done (pure types)
    fence.py     whom it obeys: one journal, and its newest epoch (pure)
    leases.py    how long a wish holds (pure)
    refusals.py  why a wish is not obeyed (pure)
    rules.py     what is written next (pure)
    watching.py  whether what we wrote is still in force (pure)
"""
