"""What is true now, with its unit and its age.

The map:
    readings.py          power readings and carbon points, and who can give them
    slots.py             where intervals of a fixed length begin (pure)
    ledger.py            what the energy ledger's rows are and how amounts are split (pure)
    meter.py             from two looks at a GPU to joules: the rules (pure)
    desired.py           clocks and caps that are wished for a node's GPUs, with leases (pure)
    attribution.py       which run a GPU works for (pure)
    pending.py           amounts that wait to be booked
    sampler.py           reads a source, applies the rules, books rows
    deadline.py          calls that may hang, with a deadline
    nvml.py              the one door to NVML: typed calls, errors, setters
    simulated.py         simulated GPUs behind the protocol that NVML will serve
    simulated_device.py  their physics and their record on disk (pure)
"""
