"""Computes plans in one child process, off the cycle.

The map:
    asking.py   when a plan is asked for, what it rests on, and why there is none
    child.py    the planning process
    process.py  the daemon's end of the planning process
    view.py     the answer of `GET /v1/runs/{run}/plan`
    wire.py     the messages between daemon and planning process
    worker.py   keeps the newest plan of each run for the cycle
"""
