"""Reads other systems' checkpoints without torch, and without running any of their code.

The map:
    dcp.py           opens a folder of torch.distributed.checkpoint
    dcp_metadata.py  decodes the `.metadata` of a DCP folder
    dcp_names.py     finds the prefixes of a DCP folder's keys, and proves them
    deepspeed.py     opens a DeepSpeed ZeRO checkpoint
    detect.py        detects the kind of a checkpoint, and opens it
    own.py           opens a universal checkpoint as a source
    plain.py         converts plain data from a pickle to JSON values
    slots.py         checks that no parameter lacks an optimizer slot
    source.py        the result of opening any source: index, values, fingerprints
    ties.py          compares tensors that are declared to be tied
    zero.py          ZeRO's fragments of every parameter
    zero_index.py    builds an index over ZeRO's flat buffers
"""
