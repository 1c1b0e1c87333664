"""Universal checkpoints as a storage of torch's distributed checkpoint (DCP).

The map:
    files.py   one rank's data files of a universal checkpoint
    merge.py   merges all ranks' parts to one index
    parts.py   what one rank writes, from DCP's plan
    reader.py  the DCP storage reader
    writer.py  the DCP storage writer
"""
