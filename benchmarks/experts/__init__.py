"""Routers that know what GPUs cost: loss, modelled energy, largest load.

The map:
    __main__.py  the comparison
    groups.py    groups of GPUs, and routing of known structure
    overhead.py  what the router costs beside a plain one
    train.py     trains a small mixture of experts with one router
"""
