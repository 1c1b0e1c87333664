"""Causal language models of transformers (5.24) under FSDP2 and their own tensor-parallel plans.

The map:
    training.py  `attach`, the loop `train`, a State for any layout, clipping
    sharding.py  a model, cut by its plan and sharded

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
