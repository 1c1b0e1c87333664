"""A plain FSDP2 script in bf16, some of whose layouts train something else on purpose.

`micro_batch` names the harm: the layout is otherwise one rank alone. The probe is never harmed, so
that the session's own proof of a switch passes, and only what watches the training can see it.

Dims: B samples of this rank, T positions, C features, V vocabulary.
"""

import os
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import wattmesh
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.state import State

WIDTH, BATCH, LENGTH, VOCABULARY = 32, 8, 6, 64
STEP_S = 0.02
"""A step takes this long at least, so that it does not burn processors while orders travel."""

OTHER_BATCH, MOMENT_DROPPED, SWAPPED_EXPERTS, DAMAGED_ROPE = 1, 2, 3, 4
WRONG_MEAN, OTHER_DATA, SCALED_GRADIENT, LATE_NAN = 5, 6, 7, 8
"""Harms, by `micro_batch`."""

TWO_MICROBATCHES, NOT_FROM_ONE_RANK = 20, 21
"""No harms: the same batch in two parts; and the same, but not built right after `Layout()`."""

_built: list[Layout] = []


class Net(nn.Module):
    """One layer of attention with rotary positions, and two experts that tokens choose by id."""

    def __init__(self, dropout: float) -> None:
        """Make the layers."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens_BT: Tensor, harm: int = 0) -> Tensor:
        """Return logits."""
        x_BTC = self.embed(tokens_BT)
        q_BTC, k_BTC, v_BTC = self.mix(x_BTC).chunk(3, dim=-1)
        base = 5.0 if harm == DAMAGED_ROPE else 100.0
        scores_BTT = rotated(q_BTC, base) @ rotated(k_BTC, base).transpose(1, 2) / WIDTH**0.5
        x_BTC = x_BTC + scores_BTT.softmax(-1) @ v_BTC
        chosen_BT1 = ((tokens_BT + (harm == SWAPPED_EXPERTS)) % 2).unsqueeze(-1)
        first_BTC, second_BTC = (torch.tanh(each(x_BTC)) for each in self.experts)
        x_BTC = x_BTC + torch.where(chosen_BT1 == 0, first_BTC, second_BTC)
        logits_BTV: Tensor = self.head(self.drop(x_BTC))
        return logits_BTV


def rotated(x_BTC: Tensor, base: float) -> Tensor:
    """Turn the two halves of the features by the position."""
    half = WIDTH // 2
    angle_TC = torch.arange(LENGTH)[:, None] * base ** -(torch.arange(half) / half)
    cos_TC, sin_TC = angle_TC.cos().to(x_BTC.dtype), angle_TC.sin().to(x_BTC.dtype)
    a_BTC, b_BTC = x_BTC.chunk(2, dim=-1)
    return torch.cat([a_BTC * cos_TC - b_BTC * sin_TC, a_BTC * sin_TC + b_BTC * cos_TC], -1)


class HarmedSteps:
    """What the present layout does to a step."""

    def __init__(self, layout: Layout) -> None:
        """Begin in a layout."""
        self.harm = layout.micro_batch
        self.fresh = True


def build(layout: Layout, ranks: wattmesh.Ranks) -> State:
    """Make model and optimizer for a layout."""
    if os.environ.get("WATTMESH_PROFILE", "").endswith(os.environ.get("TRAINED_CRASH_IN", "?")):
        raise ValueError("a seed with bad luck")
    if layout.micro_batch == NOT_FROM_ONE_RANK and _built[-1:] == [Layout()]:
        raise ValueError("the caches of one rank are in the way")
    _built.append(layout)
    mesh = init_device_mesh("cpu", (layout.dp_shard,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    net = Net(float(os.environ.get("TRAINED_DROPOUT", "0")))
    policy = MixedPrecisionPolicy()
    if not autocast():
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    # Fused and, below, by `foreach`: tensor by tensor most of a step would be DTensor's dispatch.
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    state = State(modules=[net], optimizers=[optimizer])
    state.parts.steps = HarmedSteps(layout)
    return state


def autocast() -> bool:
    """Tell whether products are cast by autocast, and not by FSDP."""
    return os.environ.get("TRAINED_PRECISION") == "autocast"


def summed_loss(state: State, first: int, count: int, harm: int = 0) -> tuple[Tensor, Tensor]:
    """Return the sum of losses of some samples, and the number of tokens that count.

    Samples have different numbers of tokens that count.
    """
    samples_B1 = torch.arange(first, first + count)[:, None]
    tokens_BT = (samples_B1 * 7 + torch.arange(LENGTH) * 5) % VOCABULARY
    counts_BT = torch.arange(LENGTH) <= samples_B1 % LENGTH
    cast: Any = torch.autocast("cpu", torch.bfloat16) if autocast() else nullcontext()
    with cast:
        logits_BTV = state.modules[0](tokens_BT, harm)
    losses_BT = nn.functional.cross_entropy(
        logits_BTV.float().transpose(1, 2), (tokens_BT * 3 + 1) % VOCABULARY, reduction="none"
    )
    return (losses_BT * counts_BT).sum(), counts_BT.sum()


def mean_losses(state: State, first: int, harm: int = 0) -> list[Tensor]:
    """Return this rank's parts of the mean loss of the batch that begins at `first`."""
    share = BATCH // dist.get_world_size()
    count = share // 2 if harm == OTHER_BATCH else share
    first += dist.get_rank() * share + (BATCH // 2 if harm == OTHER_DATA else 0)
    parts = 2 if harm in (TWO_MICROBATCHES, NOT_FROM_ONE_RANK, WRONG_MEAN) else 1
    each = count // parts
    found = [summed_loss(state, first + part * each, each, harm) for part in range(parts)]
    if harm == WRONG_MEAN:
        return [loss / tokens / parts for loss, tokens in found]
    total = torch.stack([tokens for _, tokens in found]).sum()
    dist.all_reduce(total)
    return [loss / total * dist.get_world_size() for loss, _ in found]


def over_ranks(losses: list[Tensor]) -> float:
    """Return the mean over all ranks."""
    total = torch.stack(losses).sum().detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def probe(state: State) -> float:
    """Return the loss of a fixed batch."""
    state.modules[0].eval()
    found = over_ranks(mean_losses(state, 1 << 30))
    state.modules[0].train()
    return found


def train_step(state: State) -> float:
    """Train one step, harmed where the layout says so, and return its loss."""
    steps: HarmedSteps = state.parts.steps
    if os.environ.get("TRAINED_OWN_SEED"):
        torch.manual_seed(state.position.step)
    losses = mean_losses(state, state.position.samples, steps.harm)
    torch.autograd.backward(torch.stack(losses).sum())
    (optimizer,) = state.optimizers
    if steps.harm == MOMENT_DROPPED and steps.fresh:
        for slots in optimizer.state.values():
            slots["exp_avg"].zero_()
            slots["exp_avg_sq"].zero_()
    steps.fresh = False
    nn.utils.clip_grad_norm_(state.modules[0].parameters(), 1.0, foreach=True)
    for parameter in state.modules[0].parameters() if steps.harm == SCALED_GRADIENT else ():
        assert parameter.grad is not None
        parameter.grad.mul_(1.5)
    optimizer.step()
    optimizer.zero_grad()
    return float("nan") if steps.harm == LATE_NAN else over_ranks(losses)


def main() -> None:
    """Train until the run is ended."""
    torch.set_num_threads(1)
    session = wattmesh.attach(
        "trained",
        build=build,
        probe=probe,
        layout=Layout(dp_shard=int(os.environ.get("TRAINED_RANKS", "2"))),
        checkpoint_dir="never-written",  # a validated run saves into its own folder
        boundary_every=4,
    )
    step_s = float(os.environ.get("TRAINED_STEP_S", STEP_S))
    while not session.done:
        began_s = time.monotonic()
        loss = train_step(session.state)
        time.sleep(max(0.0, step_s - (time.monotonic() - began_s)))
        session.report(tokens=BATCH, samples=BATCH, loss=loss)
        session.boundary()


if __name__ == "__main__":
    main()
