"""Two ranks under DDP with a BatchNorm, whose running statistics differ between them."""

import json
import logging
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.session import attach
from wattmesh.reconfig.state import State

STEPS = 6


def build(layout: Layout, ranks: Ranks) -> State:
    """The same weights on both ranks."""
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(4)
    # Frozen, as far as can be seen before the first step.
    norm.training = not os.environ.get("LATE")
    net = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 1)))
    return State(modules=[net], optimizers=[torch.optim.AdamW(net.parameters())])


def probe(state: State) -> float:
    """Nothing that depends on the statistics."""
    return 1.0


def main() -> int:
    """Run one rank; rank 0 writes the steps it trained."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    rank, out = int(os.environ["RANK"]), Path(os.environ["OUT"])
    with attach(
        "norm",
        build=build,
        probe=probe,
        layout=Layout(dp_replicate=2),
        checkpoint_dir=out / "ck",
        boundary_every=2,
        tokens_total=STEPS,
    ) as session:
        while not session.done:
            state = session.state
            state.modules[0].train()
            generator = torch.Generator().manual_seed(10 * state.position.step + rank)
            loss = state.modules[0](torch.randn(8, 4, generator=generator)).square().mean()
            torch.autograd.backward(loss)
            state.optimizers[0].step()
            state.optimizers[0].zero_grad()
            session.report(tokens=1, samples=16, loss=float(loss))
            if rank == 0:
                with (out / "steps.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(session.position.step) + "\n")
            session.boundary()
    return 0
