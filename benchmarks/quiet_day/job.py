"""The job of `benchmarks.quiet_day`: two ranks, a model of one layer, four switches on the way.

    QUIET_STEPS=17280 ... wattmesh.integrations.torchrun ... -- -m benchmarks.quiet_day.job DIR

Between both ranks and one (the other is parked) it goes back and forth, each after a fifth of its
steps. Logging is set up as most scripts do.
"""

import logging
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import wattmesh
from wattmesh.reconfig.equivalence.script import Script, Turn

BATCH, WIDTH, EVERY = 4, 8, 20
BOTH, ONE = wattmesh.Layout(dp_replicate=2), wattmesh.Layout()


def build(layout: wattmesh.Layout, ranks: wattmesh.Ranks) -> wattmesh.State:
    """One layer, the same on every rank."""
    torch.manual_seed(0)
    net = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return wattmesh.State(modules=[net], optimizers=[optimizer])


def probe(state: wattmesh.State) -> float:
    """Loss of a fixed batch."""
    x_BD = torch.linspace(-1, 1, BATCH * WIDTH).view(BATCH, WIDTH)
    return float(nn.functional.mse_loss(state.modules[0](x_BD), x_BD).detach())


def train_step(state: wattmesh.State) -> None:
    """One step on this rank's part of the batch, gradients averaged over the ranks."""
    (net,), (optimizer,) = state.modules, state.optimizers
    ranks, first = dist.get_world_size(), state.position.samples
    generator = torch.Generator().manual_seed(first)
    x_BD = torch.randn(BATCH, WIDTH, generator=generator).chunk(ranks)[dist.get_rank()]
    torch.autograd.backward(nn.functional.mse_loss(net(x_BD), x_BD))
    for each in net.parameters():
        dist.all_reduce(each.grad)
        each.grad = each.grad / ranks if each.grad is not None else None
    optimizer.step()
    optimizer.zero_grad()


def main() -> int:
    """Train to the end."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    steps = int(os.environ["QUIET_STEPS"])
    fifth = steps // 5 // EVERY * EVERY
    turns = [Turn(step=n * fifth, layout=ONE if n % 2 else BOTH) for n in range(1, 5)]
    session = wattmesh.attach(
        "quiet",
        build=build,
        probe=probe,
        layout=BOTH,
        checkpoint_dir=sys.argv[1],
        boundary_every=EVERY,
        tokens_total=steps * BATCH,
        reporter=Script(turns) if os.environ["RANK"] == "0" else None,
    )
    while not session.done:
        train_step(session.state)
        session.report(tokens=BATCH, samples=BATCH)
        session.boundary()
    return 0


if __name__ == "__main__":
    sys.exit(main())
