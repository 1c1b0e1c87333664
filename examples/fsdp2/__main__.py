"""Train a small MLP with FSDP2, as anybody would. Lines for wattmesh are marked (w).

python -m wattmesh.integrations.torchrun --nproc 2 --checkpoint-dir DIR -- -m examples.fsdp2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wattmesh  # (w)
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.state import State

WIDTH, DEPTH, BATCH, VOCABULARY = 256, 4, 64, 512
"""BATCH is global: the ranks share it."""


def model() -> nn.Sequential:
    """Make the model, the same on every rank."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)]
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY))


def batch(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Make the samples from number `first` on: a token, and the one that follows it."""
    tokens_B = torch.arange(first, first + count) * 7 % VOCABULARY
    return tokens_B, (tokens_B * 3 + 1) % VOCABULARY


def build(layout: Layout, ranks: wattmesh.Ranks) -> State:  # (w)
    """Make model and optimizer for a layout."""
    mesh = init_device_mesh("cpu", (layout.dp_shard,), mesh_dim_names=("dp",))
    net = model()
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return State(modules=[net], optimizers=[optimizer])


def mean_loss(state: State, first: int) -> Tensor:
    """Return the mean loss of this rank's part of the batch that begins at sample `first`."""
    count = BATCH // dist.get_world_size()
    tokens_B, next_B = batch(first + dist.get_rank() * count, count)
    return nn.functional.cross_entropy(state.modules[0](tokens_B), next_B)


def over_ranks(loss: Tensor) -> float:
    """Return the mean over all ranks."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def probe(state: State) -> float:  # (w)
    """Return the loss of a fixed batch."""
    with torch.no_grad():
        return over_ranks(mean_loss(state, 1 << 40))


def train_step(state: State) -> float:
    """Train one step and return its loss."""
    loss = mean_loss(state, state.position.samples)
    torch.autograd.backward(loss)
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return over_ranks(loss)


def main() -> None:
    """Train until the run is done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", default="fsdp2-checkpoints")
    parser.add_argument("--steps", type=int, default=1000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    session = wattmesh.attach(  # (w)
        "fsdp2",
        build=build,
        probe=probe,
        layout=Layout(dp_shard=int(os.environ.get("WORLD_SIZE", "1"))),
        checkpoint_dir=chosen.checkpoint_dir,
        tokens_total=chosen.steps * BATCH,
    )
    while not session.done:  # (w)
        loss = train_step(session.state)
        session.report(tokens=BATCH, samples=BATCH, loss=loss)  # (w)
        session.boundary()  # (w)


if __name__ == "__main__":
    main()
