"""Attention over four ranks by every method beside attention on one; run by every rank.

Rank 0 writes `said.json`: by how much outputs and gradients differ on the worst rank, relative to
the largest value, by case.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from wattmesh.integrations.pytorch.context_parallel.attention import Attention
from wattmesh.integrations.pytorch.context_parallel.context import Context, WholeSequences
from wattmesh.integrations.pytorch.context_parallel.ring import Ring
from wattmesh.integrations.pytorch.context_parallel.ulysses import Ulysses
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import CP_METHODS, Ranks

SAMPLES, LENGTH, WIDTH = 2, 16, 6
HEADS = {"a key head for every two queries": (8, 4), "fewer key heads than ranks": (8, 2)}


def main() -> int:
    """Compare every method, on four ranks."""
    torch.set_num_threads(1)
    launch_store = LaunchStore.connect(30.0)
    count = launch_store.launched
    ranks = Ranks(participants=tuple(range(count)), global_rank=launch_store.rank)
    group.begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    everyone = dist.new_group(list(range(count)))
    assert isinstance(everyone, ProcessGroup)
    said = {name: apart(each, causal, heads) for name, each, causal, heads in cases(everyone)}
    if launch_store.rank == 0:
        Path(os.environ["OUT"], "said.json").write_text(json.dumps(said))
    group.end()
    return 0


def cases(everyone: ProcessGroup) -> Iterator[tuple[str, Context, bool, tuple[int, int]]]:
    """Every method, with each kind of mask and heads; and methods that are sabotaged."""
    rank, count = everyone.rank(), everyone.size()
    for causal in (True, False):
        for method in CP_METHODS:
            context = Context.deal(LENGTH, count, rank, everyone, causal=causal, method=method)
            for words, heads in HEADS.items():
                yield (
                    f"{method}, {'causal' if causal else 'both ways'}, {words}",
                    context,
                    causal,
                    heads,
                )
            if causal and method != "gather":
                wrong: Attention = sabotaged(context)
                heads = HEADS["fewer key heads than ranks"]
                yield f"sabotaged: {method}", replace(context, attention=wrong), causal, heads


def sabotaged(context: Context) -> Attention:
    """Take positions for ones that were dealt in one piece."""
    keys_T = torch.arange(LENGTH)
    if isinstance(context.attention, Ring):
        count, rank = context.attention.group.size(), context.attention.group.rank()
        seen_ST = keys_T.chunk(count)[rank][:, None] >= keys_T
        return replace(context.attention, visible_ST=seen_ST)
    assert isinstance(context.attention, Ulysses)
    return replace(context.attention, positions_T=keys_T)


def apart(context: Context, causal: bool, heads: tuple[int, int]) -> list[float]:
    """Give how far outputs, and gradients of queries, keys and values, are from one rank's."""
    draw = torch.Generator().manual_seed(3)
    shapes = [(SAMPLES, each, LENGTH, WIDTH) for each in (heads[0], heads[1], heads[1], heads[0])]
    *whole, gradient = (torch.randn(each, generator=draw, dtype=torch.float64) for each in shapes)
    positions_S = context.positions_S
    expected = forth_and_back(WholeSequences(causal), whole, gradient)
    parts = [each[:, :, positions_S] for each in whole]
    found = forth_and_back(context.attend, parts, gradient[:, :, positions_S])
    worst = torch.tensor(
        [
            float((a - b[:, :, positions_S]).abs().max() / b.abs().max())
            for a, b in zip(found, expected, strict=True)
        ]
    )
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return [float(each) for each in worst]


def forth_and_back(attend: Any, inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Give the output, and the gradients of the inputs."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    out: Tensor = attend(*leaves)
    out.backward(gradient)  # type: ignore[no-untyped-call]
    return [out.detach(), *(each.grad for each in leaves if each.grad is not None)]
