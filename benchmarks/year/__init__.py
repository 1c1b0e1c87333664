"""A whole year of a site, lived through by the real daemon's parts.

The map:
    __main__.py  the year, and what it came to
    daemon.py    the daemon under a virtual clock
    judge.py     what must hold besides grams: savings, holds, months, periods
    life.py      one life of one scenario, compared as it goes
    oracle.py    what was truly emitted, summed without the ledger's code
    run.py       replay's simulated run, taking orders from a daemon
    scenarios.py the runs of a site, and what goes wrong when
    world.py     time, GPUs, and what each truly drew
"""
