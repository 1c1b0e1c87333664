"""Commands about universal checkpoints.

The map:
    checkpoint.py         `wattmesh checkpoint`: convert, inspect, verify, export, prune
    checkpoint_screen.py  the screens and JSON of `wattmesh checkpoint`
"""
