"""The index: which bytes of which file hold which elements of a tensor. Pure but for `declared.py`.

The map:
    arranging.py    assigns tensors to safetensors files of bounded size (pure)
    box.py          boxes: hyperrectangles of a tensor's elements
    cover.py        proves that an index holds every element exactly once, replicas excepted
    data_header.py  the safetensors header of a data file
    declared.py     the user's declarations about a source, from TOML
    dtypes.py       dtypes by torch's names: sizes, safetensors codes, NumPy dtypes
    index.py        for every (tensor, state) its dtype, shape and byte segments
    names.py        maps a trainer's FQNs to logical keys, and back
    placing.py      maps stored pieces to logical coordinates by a layout rule
    planner.py      finds the stored bytes of a requested box
    rules.py        layout rules: how the ranks' pieces map to the logical tensor
"""
