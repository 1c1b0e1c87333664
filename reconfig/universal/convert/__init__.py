"""From any source to a universal checkpoint, and from one to other formats.

The map:
    convert.py    from any source to a checkpoint of either kind
    exporting.py  from a checkpoint to another tool's format
    filling.py    bytes of the segments of one index, gathered through another, into files
    origin.py     what a new checkpoint says of the one it is made from, and whether that one kept
                  still
    physical.py   a physical checkpoint
    virtual.py    a virtual checkpoint
    worker.py     one process of a physical conversion
"""
