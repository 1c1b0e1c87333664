"""Commands about universal checkpoints.

The map:
    checkpoint.py         checkpoint convert, inspect, verify, export, prune; checkpoint_screen.py
    checkpoint_screen.py  screens and JSON of `wattmesh checkpoint`
"""
