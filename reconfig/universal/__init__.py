"""The universal checkpoint: an index from (tensor, state) to bytes in any files. No torch.

The map:
    archives/     torch's .pt archives, read and written without torch
    convert/      converts any source to a universal checkpoint, and one to other formats
    exports/      writers of other systems' formats
    files/        safe reading and writing of a checkpoint's regular files
    index/        which bytes of which file hold which elements of a tensor (pure)
    sources/      readers of torch DCP, DeepSpeed and our own checkpoints
    against.py    compares two checkpoints tensor by tensor, by logical digest
    allowance.py  limits on reading one checkpoint: bytes, objects, text, CPU seconds
    columns.py    the index on disk: names as JSON, numbers as int64 columns
    folder.py     a checkpoint folder: its seal, its manifest, how it is opened
    logical.py    the logical digest of stored tensors
    missing.py    finds lost optimizer slots from the index alone (pure)
    prune.py      deletes old checkpoints
    record.py     digests that make a virtual checkpoint verified
    replicas.py   checks that copies of the same elements are equal
    verify.py     verifies every byte of a checkpoint
"""
