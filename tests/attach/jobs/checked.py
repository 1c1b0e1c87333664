"""A user's own attached script, as `wattmesh attach-check` meets it; FAULT names what is wrong.

It would train for days, and never ends by itself but for a fault that says so.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import wattmesh

BATCH, WIDTH = 8, 16
FAULT = os.environ.get("FAULT", "")

KEPT: list[nn.Module] = []


class Net(nn.Module):
    """Two layers, and a buffer that is the same on every rank unless something is wrong."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        y_BD: torch.Tensor = self.down(torch.tanh(self.up(x_BD)))
        return y_BD.clone()


def samples(numbers: range) -> torch.Tensor:
    """The samples of these numbers."""
    rows = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(n)) for n in numbers]
    return torch.stack(rows)


def build(layout: wattmesh.Layout, ranks: wattmesh.Ranks) -> wattmesh.State:
    """Model and optimizer for one layout."""
    torch.manual_seed(0)
    if FAULT == "build":
        (WIDTH,)[layout.tp - 1]
    if FAULT == "build refused" and layout.tp > 1:
        wattmesh.Layout(dp_shard=-1)
    mesh = init_device_mesh("cpu", (layout.dp_shard, layout.tp), mesh_dim_names=("dp", "tp"))
    net = Net()
    if layout.tp > 1:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(net, mesh["tp"], plan)
    fully_shard(net, mesh=mesh["dp"])
    if FAULT == "unfit":
        net.register_parameter("spare", nn.Parameter(torch.zeros(2)))
    optimizer = torch.optim.AdamW(
        [*net.up.parameters(), *net.down.parameters()], lr=1e-2, foreach=False
    )
    state = wattmesh.State(modules=[net], optimizers=[optimizer])
    state.parts.mesh, state.parts.layout = mesh, layout
    if FAULT == "global":
        KEPT.append(net)
    return state


def probe(state: wattmesh.State) -> float:
    """Loss of four fixed samples."""
    if FAULT == "probe raises" and state.parts.layout.tp > 1:
        {"tp": 1}["pp"]
    x_BD = samples(range(10_000, 10_004))
    loss = nn.functional.mse_loss(state.modules[0](x_BD), x_BD).detach()
    dist.all_reduce(loss)
    bent = 1.5 if FAULT == "probe" and state.parts.layout.tp > 1 else 1.0
    return bent * float(loss) / dist.get_world_size()


def train_step(state: wattmesh.State) -> tuple[float, range]:
    """Train on the next samples of this rank; give the loss and their numbers."""
    (net,), (optimizer,), dp = state.modules, state.optimizers, state.parts.mesh["dp"]
    each = BATCH // dp.size()
    first = state.position.samples + dp.get_local_rank() * each
    if FAULT == "twice" and state.parts.layout.tp > 1:
        first -= BATCH
    read = range(first, first + each)
    x_BD = samples(read)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x_BD), x_BD)
    torch.autograd.backward(loss)
    optimizer.step()
    if FAULT != "gradients":
        optimizer.zero_grad()
    if FAULT == "buffer":
        net.get_buffer("seen").add_(1 + dist.get_rank())
    return float(loss), read


def main() -> int:
    """Train until the session is done."""
    if FAULT == "unattached":
        return 0
    session = wattmesh.attach(
        "mine",
        build=build,
        probe=probe,
        layout=wattmesh.Layout(dp_shard=2),
        checkpoint_dir=os.environ["REAL"],
        boundary_every=100,
        seekable=FAULT != "unseekable",
        save=_save if FAULT == "own save" else None,
    )
    while not session.done:
        loss, read = train_step(session.state)
        data = () if FAULT in ("silent", "own save") else read
        session.report(tokens=BATCH * WIDTH, samples=BATCH, loss=loss, data=data)
        step = session.position.step
        FAULTS.get(FAULT, int)(step)
        if FAULT != "no boundary":
            session.boundary()
    return 0


def documented() -> int:
    """Train with the whole script of docs/attach.md instead, as it stands there.

    With a FAULT the loader is made in `build`, where the position is not known yet.
    """
    # Not above: the command starts this file as a script, which does not see the tests.
    from tests.docs.blocks import block  # noqa: PLC0415

    code = block("docs/attach.md", "A whole script").replace("/shared/my-run", os.environ["REAL"])
    if FAULT == "early loader":
        code = code.replace(
            '    return wattmesh.State([net], [optimizer], extra={"schedule": schedule}, '
            "loader=loader)",
            '    state = wattmesh.State([net], [optimizer], extra={"schedule": schedule})\n'
            "    state.parts.batches = iter(loader(state.position))\n"
            "    return state",
        ).replace("next(state.batches)", "next(state.parts.batches)")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "docs/attach.md", "exec"), names)
    return 0


def _save(state: wattmesh.State, step: int) -> wattmesh.Written:
    """A checkpointer of the user's own, into a folder that matters."""
    (Path(os.environ["REAL"]) / f"mine-{step}").mkdir(parents=True)
    raise RuntimeError("a check wrote where the user's checkpoints are")


def _crash(step: int) -> None:
    if step == 7:
        raise KeyError("optim")


def _leave(step: int) -> None:
    if step == 3:
        sys.exit(0)


def _hang(step: int) -> None:
    if step == 2:
        threading.Event().wait()


FAULTS: dict[str, Callable[[int], Any]] = {"crash": _crash, "early": _leave, "hang": _hang}


if __name__ == "__main__":
    sys.exit(main())
