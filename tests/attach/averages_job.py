"""Four ranks move a model with an EMA through layouts; rank 0 writes what they found."""

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
from wattmesh.reconfig import group
from wattmesh.reconfig.board import Board
from wattmesh.reconfig.checkpoint import facts_of, header_of, load, save
from wattmesh.reconfig.digest import local_digest, logical_digest
from wattmesh.reconfig.folder import RunFolder
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state import Position, State
from wattmesh.reconfig.tensors import name_all

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
    board = Board.connect(30.0)
    ranks = Ranks(participants=tuple(range(board.launched)), global_rank=board.rank)
    folder = RunFolder(Path(os.environ["OUT"]) / "ck")
    if board.rank == 0:
        folder.path.mkdir()
    group.begin(board, 1, ranks, device="cpu", timeout_s=60.0)
    said: dict[str, Any] = {"layouts": [], "sabotage": {}}
    for step, layout in enumerate(LAYOUTS):
        state = build(layout, board.rank, seed=step)
        if step:
            load(folder.checkpoint(step - 1), name_all(state), state)
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
    said["sabotage"] = sabotage(state, board.rank)
    if board.rank == 0:
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
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.1, foreach=False)
    averages = {name: each.detach().double() * 3 for name, each in part.named_parameters()}
    return State(modules=[part], optimizers=[optimizer], averages={"ema": averages})


def _shard(block: nn.Module, mesh: DeviceMesh, layout: Layout) -> None:
    if layout.tp > 1:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if layout.dp_shard > 1:
        fully_shard(block, mesh=mesh["dp"])


def look(state: State) -> dict[str, Any]:
    """The digest over all ranks, and every average gathered and digested whole."""
    named = name_all(state).tensors
    averages = {key: each for key, each in named.items() if key.startswith("average.")}
    whole = {key: _whole(each) for key, each in averages.items()}
    own = {key: f"{local_digest({key: each}):016x}" for key, each in whole.items()}
    told: list[dict[str, str]] = group.gather(own)
    together: dict[str, str] = {}
    for each in told:
        for key, value in each.items():
            assert together.setdefault(key, value) == value
    parameters = [each for key, each in named.items() if key.startswith("model.")]
    return {
        "digest": logical_digest(named, facts_of(state)),
        "averages": together,
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
    return said


def _digest(state: State) -> str:
    try:
        return logical_digest(name_all(state).tensors, facts_of(state))
    except CallHuman as error:
        return f"refused: {error}"


if __name__ == "__main__":
    raise SystemExit(main())
