"""What the actuator may do to a GPU, and for how long. Pure but for `clock.py`.

The map:
    clock.py     reads the wall clock and the boot clock
    facts.py     a GPU's readings, our lock and cap on it, the next act (pure types)
    fence.py     which controller is obeyed: one journal, its newest epoch (pure)
    leases.py    how long a wish lasts (pure)
    own_locks.py clocks that a user locks on GPUs of that user's own (pure)
    refusals.py  why a wish is not obeyed, in sentences (pure)
    rules.py     which GPU is written next, and to what (pure)
    watching.py  whether our lock and cap are still in force (pure)
"""
