"""What 1,000 runs on 10,000 GPUs cost the daemon.

The map:
    __main__.py  the measurements
    month.py     what memory and journal grow by in a month, under a virtual clock
    site.py      nodes that deliver, runs that train
"""
