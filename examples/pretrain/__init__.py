"""Pretrain a byte-level language model in any layout, and let wattmesh move it between layouts.

Run it with `python -m examples.pretrain --help`; `__main__.py` is the file to copy from.

    __main__.py   the training script: attach, train, report, boundary
    options.py    its command line
    config.py     model, batch and optimizer numbers; what a layout may not do to them
    model.py      the model, without a word about parallelism
    parallel.py   tensor parallel, FSDP2 and pipeline around it
    runner.py     one rank's part of a batch: whole model, or one stage
    gradients.py  the global gradient norm over mixed meshes
    data.py       samples by global position
    train.py      one training step, the same in every layout
    pace.py       a simulated device's speed, for machines without GPUs
    plain.py      the same training without wattmesh: the control
    profile.toml  what `wattmesh configs profile` measures it by
"""
