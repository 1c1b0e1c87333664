"""What converting and loading a checkpoint costs.

The map:
    __main__.py    conversions beside DeepSpeed's and torch's, and the disk's own speed
    disk_bound.py  how fast the disk gives and takes bytes at once
    load.py        `--load`: into another layout, torch's reader beside ours
    sources.py     checkpoints to convert, written by the tools whose formats they are
"""
