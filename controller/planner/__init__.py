"""Computes plans in one child process, off the cycle.

The map:
    asking.py   when a plan is asked for, what it rests on, and why there is none
    child.py    the planning process
    joint_asking.py  when a joint plan of all runs is asked for, and what is said of it
    joint_state.py   how far the joint plan is, and which room it leaves each run
    joint_worker.py  asks for the joint plan while runs share a power cap
    process.py  the daemon's end of the planning process
    view.py     the answer of `GET /v1/runs/{run}/plan`
    wire.py     the messages between daemon and planning process
    worker.py   keeps the newest plan of each run for the cycle
"""
