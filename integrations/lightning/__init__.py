"""Lightning's Trainer (2.6) under FSDP2, `ModelParallelStrategy`, moved between layouts.

The map:
    training.py   `attach`, `train`, a State for any layout, the probe
    loops.py      its trainer and loops, left where a switch waits and entered again
    carried.py    what of a trainer goes with the run: what Lightning's checkpoints hold, and sums
    results.py    what is logged by epoch, in the middle of one
    metrics.py    what metrics of torchmetrics have seen, likewise
    data.py       its loader, which begins at a batch of an epoch
    processes.py  the ranks of the session, as Lightning asks for them
    refusals.py   what of it is not moved, and why

Both of its names are taken, `lightning.pytorch` and `pytorch_lightning`: nothing here imports
either, each is found by the trainer that the script made.
"""

from wattmesh.integrations.lightning.training import attach, train

__all__ = ["attach", "train"]
