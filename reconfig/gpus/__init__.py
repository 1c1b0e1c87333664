"""Finds the GPUs that a launch's processes compute on.

The map:
    own_gpus.py        the GPUs of this process, by UUID
    allocated_gpus.py  the GPUs that Slurm gave its job, used or not
    rank_gpus.py       collects the ranks' GPUs on global rank 0, through torchrun's store
"""
