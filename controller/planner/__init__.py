"""Plans are made off the cycle, in one child process.

The map:
    asking.py   when a plan is asked for, what it rests on, and why there is none
    child.py    the planning process
    process.py  the daemon's end of the planning process
    view.py     the plan of one run as a person asks for it
    wire.py     what the daemon and its planning process say to each other
    worker.py   plans for the cycle
"""
