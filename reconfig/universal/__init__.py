"""The universal checkpoint: an index from (tensor, state) to bytes, wherever they lie. No torch.

The map:
    archives/     torch's own archives, read and written without torch
    convert/      from any source to a universal checkpoint, and from one to other formats
    exports/      writing a universal checkpoint in another system's format
    files/        reading and writing a checkpoint's files, regular ones only and no byte more
    index/        which bytes of which file are which elements of which tensor (pure)
    sources/      torch DCP, DeepSpeed, our own
    against.py    two checkpoints tensor by tensor, by the logical digest of what each stores
    allowance.py  what reading one checkpoint may cost: bytes, objects, text and seconds
    columns.py    the index on disk: names as JSON, numbers as columns
    folder.py     a checkpoint folder: what seals it, what it says of itself, and how it is opened
    logical.py    the logical digest of what lies on disk
    missing.py    a lost optimizer slot, seen from the index alone (pure)
    prune.py      letting old checkpoints go
    record.py     what makes a virtual checkpoint count as verified
    replicas.py   copies of the same elements must be equal
    verify.py     proving a checkpoint
"""
