"""Shares a power cap between the runs, and says which hours demand response caps. Pure.

The map:
    cap_windows.py      chooses windows of whole hours for caps
    capped.py           what a cap means for each run
    demand_response.py  which hours the grid's intensity or price has capped
    powercap.py         which clock and limit each board gets under a cap
    triggers.py         what demand response is given, and what it answers
"""
