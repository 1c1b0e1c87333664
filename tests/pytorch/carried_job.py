"""A recurrence over sequences that two or four ranks hold, beside one rank; run by every rank.

Rank 0 writes `said.json`: by how much outputs and gradients differ on the worst rank, relative to
the largest value, by case.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from benchmarks.equivalence.job_type_controls import KeepsGradients, KeepsState
from examples.pretrain.ttt import InnerLoop
from wattmesh.integrations.pytorch.context_parallel.carried import Carried
from wattmesh.integrations.pytorch.context_parallel.positions import head_tail
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks

SAMPLES, HEADS, LENGTH, WIDTH, CHUNK = 2, 3, 32, 6, 4
NAMES = ("output", "first state", "queries", "keys", "values", "rates")


def main() -> int:
    """Compare on four ranks and on two of them."""
    torch.set_num_threads(1)
    launch_store = LaunchStore.connect(30.0)
    count = launch_store.launched
    ranks = Ranks(participants=tuple(range(count)), global_rank=launch_store.rank)
    group.begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    everyone = dist.new_group(list(range(count)))
    pairs = [dist.new_group([each, each + 2]) for each in (0, 1)]
    # Ranks of these groups have other numbers in the world, which messages are sent by.
    mine = pairs[launch_store.rank % 2]
    assert isinstance(everyone, ProcessGroup)
    assert isinstance(mine, ProcessGroup)
    cases = {
        "over 4": Carried(everyone),
        "over 2": Carried(mine),
        "sabotaged: own state": KeepsState(everyone),
        "sabotaged: own gradient": KeepsGradients(everyone),
    }
    said = {name: apart(each) for name, each in cases.items()}
    if launch_store.rank == 0:
        Path(os.environ["OUT"], "said.json").write_text(json.dumps(said))
    group.end()
    return 0


def apart(chain: Carried) -> dict[str, float]:
    """Give how far outputs and gradients are from one rank's, each on the worst rank."""
    assert chain.group is not None
    draw = torch.Generator().manual_seed(5)
    wide = (SAMPLES, HEADS, LENGTH, WIDTH)
    shapes = [(*wide[:2], WIDTH, WIDTH), wide, wide, wide, (*wide[:3], 1), wide]
    first, *whole, gradient = (
        torch.randn(each, generator=draw, dtype=torch.float64) for each in shapes
    )
    whole[3] = torch.sigmoid(whole[3]) / WIDTH
    expected = forth_and_back(Carried(), first, whole, gradient)
    mine = head_tail(LENGTH, chain.group.size(), chain.group.rank())
    found = forth_and_back(chain, first, [each[:, :, mine] for each in whole], gradient[:, :, mine])
    # Every rank has a gradient of the first state; their sum counts, as of a shared parameter.
    dist.all_reduce(found[1], group=chain.group)
    expected = [each if at == 1 else each[:, :, mine] for at, each in enumerate(expected)]
    gaps = [(a - b).abs().max() / b.abs().max() for a, b in zip(found, expected, strict=True)]
    worst = torch.stack(gaps)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return dict(zip(NAMES, worst.tolist(), strict=True))


def forth_and_back(
    chain: Carried, first: Tensor, inputs: list[Tensor], gradient: Tensor
) -> list[Tensor]:
    """Give the output, and the gradients of the first state and the inputs."""
    leaves = [each.clone().requires_grad_() for each in (first, *inputs)]
    out = chain(InnerLoop(CHUNK), *leaves)
    out.backward(gradient)  # type: ignore[no-untyped-call]
    return [out.detach(), *(each.grad for each in leaves if each.grad is not None)]
