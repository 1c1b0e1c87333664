"""A plain FSDP2 script in bf16, some of whose layouts train something else on purpose.

`micro_batch` names the harm: the layout is otherwise one rank alone. The probe is never harmed, so
that the session's own proof of a switch passes, and only what watches the training can see it.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import wattmesh
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.state import State

WIDTH, BATCH, VOCABULARY = 32, 8, 64
OTHER_BATCH, MOMENT_DROPPED = 1, 2
"""Harms, by `micro_batch`."""


class HarmedSteps:
    """What the present layout does to a step."""

    def __init__(self, layout: Layout) -> None:
        """Begin in a layout."""
        self.harm = layout.micro_batch
        self.fresh = True


def build(layout: Layout, ranks: wattmesh.Ranks) -> State:
    """Make model and optimizer for a layout."""
    mesh = init_device_mesh("cpu", (layout.dp_shard,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    share = float(os.environ.get("TRAINED_DROPOUT", "0"))
    net = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Dropout(share),
        nn.Linear(WIDTH, VOCABULARY),
    )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    state = State(modules=[net], optimizers=[torch.optim.AdamW(net.parameters(), lr=1e-3)])
    state.parts.steps = HarmedSteps(layout)
    return state


def mean_loss(state: State, first: int, batch: int = BATCH) -> Tensor:
    """Return the mean loss of this rank's part of the batch that begins at sample `first`."""
    count = batch // dist.get_world_size()
    first += dist.get_rank() * count
    tokens_B = torch.arange(first, first + count) * 7 % VOCABULARY
    logits_BV = state.modules[0](tokens_B).float()
    return nn.functional.cross_entropy(logits_BV, (tokens_B * 3 + 1) % VOCABULARY)


def over_ranks(loss: Tensor) -> float:
    """Return the mean over all ranks."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def probe(state: State) -> float:
    """Return the loss of a fixed batch."""
    state.modules[0].eval()
    found = over_ranks(mean_loss(state, 1 << 30))
    state.modules[0].train()
    return found


def train_step(state: State) -> float:
    """Train one step, harmed where the layout says so, and return its loss."""
    steps: HarmedSteps = state.parts.steps
    batch = BATCH // 2 if steps.harm == OTHER_BATCH else BATCH
    loss = mean_loss(state, state.position.samples, batch)
    torch.autograd.backward(loss)
    (optimizer,) = state.optimizers
    if steps.harm == MOMENT_DROPPED and steps.fresh:
        for slots in optimizer.state.values():
            slots["exp_avg"].zero_()
            slots["exp_avg_sq"].zero_()
    steps.fresh = False
    nn.utils.clip_grad_norm_(state.modules[0].parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return over_ranks(loss)


def main() -> None:
    """Train until the run is ended."""
    torch.set_num_threads(1)
    session = wattmesh.attach(
        "trained",
        build=build,
        probe=probe,
        layout=Layout(dp_shard=2),
        checkpoint_dir="never-written",  # a validated run saves into its own folder
        boundary_every=4,
    )
    while not session.done:
        loss = train_step(session.state)
        session.report(tokens=BATCH, samples=BATCH, loss=loss)
        session.boundary()


if __name__ == "__main__":
    main()
