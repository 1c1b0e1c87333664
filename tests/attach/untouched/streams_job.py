"""A job whose losses depend on every random stream of the process, with wattmesh and without.

Each rank works on the samples of its data parallel rank; tensor parallel peers do the same work
twice, so that peers whose masks differ drift apart and the next save says so.
"""

import hashlib
import json
import logging
import os
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.per_data_rank import data_rank
from wattmesh.reconfig.state.state import State

WIDTH = 16
SAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """How the job is run; travels as JSON in the environment variable STREAMS.

    Attributes:
        attached: under wattmesh. `turns`: switches ordered, as (step, layout).
        reseeded: every rank sets its streams from the step alone after each save step.
    """

    folder: str
    out: str
    attached: bool = True
    layout: dict[str, Any] = field(default_factory=lambda: {"dp_shard": 2})
    steps: int = 6
    turns: list[Any] = field(default_factory=list)
    reseeded: bool = False

    @classmethod
    def from_environment(cls) -> Self:
        """Read the options of this process."""
        return cls(**json.loads(os.environ["STREAMS"]))

    def to_text(self) -> str:
        """Write the options for the environment."""
        return json.dumps(asdict(self))


class Net(nn.Module):
    """Two layers with torch's own dropout between them: one mask per step, of the layer's width."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.dropout = nn.Dropout(0.5)
        self.mask = torch.ones(WIDTH)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        self.mask = self.dropout(torch.ones(WIDTH))
        y_B1: torch.Tensor = self.down(torch.tanh(self.up(x_BD)) * self.mask)
        return y_B1


def build(layout: Layout, ranks: Ranks) -> State:
    """Make the model alike on every rank, and seed each data parallel rank's streams."""
    torch.manual_seed(0)
    net = Net()
    mine = data_rank(layout, ranks.group_rank)
    seed_all(100 + mine)
    state = State(modules=[net], optimizers=[torch.optim.SGD(net.parameters(), lr=0.1)])
    state.parts.share = (mine, layout.data_parallel)
    state.parts.net = net
    return state


def seed_all(seed: int) -> None:
    """Seed the streams that a training script seeds."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def batch(state: State, step: int) -> torch.Tensor:
    """This rank's part of the batch of a step."""
    mine, shares = state.parts.share
    x_BD = torch.sin(torch.arange(SAMPLES * WIDTH).reshape(SAMPLES, WIDTH) * (step + 1.0))
    mine_BD: torch.Tensor = x_BD.chunk(shares)[mine]
    return mine_BD


def probe(state: State) -> float:
    """Loss of a fixed batch; like a fresh loader's iterator it draws from the streams."""
    random.random(), np.random.rand(), torch.rand(3)
    net: Net = state.parts.net.eval()
    total = net(batch(state, 10_000)).square().sum()
    net.train()
    dist.all_reduce(total)
    shares: int = state.parts.share[1]
    return float(total) * shares / dist.get_world_size()


def train_step(state: State, draws: list[float]) -> float:
    """One step that every stream has a part in; gives the mean loss over all ranks."""
    draws += [random.random(), np.random.rand(), float(torch.rand(()))]
    net, (optimizer,) = state.parts.net, state.optimizers
    loss = (net(batch(state, state.position.step) + draws[0]) - draws[1]).square().mean()
    torch.autograd.backward(loss)
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def note(options: Streams, state: State, layout: str, loss: float, draws: list[float]) -> None:
    """Write down what this rank saw of the step just done."""
    rank = int(os.environ["RANK"])
    line = {
        "rank": rank,
        "step": state.position.step,
        "layout": layout,
        "loss": loss.hex(),
        "draws": [each.hex() for each in draws],
        "mask": state.parts.net.mask.tolist(),
    }
    with (Path(options.out) / f"rank-{rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run_plain(options: Streams) -> None:
    """The training script as it was before anybody heard of wattmesh."""
    dist.init_process_group("gloo")
    layout = Layout(**options.layout)
    every = tuple(range(layout.world_size))
    state = build(layout, Ranks(participants=every, global_rank=dist.get_rank(), fresh=True))
    for step in range(1, options.steps + 1):
        draws: list[float] = []
        loss = train_step(state, draws)
        state.position = type(state.position)(step=step, samples=step, tokens=step)
        note(options, state, str(layout), loss, draws)
    dist.barrier()


def run_attached(options: Streams) -> None:
    """The same under a session that saves at every second step."""
    turns = [Turn(step=step, layout=Layout(**layout)) for step, layout in options.turns]
    with attach(
        "streams",
        build=build,
        probe=probe,
        layout=Layout(**options.layout),
        checkpoint_dir=options.folder,
        boundary_every=2,
        tokens_total=options.steps,
        reporter=Script(turns) if os.environ["RANK"] == "0" else None,
    ) as session:
        while not session.done:
            draws: list[float] = []
            loss = train_step(session.state, draws)
            session.report(tokens=1, samples=1, loss=loss)
            note(options, session.state, str(session.generation.layout), loss, draws)
            session.boundary()
            if options.reseeded and not session.done and session.position.step % 2 == 0:
                text = f"wattmesh 0 {session.position.step}".encode()
                seed_all(int.from_bytes(hashlib.sha256(text).digest()[:4], "big"))


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    options = Streams.from_environment()
    (run_attached if options.attached else run_plain)(options)
    return 0
