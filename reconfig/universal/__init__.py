"""The universal checkpoint: an index from (tensor, state) to bytes, wherever they lie. No torch.

The map, from the pure core outwards:
    dtypes.py, box.py, rules.py   element types, boxes of indices, declared layout rules
    index.py, cover.py            the index; the proof that nothing is missing or counted twice
    planner.py                    which stored bytes make up a wanted box
    columns.py, folder.py         the index and the checkpoint on disk
    reader.py                     bytes of a box, and no others
    unpickle.py, archive.py       foreign pickles and torch archives as byte ranges
    sources/                      torch DCP, DeepSpeed, our own
    staging.py, origin.py         a folder while it is made; what it says of its source
    virtual.py, physical.py       the two kinds; convert.py chooses
    arranging.py, filling.py      where tensors go in data files, copying them; worker.py
    data_header.py                how a data file begins
    hashing.py, record.py         digests of segments; what makes a virtual one count as verified
    verify.py, prune.py           proving a checkpoint, letting old ones go
    replicas.py, missing.py       copies that differ, slots that are lost
    logical.py, against.py        the job's own digest from disk; two checkpoints compared
    exports/, exporting.py        Hugging Face, torch DCP, DeepSpeed
"""
