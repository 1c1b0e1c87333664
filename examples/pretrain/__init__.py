"""Pretrain a byte-level language model in any layout, and let wattmesh move it between layouts.

Run it with `python -m examples.pretrain --help`; `__main__.py` is the file to copy from.

    __main__.py   the training script: attach, train, report, boundary
    options.py    its command line
    config.py     model, batch and optimizer numbers; what a layout may not do to them
    model.py      the model: layers, and where in its sequences a rank works
    ttt.py        a test-time-training layer instead of attention
    experts.py    a mixture of experts instead of one feed-forward
    parallel.py   the model laid out in five dimensions (`wattmesh.integrations.pytorch`)
    memory.py     what a rank of a layout needs, without building it
    data.py       samples by global position
    train.py      one training step, the same in every layout
    pace.py       a simulated device's speed, for machines without GPUs
    plain.py      the same training without wattmesh: the control
    profile.toml  what `wattmesh configs profile` measures it by
"""
