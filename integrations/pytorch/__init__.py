"""Parallelism in five dimensions on PyTorch's own parts; every layout trains the same model.

    meshes.py            a rank's coordinates in a layout, and its process groups
    data_parallel.py     FSDP2 and HSDP, gradients summed and not averaged
    tensor_parallel.py   tensor parallel with sequence parallel, as a plan per kind of module
    context_parallel/    sequences split over ranks; keys gathered, in a ring, or by heads
    expert_parallel.py   tokens sent to the ranks that hold their experts, and back
    expert_bottleneck.py  learned maps that make tokens narrow on their way to experts
    collectives.py       collectives with a backward pass
    experts/             routers that lean towards experts whose GPUs cost little
    accelerate.py        scripts that train through Accelerate, built anew for each layout
    accelerate_runtime.py  Accelerate's states, strategies and loaders, for these and for Trainer
    huggingface/         causal language models of transformers, by their own plans; their Trainer
    ordered_data.py      a data set in the run's order, from any sample on, in any layout
    pipeline.py          which layers a stage has; 1F1B, GPipe, interleaved, zero bubble
    gradients.py         norm and clipping over parameters of mixed meshes and stages
    optimizer.py         AdamW on local shards, without DTensor dispatch
    averages.py          an exponential average of the parameters, in shards
    loss.py              sum over tokens / global token count
    masked_diffusion.py  noise by logical position, and the loss of undoing it
    dropout.py           masks by logical position, equal in every layout

Layouts give equal results because losses are divided by the *global* token count and gradients are
only summed; random numbers and data depend on global sample numbers; parameter names are global;
and no statistic is taken over a part of the batch.
"""
