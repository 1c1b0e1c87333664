"""Parallelism in five dimensions on PyTorch's own parts, so that every layout trains one model.

    meshes.py            where a rank stands in a layout, and the process groups it needs
    data_parallel.py     FSDP2 and HSDP, gradients summed and not averaged
    tensor_parallel.py   tensor parallel with sequence parallel, as a plan per kind of module
    context_parallel.py  sequences split head-tail over ranks; keys and values gathered
    expert_parallel.py   tokens sent to the ranks that hold their experts, and back
    collectives.py       the two exchanges that gradients flow through
    pipeline.py          which layers a stage has; 1F1B, GPipe, interleaved, zero bubble
    gradients.py         norm and clipping over parameters of mixed meshes and stages
    optimizer.py         AdamW on shards, which a switch need not plan anew
    averages.py          an exponential average of the parameters, in shards
    loss.py              sum over tokens / global token count
    dropout.py           masks by logical position, equal in every layout

What makes layouts equal: losses are divided by the *global* token count and gradients only ever
summed; randomness and data go by global sample numbers; parameter names are global; nothing takes a
statistic over a part of the batch.
"""
