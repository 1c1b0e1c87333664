"""The daemon: its life, and how its parts are put together.

The map:
    __main__.py     start, signals, reload, stop; what systemd is told
    lease.py        one daemon leads, the others stand by
    loop_bodies.py  what each loop and job does in one turn
    metering.py     reads and books the devices of this machine; an agent's process does it so, too
    period_roll.py  what happens at the borders of periods
    power.py        where power readings come from, as the settings say
    wiring.py       every part made from the settings, started in order, stopped in reverse
"""
