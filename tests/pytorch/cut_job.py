"""A small model cut over two tensor-parallel ranks beside the whole one; run by every rank.

Rank 0 writes `said.json`: by how much outputs and gradients differ, relative to the largest value.
"""

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.gradients import shard_of
from wattmesh.integrations.pytorch.tensor_parallel import TensorParallel
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks

WORDS, WIDTH, HIDDEN, SAMPLES, POSITIONS = 10, 6, 8, 3, 4


class Feed(nn.Module):
    """Two matrices whose outputs are multiplied, and one that brings the product back."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x_BSD: Tensor, scale: float) -> Tensor:
        """Mix features."""
        mixed: Tensor = self.down(functional.silu(self.gate(x_BSD)) * self.up(x_BSD)) * scale
        return mixed


class Small(nn.Module):
    """One module of every kind that can be cut."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.RMSNorm(WIDTH)
        self.feed = Feed()
        self.turn = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Give logits."""
        x_BSD = self.embedding(tokens_BS)
        x_BSD = x_BSD + self.feed(self.norm(x_BSD), 0.5)
        logits: Tensor = self.head(self.turn(x_BSD))
        return logits


def main() -> int:
    """Compare the cut model with the whole one, on two ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(5)
    launch_store = LaunchStore.connect(30.0)
    ranks = Ranks(participants=tuple(range(launch_store.launched)), global_rank=launch_store.rank)
    group.begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    mesh = init_device_mesh("cpu", (launch_store.launched,))
    said = compared(mesh)
    said["odd"] = refused(mesh, nn.Linear(4, 3, bias=False), "columns")
    said["bias"] = refused(mesh, nn.Linear(4, 4), "row")
    if launch_store.rank == 0:
        Path(os.environ["OUT"], "said.json").write_text(json.dumps(said))
    group.end()
    return 0


def compared(mesh: DeviceMesh) -> dict[str, Any]:
    """Train one step of both, and say how they differ."""
    whole = Small().double()
    nn.init.normal_(whole.norm.weight)
    model = cut(deepcopy(whole), TensorParallel(mesh))
    tokens = torch.randint(0, WORDS, (SAMPLES, POSITIONS))
    targets = torch.randint(0, WORDS, (SAMPLES, POSITIONS)).flatten()
    for each in (whole, model):
        logits = each(tokens)
        functional.cross_entropy(logits.flatten(0, 1), targets).backward()  # type: ignore[no-untyped-call]
    gradients, summands, names = {}, {}, dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        reference, found = names[name].grad, parameter.grad
        assert reference is not None
        assert isinstance(found, DTensor)
        gradients[name] = apart(found.full_tensor(), reference)
        if any(each.is_partial() for each in found.placements):
            summands[name] = apart(found.to_local(), reference)
    with torch.no_grad():
        outputs = apart(model(tokens), whole(tokens))
    return {
        "outputs": outputs,
        "gradients": gradients,
        "summands": summands,
        "held": {name: list(shard_of(p).shape) for name, p in model.named_parameters()},
    }


def cut(model: Small, parallel: TensorParallel) -> Small:
    """Cut every module of it."""
    feed = model.feed
    parallel.cut_embedding(model.embedding)
    parallel.keep_whole(model.norm, model.turn)
    parallel.cut_block(feed, columns=(feed.gate, feed.up), row=feed.down)
    parallel.cut_head(model.head)
    return model


def refused(mesh: DeviceMesh, matrix: nn.Linear, where: str) -> str:
    """Say why a matrix cannot be cut."""
    fits = nn.Linear(4, 4, bias=False)
    columns, row = ((matrix,), fits) if where == "columns" else ((fits,), matrix)
    try:
        TensorParallel(mesh).cut_block(nn.Module(), columns, row)
    except InputInvalid as error:
        return str(error)
    return ""


def apart(found: Tensor, reference: Tensor) -> float:
    """Give the largest difference over the largest value."""
    return float((found - reference).abs().max() / reference.abs().max())
