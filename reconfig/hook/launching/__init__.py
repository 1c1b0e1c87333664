"""How a launch begins, and how a run falls asleep: claim, registration, first generation, alarm.

The map:
    launch_leader.py  the duties of global rank 0: claim, registration, first generation
    launcher.py       the messages between a rank and its launcher
    sleep.py          how a run falls asleep
    start.py          how a launch begins: global rank 0 decides checkpoint and layout, and tells
                      the others
"""
