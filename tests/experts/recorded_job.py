"""A training of one process whose routers are recorded by a real session, or by none."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wattmesh.integrations.pytorch.experts.recorder import record_routing
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.state import State

WIDTH, EXPERTS, LAYERS, BATCH, EVERY, STEPS = 8, 6, 3, 16, 2, 15


class Model(nn.Module):
    """Layers of a router and of what its weights scale; it keeps what each router said last."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.routers = nn.ModuleList(EnergyRouter(WIDTH, EXPERTS, 2) for _ in range(LAYERS))
        self.mixes = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.chosen: dict[int, Tensor] = {}

    def layer(self, at: int, x: Tensor) -> Tensor:
        """Apply one layer."""
        routed = self.routers[at](x)
        self.chosen[at] = routed.chosen_NP
        mixed: Tensor = x + self.mixes[at](x).clone() * routed.weights_NP.sum(-1, keepdim=True)
        return mixed

    def forward(self, x: Tensor) -> Tensor:
        """Apply all."""
        for at in range(LAYERS):
            x = self.layer(at, x)
        return x


@dataclass
class Trained:
    """What came of a training: losses, weights, and by step and layer what tokens chose."""

    losses: list[float] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    chosen: dict[int, list[list[list[int]]]] = field(default_factory=dict)


def train(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    routers: Callable[[Any], list[EnergyRouter]] | None = None,
    tokens: int = 4096,
    seed: int = 3,
) -> Trained:
    """Train; `routers`: of the model, to be recorded."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    of_launcher = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for key, value in of_launcher.items():
        monkeypatch.setenv(key, value)

    def build(*_: Any) -> State:
        torch.manual_seed(seed)
        model = Model()
        return State(modules=[model], optimizers=[torch.optim.AdamW(model.parameters(), lr=0.05)])

    done = Trained()
    with attach(
        "recorded",
        build=build,
        probe=lambda _: 1.0,
        layout=Layout(),
        checkpoint_dir=folder,
        boundary_every=EVERY,
        tokens_total=STEPS * BATCH,
    ) as session:
        if routers is not None:
            record_routing(
                session, lambda state: routers(state.modules[0]), tokens=tokens, every_s=0.0
            )
        while not session.done:
            model, optimizer = session.state.modules[0], session.state.optimizers[0]
            assert isinstance(model, Model)
            for _ in range(2):
                # Two microbatches: the first one's choice is recorded.
                x = torch.randn(BATCH, WIDTH)
                loss = model(x).square().mean()
                first = done.chosen.setdefault(session.position.step + 1, [])
                first += [] if first else [model.chosen[at].tolist() for at in range(LAYERS)]
                torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            done.losses.append(float(loss.detach()))
            session.report(tokens=BATCH, loss=done.losses[-1])
            done.weights = [each.detach().clone() for each in model.parameters()]
            session.boundary()
    return done
