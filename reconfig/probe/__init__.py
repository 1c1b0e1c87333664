"""Compares a rebuilt state with the one before: the probe's loss and its noise.

The map:
    noise.py          how much the probes of two layouts may differ
    probing.py        computes the loss of the fixed batch without side effects
    rebuild_check.py  checks that all ranks agree after a rebuild
    reordered.py      measures the noise floor of a probe
"""
