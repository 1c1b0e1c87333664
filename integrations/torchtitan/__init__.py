"""torchtitan (0.3): its own Trainer under a session, by its own extension points.

The map:
    configuration.py  a Layout as torchtitan's ParallelismConfig and back; checkpoint managers
    on_cpu.py         the CPU as torchtitan's device
    fixed_batch.py    the loss of fixed tokens, by a built trainer
    training.py       `attach`, a State of a trainer, the loop `train`
"""

from wattmesh.integrations.torchtitan.configuration import (
    SessionCheckpoints,
    configured,
    layout_of,
    own_saves,
    parallelism,
)
from wattmesh.integrations.torchtitan.fixed_batch import fixed_batch_loss
from wattmesh.integrations.torchtitan.training import (
    Trainer,
    attach,
    state_of,
    train,
    under_session,
)

__all__ = [
    "SessionCheckpoints",
    "Trainer",
    "attach",
    "configured",
    "fixed_batch_loss",
    "layout_of",
    "own_saves",
    "parallelism",
    "state_of",
    "train",
    "under_session",
]
