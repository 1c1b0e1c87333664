"""Tensor parallel with sequence parallel, as plans for PyTorch's `parallelize_module`.

Between matrices every rank holds a part of each sequence (dim 1), so that norms, residuals and
routers are computed once and not once per rank. Module names are the caller's; what is shared here
is which style each *kind* of module gets.

Invariant: a tensor-parallel rank's residual stream is the `tp`-th contiguous part of its sequence.
"""

from collections.abc import Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

Plan = dict[str, ParallelStyle]


def embedding_plan(name: str) -> Plan:
    """Cut an embedding by vocabulary; its output comes out in parts of the sequence."""
    return {name: RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))}


def head_plan(norm: str, head: str) -> Plan:
    """Cut the output projection by vocabulary; every rank gets all logits of its samples.

    They come as a DTensor, which `token_loss` unwraps: a view as a module's output would lose
    FSDP's hooks to whoever changes it in place.
    """
    whole = ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Replicate(), use_local_output=False
    )
    return {norm: SequenceParallel(), head: whole}


def norm_plan(name: str) -> Plan:
    """Apply a norm, or any layer that sees one position at a time, to this rank's positions."""
    return {name: SequenceParallel(use_local_output=True)}


def block_plan(name: str, *, inputs: int, columns: tuple[str, ...], row: str) -> Plan:
    """Cut a module by heads or hidden features: gather the sequence, work, scatter the sum.

    Args:
        name: of the module that takes (B, S / tp, D) and gives (B, S / tp, D).
        inputs: how many positional arguments it takes; only the first is gathered.
        columns: names within it of the matrices whose outputs are cut.
        row: name within it of the matrix whose inputs are cut.
    """
    rest = (None,) * (inputs - 1)
    gather = PrepareModuleInput(
        input_layouts=(Shard(1), *rest), desired_input_layouts=(Replicate(), *rest)
    )
    cut: Plan = {f"{name}.{each}": ColwiseParallel() for each in columns}
    return {name: gather, **cut, f"{name}.{row}": RowwiseParallel(output_layouts=Shard(1))}


def apply_plan(module: nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]) -> None:
    """Cut a module's parameters after `plan`.

    The parameters must be the same on every rank, or have no content yet (meta device): each rank
    keeps its part, and nothing is sent.
    """
    parallelize_module(module, mesh, dict(plan), src_data_rank=None)
