"""A job that works in bf16 over fp32 parameters, and can be spoilt where a probe may not see it.

`example` is the pretraining example under autocast (its own tensor and pipeline parallel parts),
`fsdp` a stack of blocks under FSDP2's MixedPrecisionPolicy, as torchtitan has it by default.
"""

import json
import logging
import os
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from examples.pretrain import train as example
from examples.pretrain.config import preset
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.probe import rebuild_check
from wattmesh.reconfig.state.state import State

WIDTH, VOCAB, SAMPLES = 32, 64, 64
EVERY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How the job is run; travels as JSON in the environment variable LOW_PRECISION.

    Attributes:
        kind: "example" or "fsdp". `turns`: switches ordered, as (step, layout).
        damaged: one weight is changed by a thousandth after each load into tensor parallel.
        blind: the logical digest is not held against the one that was saved.
        wrong: in tensor parallel layouts the blocks scale by a rank's width, not by the whole one.
    """

    folder: str
    out: str
    kind: str = "fsdp"
    turns: list[Any] = field(default_factory=list)
    damaged: bool = False
    blind: bool = False
    wrong: bool = False

    @classmethod
    def from_environment(cls) -> Self:
        """Read the options of this process."""
        return cls(**json.loads(os.environ["LOW_PRECISION"]))

    def to_text(self) -> str:
        """Write the options for the environment."""
        return json.dumps(asdict(self))


class Block(nn.Module):
    """Norm, up, down, around a residual; inner activations are scaled by their number."""

    def __init__(self, scaled_by: int) -> None:
        """Make the layers."""
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.scaled_by = scaled_by

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        wide_BH = nn.functional.gelu(self.up(self.norm(x_BD))) * (self.scaled_by / WIDTH) ** 0.5
        y_BD: torch.Tensor = x_BD + self.down(wide_BH)
        return y_BD


class Damager:
    """An extra state whose load, the last thing that a load does, changes a weight."""

    def __init__(self, state: State, damages: bool) -> None:
        """Damage this state, or do nothing."""
        self.state, self.damages = state, damages

    def state_dict(self) -> dict[str, Any]:
        """Have nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Change one weight by a thousandth, where its box begins."""
        weight = next(each for each in self.state.parameters() if each.dim() == 2)
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if self.damages and dist.get_rank() == 0:
            with torch.no_grad():
                local.view(-1)[0] *= 1.001


@dataclass(frozen=True, slots=True)
class FsdpJob:
    """The stack of blocks."""

    work: Work

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """Make it for a layout."""
        mesh = init_device_mesh("cpu", (layout.dp_shard, layout.tp), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(0 if ranks.fresh else 77)
        wide = 4 * WIDTH // (layout.tp if self.work.wrong else 1)
        blocks = [Block(wide) for _ in range(4)]
        net = nn.Sequential(*blocks, nn.Linear(WIDTH, VOCAB))
        if layout.tp > 1:
            for each in blocks:
                plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
                parallelize_module(each, mesh["tp"], plan)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (*net, net):
            fully_shard(part, mesh=mesh["dp"], mp_policy=policy)
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, foreach=False)
        state = State(modules=[net], optimizers=[optimizer])
        state.parts.dp = mesh["dp"]
        return state

    def _loss(self, state: State, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        x_BD = torch.randn(SAMPLES, WIDTH, generator=generator)
        y_B = (x_BD.abs().argmax(1) * 2 + (x_BD.sum(1) > 0)) % VOCAB
        shares, mine = state.parts.dp.size(), state.parts.dp.get_local_rank()
        logits = state.modules[0](x_BD.chunk(shares)[mine]).float()
        return nn.functional.cross_entropy(logits, y_B.chunk(shares)[mine])

    def _mean(self, loss: torch.Tensor) -> float:
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    def probe(self, state: State) -> float:
        """Loss of a fixed batch."""
        return self._mean(self._loss(state, 10_000))

    def train(self, state: State) -> float:
        """One step."""
        loss = self._loss(state, state.position.step)
        torch.autograd.backward(loss)
        state.optimizers[0].step()
        state.optimizers[0].zero_grad()
        return self._mean(loss)


class ExampleJob:
    """The pretraining example's smallest model under autocast."""

    config = replace(preset("tiny"), learning_rate=1e-2, warmup_steps=1)

    def _bf16(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """Make it for a layout."""
        return example.build_state(self.config, layout, fresh=ranks.fresh)

    def probe(self, state: State) -> float:
        """Loss of a fixed batch."""
        with self._bf16():
            return example.probe(state)

    def train(self, state: State) -> float:
        """One step."""
        with self._bf16():
            return example.train_step(state).loss


def blinded(facts: Any, generation: Generation, *more: Any) -> str:
    """What ranks disagree on, the digest of the checkpoint left out."""
    return _seen(facts, replace(generation, digest=""), *more)


_seen = rebuild_check.disagreement


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    work = Work.from_environment()
    job = FsdpJob(work) if work.kind == "fsdp" else ExampleJob()
    if work.blind:
        rebuild_check.disagreement = blinded
    turns = [Turn(step=step, layout=Layout(**layout)) for step, layout in work.turns]
    script = Script(turns)

    def build(layout: Layout, ranks: Ranks) -> State:
        state = job.build(layout, ranks)
        if work.damaged:
            state.extra["damager"] = Damager(state, layout.tp > 1)
        return state

    with attach(
        "low-precision",
        build=build,
        probe=job.probe,
        layout=Layout(dp_shard=2),
        checkpoint_dir=work.folder,
        boundary_every=EVERY,
        tokens_total=turns[-1].step + EVERY,
        reporter=script if os.environ["RANK"] == "0" else None,
    ) as session:
        while not session.done:
            loss = job.train(session.state)
            session.report(tokens=1, samples=8, loss=loss)
            session.boundary()
    if os.environ["RANK"] == "0":
        told = [[str(each.state), each.detail, each.evidence] for each in script.transitions]
        (Path(work.out) / "told.json").write_text(json.dumps(told))
    return 0
