"""Jobs that shard tensors in many ways and write down what the digest says of them.

Run by every rank of a launch of the zygote; rank 0 writes `shards.json`.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from wattmesh.errors import CallHuman
from wattmesh.reconfig.checkpoint.digest import combine, local_digest, logical_digest, pieces_of
from wattmesh.reconfig.launch.group import begin, end, gather, gather_bytes
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks
from wattmesh.reconfig.state.boxes import LocalBox, box_of
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all

SHAPES = {"even": (8, 12), "uneven": (10, 7), "short": (3, 5), "vector": (9,), "scalar": ()}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)


def main() -> int:
    """Run every case on four ranks."""
    torch.set_num_threads(1)
    launch_store = LaunchStore.connect(30.0)
    ranks = Ranks(participants=tuple(range(launch_store.launched)), global_rank=launch_store.rank)
    begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    cases: dict[str, Callable[[], Any]] = {
        "plain_shards": plain_shards,
        "fsdp_and_tp": fsdp_and_tp,
        "drifted": drifted,
        "same_name": same_name,
        "same_name_other_shape": same_name_other_shape,
        "covered": covered,
        "gathered": gathered,
        "without_elements": without_elements,
    }
    said = {name: case() for name, case in cases.items()}
    if launch_store.rank == 0:
        Path(os.environ["OUT"], "shards.json").write_text(json.dumps(said))
    end()
    return 0


def whole_tensors() -> dict[str, torch.Tensor]:
    """Tensors of many shapes and dtypes, the same on every rank."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for name, shape in SHAPES.items():
        for dtype in DTYPES:
            values = torch.randn(shape, generator=generator) * 50
            found[f"{name}.{dtype}"] = (
                values.to(dtype) if dtype.is_floating_point else values.int().to(dtype)
            )
    return found


def plain_shards() -> dict[str, str]:
    """Digest the same tensors under every placement of a 2 x 2 mesh that fits them."""
    whole = whole_tensors()
    said = {"oracle": f"{local_digest(whole):016x}"}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    for first in (Replicate(), Shard(0), Shard(1)):
        for second in (Replicate(), Shard(0), Shard(1)):
            tensors = {key: _place(tensor, mesh, (first, second)) for key, tensor in whole.items()}
            said[f"{first} {second}"] = logical_digest(tensors, "")
    said["not sharded"] = logical_digest(whole, "")
    return said


def _place(tensor: torch.Tensor, mesh: DeviceMesh, placements: tuple[Any, Any]) -> torch.Tensor:
    if any(each.is_shard() and each.dim >= tensor.dim() for each in placements):
        return tensor
    return distribute_tensor(tensor, mesh, placements)


def without_elements() -> list[list[bool]]:
    """Whether every rank has the same box of a tensor without elements, sharded and not."""
    mesh = init_device_mesh("cpu", (4,))
    said = []
    for shape in ((4, 0), (0, 4), (0,)):
        plain = torch.zeros(shape)
        sharded = distribute_tensor(plain, mesh, [Shard(0)])
        boxes = [box_of("w", plain), box_of("w", sharded)]
        ids = [-1 if box is None else box.box_id for box in boxes]
        said.append([each == ids[0] for ids in gather(ids) for each in ids])
    return said


def fsdp_and_tp() -> dict[str, Any]:
    """Digest a trained model in four layouts, and compare every box with the full tensor."""
    said: dict[str, Any] = {"wrong_boxes": 0}
    for dp, tp in ((4, 1), (2, 2), (1, 4)):
        state = _trained(dp, tp)
        named = name_all(state).tensors
        said[f"dp{dp} tp{tp}"] = logical_digest(named, "step 1")
        if (dp, tp) == (2, 2):
            said["other step"] = logical_digest(named, "step 2")
            moment = next(key for key in named if key.endswith("exp_avg_sq"))
            fewer = {key: tensor for key, tensor in named.items() if key != moment}
            said["dropped moment"] = logical_digest(fewer, "step 1")
        said["wrong_boxes"] += sum(not _box_is_right(key, each) for key, each in named.items())
    return said


def _trained(dp: int, tp: int) -> State:
    """A model whose weights and moments do not depend on the layout, to the bit."""
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(1)
    # Odd widths, so that neither axis divides them.
    net = nn.Sequential(nn.Linear(7, 10), nn.Tanh(), nn.Linear(10, 7))
    if tp > 1:
        parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    for parameter in net.parameters():
        assert isinstance(parameter, DTensor)
        # A gradient computed through the layout would differ in rounding; the weight's own
        # value, the same in every layout, serves as one.
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    optimizer.zero_grad()
    return State(modules=[net], optimizers=[optimizer])


def _box_is_right(key: str, tensor: torch.Tensor) -> bool:
    """Whether the box says truly where this rank's piece sits in the full tensor."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    box = box_of(key, tensor)
    if box is None:
        return isinstance(tensor, DTensor) and tensor.to_local().numel() == 0
    place = tuple(
        slice(start, start + size) for start, size in zip(box.offset, box.local.shape, strict=True)
    )
    return bool(torch.equal(full[place], box.local))


def drifted() -> str:
    """One rank's replica differs in one bit."""
    tensor = torch.ones(6)
    if dist.get_rank() == 3:
        tensor[4] = 1.0 + 2**-23
    return _complaint({"norm.weight": tensor, "other": torch.zeros(2)})


def same_name() -> str:
    """Two stages give different tensors one name."""
    return _complaint({"layers.0.weight": torch.full((4,), float(dist.get_rank() // 2))})


def same_name_other_shape() -> str:
    """Two stages give tensors of different shapes one name."""
    return _complaint({"layers.0.weight": torch.ones(4 + dist.get_rank() // 2)})


def covered() -> dict[str, str]:
    """Pieces of one tensor of 8 elements that add up to 8, rank by rank."""
    cuts = {
        "exact": ((0, 4), (4, 8), (0, 4), (4, 8)),
        "a gap and an equal overlap": ((0, 4), (3, 7), (0, 4), (3, 7)),
        "a gap": ((0, 4), (5, 8), (0, 4), (5, 8)),
        "outside": ((0, 4), (5, 9), (0, 4), (5, 9)),
    }
    said = {}
    values = torch.arange(16.0)
    for name, cut in cuts.items():
        begin, end = cut[dist.get_rank()]
        box = LocalBox(key="up.weight", whole=(8,), offset=(begin,), local=values[begin:end])
        try:
            combine(pieces_of({box.key: box}), "")
            said[name] = ""
        except CallHuman as error:
            said[name] = str(error)
    return said


def _complaint(tensors: dict[str, torch.Tensor]) -> str:
    try:
        logical_digest(tensors, "")
    except CallHuman as error:
        return str(error)
    return "no complaint"


def gathered() -> list[int]:
    """The lengths at which some rank got other bytes than another rank gave, or out of order."""
    lengths = (0, 1, 7, 8, 1013, *range(1014, 1034), 5000, 70001)
    world, mine = dist.get_world_size(), dist.get_rank()

    def given(rank: int, length: int) -> bytes:
        return bytes((rank + at) % 251 for at in range(length if rank % 2 else length // 3))

    return [
        length
        for length in lengths
        if gather_bytes(given(mine, length)) != [given(rank, length) for rank in range(world)]
    ]
