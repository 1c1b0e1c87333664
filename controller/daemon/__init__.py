"""The daemon's process: start, loops, stop.

The map:
    __main__.py     the process: signals, reload, and what systemd is told
    epoch_fence.py  what a stopped daemon had begun is not written once another leads
    lease.py        one daemon leads, the others stand by
    loop_bodies.py  one turn of each loop and job
    metering.py     reads and books the devices of one machine; agents use it too
    opening.py      opens the journal, also while its database is away
    period_roll.py  what happens when a period ends
    polls.py        the polls of grid signals, and of what is forecast beside them
    point_watch.py  compares points with their catalogues
    power.py        opens the power sources that the settings name
    pricing.py      books the grams of what was drawn
    wiring.py       makes every part from the settings; starts them in order, stops them in reverse
"""
