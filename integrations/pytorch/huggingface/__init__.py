"""Causal language models of transformers (5.24) under FSDP2 and their own tensor-parallel plans.

The map:
    training.py          `attach`, the loop `train`, a State for any layout, clipping
    sharding.py          a model, cut by its plan and sharded
    trainer.py           Hugging Face's own Trainer: `trainer.attach`, `trainer.train`
    trainer_session.py   its loop, left where a switch waits and entered again
    trainer_refusals.py  what of it is not moved, and why

What a script needs is named here: `huggingface.attach`, `train`, `in_order`, `clip_grad_norm`.
"""

from wattmesh.integrations.pytorch.huggingface.sharding import sharded
from wattmesh.integrations.pytorch.huggingface.training import (
    Recipe,
    attach,
    build_state,
    check_layout,
    clip_grad_norm,
    train,
)
from wattmesh.integrations.pytorch.ordered_data import NumberedBatch, in_order

__all__ = [
    "NumberedBatch",
    "Recipe",
    "attach",
    "build_state",
    "check_layout",
    "clip_grad_norm",
    "in_order",
    "sharded",
    "train",
]
