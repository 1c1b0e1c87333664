"""Which bytes of which file are which elements of which tensor. Pure.

The map:
    arranging.py    where every tensor of an index goes in safetensors files of bounded size (pure)
    box.py          boxes of indices: where a piece of a tensor lies in the whole
    cover.py        the proof that an index holds every element of every tensor exactly once,
                    replicas apart
    data_header.py  how a data file begins
    declared.py     what a person declares about a source
    dtypes.py       element types by the names torch gives them, as sizes, safetensors codes and
                    NumPy views
    index.py        the index: for every (tensor, state) its dtype and shape, and the byte segments
                    that hold it
    names.py        how a trainer's own names of tensors (torch calls them FQNs) map to logical
                    keys, and back
    placing.py      carrying stored pieces to logical coordinates, by their tensor's rule
    planner.py      which stored bytes make up a wanted box
    rules.py        layout rules: how what ranks stored lines up with the logical tensor
"""
