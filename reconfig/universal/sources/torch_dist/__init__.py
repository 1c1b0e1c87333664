"""Reads `torch_dist` checkpoints of Megatron-core, which are DCP folders with rules of their own.

The map:
    common.py    reads common.pt: position, arguments, the optimizer's groups and step
    keys.py      sorts keys into parameters, slots and the rest, and takes stacked layers apart
    megatron.py  opens such a folder
    shards.py    proves that no shard of an object is missing
"""
