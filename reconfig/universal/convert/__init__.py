"""Converts any source to a universal checkpoint, and a universal checkpoint to other formats.

The map:
    convert.py    converts a source to a virtual or physical checkpoint
    exporting.py  exports a checkpoint to another tool's format
    filling.py    copies segments into the files of a physical checkpoint
    origin.py     the provenance of a converted checkpoint; detects a source that changed
    physical.py   writes a physical checkpoint
    virtual.py    writes a virtual checkpoint
    worker.py     a worker process of a physical conversion
"""
