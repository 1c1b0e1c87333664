"""Four ranks move a model through layouts; rank 0 writes what they found.

It has an EMA, Muon for its matrices and AdamW with two groups for the rest. On one stage there is
one Muon for all matrices, without stages one for each block, and AdamW's groups change places.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from wattmesh.errors import CallHuman
from wattmesh.reconfig.checkpoint.checkpoint import facts_of, load, save
from wattmesh.reconfig.checkpoint.digest import local_digest, logical_digest
from wattmesh.reconfig.checkpoint.header import header_of
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all, name_to_fill

LAYERS, WIDTH = 2, 6
LAYOUTS = (
    Layout(pp=2, tp=2),
    Layout(dp_shard=4),
    Layout(dp_shard=2, tp=2),
    Layout(pp=2, tp=2),
)


class Block(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        """Make them; the width between does not divide by four."""
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH + 4)
        self.down = nn.Linear(WIDTH + 4, WIDTH)


def main() -> int:
    """Run it."""
    torch.set_num_threads(1)
    launch_store = LaunchStore.connect(30.0)
    ranks = Ranks(participants=tuple(range(launch_store.launched)), global_rank=launch_store.rank)
    folder = RunFolder(Path(os.environ["OUT"]) / "ck")
    if launch_store.rank == 0:
        folder.path.mkdir()
    group.begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    said: dict[str, Any] = {"layouts": [], "sabotage": {}}
    for step, layout in enumerate(LAYOUTS):
        state = build(layout, launch_store.rank, seed=step)
        if not step:
            train(state)
        else:
            load(folder.checkpoint(step - 1), name_to_fill(state), state)
        said["layouts"].append({"name": str(layout), **look(state)})
        header = header_of(
            run="r",
            attempt=1,
            position=Position(step=step),
            layout=layout,
            ranks=ranks.participants,
            digest="",
        )
        save(folder, name_all(state), state, header, lambda: None)
    said["sabotage"] = sabotage(state, launch_store.rank)
    if launch_store.rank == 0:
        Path(os.environ["OUT"], "said.json").write_text(json.dumps(said))
    group.end()
    return 0


def build(layout: Layout, rank: int, *, seed: int) -> State:
    """Stages, sharded, with an average that is not the parameters; other values at every seed."""
    shape = (layout.pp, layout.dp_shard, layout.tp)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp", "tp"))
    torch.manual_seed(100 * seed)
    blocks = {str(n): Block() for n in range(LAYERS)}
    stage = mesh.get_local_rank("pp") if layout.pp > 1 else 0
    mine = [n for n in blocks if layout.pp == 1 or int(n) == stage]
    part = nn.ModuleDict({"layers": nn.ModuleDict({n: blocks[n] for n in mine})})
    for n in mine:
        _shard(blocks[n], mesh, layout)
    averages = {name: each.detach().double() * 3 for name, each in part.named_parameters()}
    optimizers = optimizers_of(part, staged=layout.pp > 1)
    return State(modules=[part], optimizers=optimizers, averages={"ema": averages})


def optimizers_of(part: nn.Module, *, staged: bool) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest; other groups and numbers of them without stages."""
    named = dict(part.named_parameters())
    blocks = sorted({name.rsplit(".", 2)[0] for name in named})
    groups: list[dict[str, Any]] = [
        {"params": [named[f"{each}.up.bias"] for each in blocks], "weight_decay": 0.0},
        {"params": [named[f"{each}.down.bias"] for each in blocks], "betas": (0.8, 0.9)},
    ]
    adam = torch.optim.AdamW(groups if staged else groups[::-1], lr=0.1, foreach=False)
    matrices = [[named[f"{each}.{kind}.weight"] for kind in ("up", "down")] for each in blocks]
    if staged:
        matrices = [[each for block in matrices for each in block]]
    return [adam, *(torch.optim.Muon(each, lr=0.02) for each in matrices)]


def train(state: State) -> None:
    """One step, and then another rate, as a schedule would set it."""
    for parameter in state.parameters():
        parameter.grad = parameter.detach().clone()
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()
        for each in optimizer.param_groups:
            each["lr"] *= 0.5


def _shard(block: nn.Module, mesh: DeviceMesh, layout: Layout) -> None:
    if layout.tp > 1:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if layout.dp_shard > 1:
        fully_shard(block, mesh=mesh["dp"])


def look(state: State) -> dict[str, Any]:
    """The digest over all ranks, and every average gathered and digested whole."""
    named, values = name_all(state).tensors, name_all(state).values
    averages = {key: each for key, each in named.items() if key.startswith("average.")}
    whole = {key: _whole(each) for key, each in averages.items()}
    own = {key: f"{local_digest({key: each}):016x}" for key, each in whole.items()}
    told: list[dict[str, str]] = group.gather(own)
    together: dict[str, str] = {}
    for each in told:
        for key, value in each.items():
            assert together.setdefault(key, value) == value
    settings = {
        key.removeprefix("optim.param_groups."): value
        for each in group.gather(values)
        for mine in each.values()
        for key, value in mine.items()
        if key.endswith((".lr", ".betas", ".weight_decay", ".momentum"))
    }
    parameters = [each for key, each in named.items() if key.startswith("model.")]
    return {
        "digest": logical_digest(named, facts_of(state), values),
        "averages": together,
        "settings": settings,
        "slots": sorted({key.rpartition(".")[2] for key in named if key.startswith("optim.")}),
        "average_elements": sum(_local(each) for each in averages.values()),
        "parameter_elements": sum(_local(each) for each in parameters),
    }


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: torch.Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel()


def sabotage(state: State, rank: int) -> dict[str, str]:
    """Digests of states whose averages are wrong in one way each."""
    averages = state.averages["ema"]
    name = next(each for each in averages if each.endswith("down.bias"))
    average = averages[name]
    local = average.to_local() if isinstance(average, DTensor) else average
    local += int(rank == 0)
    said = {"shifted on one rank": _digest(state)}
    local -= int(rank == 0)
    del averages[name]
    said["left out"] = _digest(state)
    averages[name] = average
    state.averages["other"] = state.averages.pop("ema")
    said["under another slot"] = _digest(state)
    state.averages["ema"] = state.averages.pop("other")
    said["nothing"] = _digest(state)
    for optimizer in state.optimizers:
        for each in optimizer.param_groups:
            for setting in ("lr", "weight_decay", "betas", "momentum", "nesterov", "eps"):
                if setting in each:
                    kind = f"{type(optimizer).__name__} {setting}"
                    said[f"{kind} on every rank"] = _with(state, each, setting, everywhere=True)
                    said[f"{kind} on one rank"] = _with(state, each, setting, everywhere=rank == 0)
    return said


def _with(state: State, settings: dict[str, Any], setting: str, *, everywhere: bool) -> str:
    """The digest with another setting, on the ranks that change it."""
    before = settings[setting]
    if everywhere:
        settings[setting] = (0.5, 0.5) if setting == "betas" else 100 * before + 1
    said = _digest(state)
    settings[setting] = before
    return said


def _digest(state: State) -> str:
    try:
        named = name_all(state)
        return logical_digest(named.tensors, facts_of(state), named.values)
    except CallHuman as error:
        return f"refused: {error}"


if __name__ == "__main__":
    raise SystemExit(main())
