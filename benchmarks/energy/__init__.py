"""How right the energy ledger is where the true energy is known.

The map:
    __main__.py  ours beside other tools, with faults
    peers.py     other tools, each in a process of its own
    sampler.py   our sampler as a process of its own
    worlds.py    the GPUs: what each draws, and what goes wrong with it
"""
