"""Two ranks under DDP with a BatchNorm, or another buffer, that differs between them."""

import hashlib
import json
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State

STEPS = 6


class Largest(nn.Module):
    """Keeps the largest number that this rank has seen, as a scale for low precision does."""

    def __init__(self) -> None:
        """Have seen none."""
        super().__init__()
        self.register_buffer("amax", torch.zeros(1))

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Look at a batch."""
        self.amax: torch.Tensor
        torch.maximum(self.amax, x_BD.detach().abs().max(), out=self.amax)
        return x_BD


def build(layout: Layout, ranks: Ranks) -> State:
    """The same weights on both ranks."""
    torch.manual_seed(1)
    kind = os.environ.get("KIND", "norm")
    own: nn.Module = Largest() if kind == "amax" else nn.BatchNorm1d(4)
    # Frozen, as far as can be seen before the first step.
    own.training = kind != "late norm"
    net = DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 4), own, nn.Linear(4, 1)), broadcast_buffers=kind != "amax"
    )
    return State(modules=[net], optimizers=[torch.optim.AdamW(net.parameters())])


def probe(state: State) -> float:
    """Nothing that depends on the statistics."""
    return 1.0


def train(state: State, step: int) -> float:
    """One step; rank 0 writes its loss, and the weights after it."""
    rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
    (net,), (optimizer,) = state.modules, state.optimizers
    net.train()
    generator = torch.Generator().manual_seed(10 * step + rank)
    loss = net(torch.randn(8, 4, generator=generator)).square().mean()
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    weights = b"".join(each.detach().numpy().tobytes() for each in net.parameters())
    if rank == 0:
        with (out / "steps.jsonl").open("a", encoding="utf-8") as file:
            digest = hashlib.sha256(weights).hexdigest()
            file.write(json.dumps([step + 1, float(loss).hex(), digest]) + "\n")
    return float(loss)


def main() -> int:
    """Run one rank; bare where BARE is set."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    layout = Layout(dp_replicate=2)
    if os.environ.get("BARE"):
        dist.init_process_group("gloo")
        ranks = Ranks(participants=(0, 1), global_rank=int(os.environ["RANK"]))
        state = build(layout, ranks)
        for step in range(STEPS):
            train(state, step)
        # Left to the process's end: torch's own end of a gloo group hangs in one run of a hundred.
        dist.barrier()
        return 0
    with attach(
        "norm",
        build=build,
        probe=probe,
        layout=layout,
        checkpoint_dir=Path(os.environ["OUT"]) / "ck",
        boundary_every=2,
        tokens_total=STEPS,
    ) as session:
        while not session.done:
            loss = train(session.state, session.position.step)
            session.report(tokens=1, samples=16, loss=loss)
            session.boundary()
    return 0
