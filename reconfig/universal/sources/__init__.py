"""Checkpoints that others wrote, read without torch and without running anything they hold.

The map:
    dcp.py           folders of torch's distributed checkpoint
    dcp_metadata.py  the `.metadata` of a torch DCP folder
    dcp_names.py     finding out which prefixes a DCP folder's keys have, and proving it
    deepspeed.py     DeepSpeed checkpoints
    detect.py        which kind of checkpoint a path is, and opening it
    own.py           a universal checkpoint as a source
    plain.py         plain data out of a foreign pickle as JSON values, or not at all
    slots.py         which optimizer slots each parameter has, and whether one of them is missing
    source.py        what every kind of source gives
    ties.py          two names that were declared to be one tensor, compared byte by byte before one
                     is dropped
    zero.py          where ZeRO put the elements of every parameter
    zero_index.py    zeRO's flat buffers as an index
"""
