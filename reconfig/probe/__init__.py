"""How a rebuilt state is held against the one before: the probe's loss and its noise.

The map:
    noise.py          how far two layouts' probes may be apart
    probing.py        the loss of the fixed batch, taken from a state that then trains on as if it
                      had not been
    rebuild_check.py  do all ranks stand at the same place after a rebuild?
    reordered.py      the noise floor of a probe, measured
"""
