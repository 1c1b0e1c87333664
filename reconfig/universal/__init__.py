"""The universal checkpoint: an index from (tensor, state) to bytes, wherever they lie. No torch.

The map, from the pure core outwards:
    dtypes.py, box.py, rules.py   element types, boxes of indices, declared layout rules
    index.py, cover.py            the index; the proof that nothing is missing or counted twice
    planner.py                    which stored bytes make up a wanted box
    columns.py, folder.py         the index and the checkpoint on disk
    reader.py                     bytes of a box, and no others
    unpickle.py, archive.py       foreign pickles and torch archives as byte ranges
    sources/                      torch DCP, DeepSpeed, our own
    virtual.py, physical.py       the two kinds
    verify.py, prune.py           proving a checkpoint, letting old ones go
    exports/                      Hugging Face, torch DCP, DeepSpeed
"""
