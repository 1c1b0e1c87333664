"""The training state of a rank, as named tensors and plain values independent of the layout.

The map:
    optimizer/        an optimizer's state, named as its parameters are
    aliased_load.py   tells whether loading named tensors has filled the model
    batches.py        gives the batches of a run from its position on
    boxes.py          a rank's piece of a tensor as a box of logical indices
    caches.py         clears torch's caches of meshes that are gone
    carried.py        checks whether a checkpoint can store a built state
    copiers.py        copies a rank's bytes with several threads
    expert_stacks.py  which tensors are stacks of experts, and in what order their rows are
    held.py           finds tensors that outlive a teardown, and who holds them
    memory.py         reads and fills a tensor's memory in blocks, on any device
    names.py          names of parameters, without wrappers
    per_data_rank.py  state of each data parallel rank
    plain.py          plain data as JSON that decodes to equal values
    state.py          the handle that build fills and a teardown empties
    streams.py        saves and restores the script's random streams
    tensors.py        names a rank's tensors and plain values
"""
