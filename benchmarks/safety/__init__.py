"""The safety matrix with its measured seconds.

The map:
    __main__.py  who gives GPUs back when something vanishes
    cases.py     what is done to a node in each row
    node.py      one GPU node in real processes, on a fake NVML library
    rows.py      the rows: a state, what vanishes, what brings it back, how soon
"""
