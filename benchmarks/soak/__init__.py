"""The demo's daemon for an hour at real speed, while everything around it breaks.

The map:
    __main__.py   the hour, and what must hold all through it
    wall_clock.c  steps the wall clock of one process
"""
