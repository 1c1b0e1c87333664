"""Reads DeepSpeed's checkpoints of every parallelism that proves how its parts fit.

The map:
    copied_ranks.py  notices ranks whose files are copies of another's
    decode.py        decodes a rank's files: the model's shapes, the optimizer's flat buffers
    deepspeed.py     opens one tag's folder
    experts.py       mixtures of experts (deepspeed.moe)
    grid.py          which rank each file is of, and that none is missing
    join.py          joins the indexes of model-parallel ranks
    pipeline.py      the layer files of a PipelineModule
    steps.py         compares the optimizers' steps
    tensor_rules.py  how tensor-parallel ranks hold a parameter, as DeepSpeed says it
    values.py        what is no tensor: settings, the client's state, the position
    working.py       compares working copies with the masters that they are casts of
    zero.py          ZeRO's fragments of every parameter
    zero_index.py    builds an index over ZeRO's flat buffers
"""
