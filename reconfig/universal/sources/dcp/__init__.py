"""Reads torch.distributed.checkpoint (DCP), and what else is named by its rules.

The map:
    beside.py    a model's and an optimizer's folder side by side, as Accelerate writes them
    chunks.py    locates the elements of a chunk
    dcp.py       opens a DCP folder
    entries.py   turns contents into an index and plain values
    groups.py    decodes an optimizer's groups, and renames what is saved by number
    metadata.py  decodes the `.metadata` of a DCP folder
    names.py     finds the prefixes of keys, and proves them
    unpack.py    writes a compressed folder's archives as plain ones
"""
