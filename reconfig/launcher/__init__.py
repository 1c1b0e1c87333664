"""What starts the ranks of a job, as wattmesh needs it: it holds a next launch while a run sleeps.

The map:
    contract.py   what wattmesh asks of every launcher
    own_clock.py  a supervisor that is its own alarm clock
    sleeper.py    a supervisor's part in sleep
"""
