"""Rules for several runs that make no joint plan: what the joint plan is compared with. Pure.

The map:
    dispatch.py    which points fit beside each other in one slot, for rules that do not plan
    first_come.py  rule: the submitted point, in order of arrival
    greedy.py      rule: everyone its needed speed, what is left by tokens for a gram
    one_by_one.py  rule: each run plans alone, in what those before it left
"""
