"""What one rank trains with, as named tensors and plain values that no layout changes.

The map:
    aliased_load.py   whether a load that filled named tensors has thereby filled the model
    batches.py        the batches of a run from its position on
    boxes.py          where a rank's piece of a tensor sits in the whole
    caches.py         forgetting the meshes of a layout that is gone
    carried.py        whether a freshly built state can be carried at all
    held.py           what of a layout outlives its teardown, and who holds it
    memory.py         a tensor's memory as bytes, in blocks of bounded size, wherever the tensor is
    names.py          what a parameter is called whatever wraps the module that holds it
    optimizers.py     any number of optimizers over the parts of a model, by the global names of
                      their parameters
    per_data_rank.py  state that each data parallel rank has of its own
    plain.py          plain data: state that is neither tensor nor pickle, as JSON that comes back
                      as it was
    shards.py         tensors that are sharded as others are, made without an operator's plan
    slots.py          the slots of an optimizer that was just built, made as a checkpoint of the
                      same program has them
    state.py          the handle that build fills and teardown empties
    streams.py        the script's random streams, left alone, saved and moved
    tensors.py        a rank's state as named tensors and plain values, under names that no layout
                      changes
"""
