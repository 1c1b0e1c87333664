"""Two ranks under DDP with what an observed training may meet: odd optimizers, probes, reports."""

import json
import logging
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.probe import probing
from wattmesh.reconfig.state.state import State

STEPS = 4
KIND = os.environ.get("KIND", "")


class Scale(nn.Module):
    """Follows what it has seen, in a buffer, as an expert's bias or an amax does."""

    def __init__(self) -> None:
        """Begin with one, kept beside the model's state or in it."""
        super().__init__()
        self.register_buffer("scale", torch.ones(4), persistent=KIND != "scale not saved")
        self.register_buffer("lazy", None)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Scale; in training, learn."""
        self.scale: torch.Tensor
        if self.training:
            self.scale.mul_(0.9).add_(0.1 * (1 + self.scale))
        scaled: torch.Tensor = x_BD * self.scale
        return scaled


def build(layout: Layout, ranks: Ranks | None) -> State:
    """The same weights on both ranks."""
    torch.manual_seed(1)
    body: nn.Module = nn.Sequential(nn.Linear(4, 4), Scale(), nn.Linear(4, 1))
    if KIND == "fsdp1":
        body = FullyShardedDataParallel(body, device_id=torch.device("cpu"), use_orig_params=True)
        return State(modules=[body], optimizers=[torch.optim.AdamW(body.parameters())])
    net = DistributedDataParallel(body, broadcast_buffers=False)
    if KIND == "zero":
        # Importing it warns of torch's own use of torch.jit, which ends pytest.
        from torch.distributed.optim import (  # noqa: PLC0415
            ZeroRedundancyOptimizer,
        )

        parameters = net.parameters()
        zero = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, lr=0.01)
        return State(modules=[net], optimizers=[zero])
    return State(modules=[net], optimizers=[torch.optim.AdamW(net.parameters())])


def probe(state: State) -> float:
    """Forward in training mode, as many probes are; or one that is wrong."""
    net = state.modules[0]
    if KIND == "probe raises":
        raise RuntimeError("the probe broke")
    if KIND == "probe gives nan":
        return float("nan")
    if KIND == "probe goes backward":
        loss = net(torch.ones(8, 4)).square().mean()
        torch.autograd.backward(loss)
        return float(loss)
    if KIND == "probe trains":
        with torch.no_grad():
            next(net.parameters()).add_(1e-3)
    if KIND == "probe leaves eval":
        net.eval()
        torch.set_grad_enabled(True)
    return float(net(torch.ones(8, 4)).square().mean())


def train(state: State, step: int) -> torch.Tensor:
    """One step; rank 0 writes its loss and the mode that it was in."""
    (net,), (optimizer,) = state.modules, state.optimizers
    loss: torch.Tensor = (
        net(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().mean()
    )
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if os.environ["RANK"] == "0":
        with (Path(os.environ["OUT"]) / "steps.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([step + 1, float(loss.detach()).hex(), net.training]) + "\n")
    return loss


REPORTS: dict[str, Any] = {
    "numpy": lambda loss: {
        "tokens": np.int64(1),
        "samples": np.int64(16),
        "loss": np.float32(float(loss)),
    },
    "tensor": lambda loss: {"tokens": torch.tensor(1), "samples": torch.tensor(16), "loss": loss},
    "float": lambda loss: {"tokens": 1.0, "samples": 16.0, "loss": float(loss)},
    "half": lambda loss: {"tokens": 1.5, "samples": "many", "loss": [1.0, 2.0]},
    "nan": lambda loss: {"tokens": 1, "samples": 16, "loss": float("nan")},
    "infinite": lambda loss: {"tokens": 1, "samples": 16, "loss": torch.tensor(float("inf"))},
}


def main() -> int:
    """Run one rank; bare where BARE is set."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    if os.environ.get("BARE"):
        dist.init_process_group("gloo")
        state = build(Layout(dp_replicate=2), None)
        for step in range(STEPS):
            train(state, step)
        dist.barrier()
        return 0
    if os.environ.get("SPOIL") == "buffers":
        probing.untouched = lambda state: nullcontext()  # type: ignore[assignment, return-value]
    with attach(
        "observed",
        build=build,
        probe=probe,
        layout=Layout(dp_replicate=2),
        checkpoint_dir=Path(os.environ["OUT"]) / "ck",
        boundary_every=2,
        tokens_total=STEPS,
    ) as session:
        while not session.done:
            loss = train(session.state, session.position.step)
            told = REPORTS.get(KIND, lambda loss: {"tokens": 1, "samples": 16, "loss": loss.item()})
            session.report(**told(loss))
            session.boundary()
    return 0
