"""What the daemon costs: memory, start, processor, answers.

The map:
    __main__.py  the measurements
    site.py      a node with 8 fake GPUs, and one run on them
"""
