"""What four ranks do with torch's distributed checkpoint, through our storage and torch's.

Run by every rank of a launch of the zygote; rank 0 writes `said.json`: per case, what came of it.
"""

import json
import os
import re
import resource
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from wattmesh.reconfig.checkpoint.dcp import UniversalReader, UniversalWriter, cause_of
from wattmesh.reconfig.checkpoint.digest import logical_digest
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks
from wattmesh.reconfig.state.boxes import box_of
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.rules import ExpertStack, SubBlocks, VocabPad

OUT = Path(os.environ.get("OUT", "."))
Tensors = dict[str, Any]


def main() -> int:
    """Run every case on four ranks."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    launch_store = LaunchStore.connect(30.0)
    ranks = Ranks(participants=tuple(range(launch_store.launched)), global_rank=launch_store.rank)
    group.begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    cases: tuple[Callable[[], Any], ...] = (
        reshards, placements, stages, stages_of_other_shape, experts, drifted_values, partial,
        fused, fused_undeclared, padded, permuted_experts, asynchronous, full_disk, resharded_bytes,
    )  # fmt: skip
    said = {case.__name__: case() for case in cases}
    if launch_store.rank == 0:
        (OUT / "said.json").write_text(json.dumps(said))
    group.end()
    return 0


def refusal(act: Callable[[], Any]) -> str:
    """What an act is refused with; "" when it is not."""
    try:
        act()
    except CheckpointException as error:
        cause = cause_of(error)
        return f"{type(cause).__name__}: {cause}"
    return ""


def ours(name: str, tensors: Tensors, **options: Any) -> Path:
    """Save through our writer."""
    path = OUT / name
    save(dict(tensors), storage_writer=UniversalWriter(path, **options))
    return path


def torchs(name: str, tensors: Tensors) -> Path:
    """Save through torch's writer: the control."""
    path = OUT / f"{name}-torch"
    save(dict(tensors), checkpoint_id=path)
    return path


def whole(path: Path) -> dict[str, torch.Tensor]:
    """Every logical tensor of a universal checkpoint, by "name state"."""
    opened = open_checkpoint(path)
    with Files(path) as files:
        reader = Reader(opened.index, files)
        return {
            f"{entry.name} {entry.state}": torch.from_numpy(reader.read(row))
            for row, entry in enumerate(opened.index.entries)
        }


def trained(dp: int, tp: int, seed: int) -> State:
    """A model with AdamW after one step, its shards uneven, sharded as dp x tp."""
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 10), nn.Tanh(), nn.Linear(10, 7))
    for number, dim in ((0, 0), (2, 1)):
        layer = net[number]
        assert isinstance(layer, nn.Linear)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight, mesh["tp"], [Shard(dim)]))
        bias = Shard(0) if dim == 0 else Replicate()
        layer.bias = nn.Parameter(distribute_tensor(layer.bias, mesh["tp"], [bias]))
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    for parameter in net.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    optimizer.zero_grad()
    return State(modules=[net], optimizers=[optimizer])


def reshards() -> dict[str, Any]:
    """Save as dp2 tp2, load as others and back: the logical digest does not move."""
    saved = name_all(trained(2, 2, seed=1))
    said = {"saved": logical_digest(saved.tensors, "")}
    path = ours("reshards", saved.tensors)
    for dp, tp in ((4, 1), (1, 4), (2, 2)):
        fresh = name_all(trained(dp, tp, seed=2))
        said[f"before dp{dp} tp{tp}"] = logical_digest(fresh.tensors, "")
        load(dict(fresh.tensors), storage_reader=UniversalReader(path))
        said[f"dp{dp} tp{tp}"] = logical_digest(fresh.tensors, "")
    return said


def placements() -> dict[str, Any]:
    """Many dtypes and shapes under every placement of a 2 x 2 mesh, loaded under another."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    kinds = (Replicate(), Shard(0), Shard(1))
    tensors: Tensors = {}
    expected: Tensors = {}
    for number, (first, second) in enumerate((a, b) for a in kinds for b in kinds):
        for shape in ((8, 12), (10, 7), (3, 5)):
            for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64):
                name = f"model.t{number}.{shape}.{dtype}"
                full = (torch.arange(shape[0] * shape[1]).reshape(shape) * 7 % 251).to(dtype)
                tensors[name] = distribute_tensor(full, mesh, [first, second])
                expected[name] = full
    path = ours("placements", tensors)
    wrong = []
    for name, full in expected.items():
        tensors[name] = distribute_tensor(torch.zeros_like(full), mesh, [Shard(1), Shard(0)])
    load(tensors, storage_reader=UniversalReader(path))
    for name, full in expected.items():
        found = tensors[name]
        assert isinstance(found, DTensor)
        if not torch.equal(found.full_tensor(), full):
            wrong.append(name)
    return {"wrong": wrong, "tensors": len(expected)}


def stages() -> dict[str, Any]:
    """Two pipeline stages that both call a layer `layers.0`."""
    mine = float(dist.get_rank() // 2 + 1)
    tensors: Tensors = {"model.layers.0.w": torch.full((4,), mine)}
    read: Tensors = {"model.layers.0.w": torch.zeros(4)}
    load(read, checkpoint_id=torchs("stages", tensors))
    lost = group.gather([mine, read["model.layers.0.w"][0].item()])
    return {
        "torch": lost,
        "ours": refusal(lambda: ours("stages", tensors)),
        "left": sorted(each.name for each in OUT.glob("*stages*") if "torch" not in each.name),
    }


def stages_of_other_shape() -> str:
    """The same, with layers of different shapes."""
    tensors: Tensors = {"model.layers.0.w": torch.ones(4 + dist.get_rank() // 2)}
    return refusal(lambda: ours("shapes", tensors))


def experts() -> dict[str, Any]:
    """Expert parallelism with plain tensors: every rank's own experts under one name."""
    mine = float(dist.get_rank() + 1)
    tensors: Tensors = {"model.experts.w1": torch.full((2, 3), mine)}
    read: Tensors = {"model.experts.w1": torch.zeros(2, 3)}
    load(read, checkpoint_id=torchs("experts", tensors))
    lost = group.gather([mine, read["model.experts.w1"][0, 0].item()])
    return {"torch": lost, "ours": refusal(lambda: ours("experts", tensors))}


def drifted_values() -> dict[str, Any]:
    """A learning rate that differs between ranks."""
    state: dict[str, Any] = {"model.w": torch.ones(2), "optim.param_groups.w.lr": 0.1}
    if dist.get_rank() == 2:
        state["optim.param_groups.w.lr"] = 0.2
    read = {**state, "optim.param_groups.w.lr": 0.0}
    load(read, checkpoint_id=torchs("values", state))
    lost = group.gather([state["optim.param_groups.w.lr"], read["optim.param_groups.w.lr"]])
    return {"torch": lost, "ours": refusal(lambda: ours("values", state))}


def partial() -> str:
    """A partial sum, equal on all ranks, so that nothing else would show it."""
    mesh = init_device_mesh("cpu", (4,))
    tensor = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    return refusal(lambda: ours("partial", {"model.w": tensor}))


QKV = {2: ((4, 2, 2), (4, 2, 2)), 4: ((2, 1, 1),) * 4}
"""Rows of q, k and v that each rank of a tensor parallel group of that size holds."""


def _fused(ranks: int) -> tuple[torch.Tensor, DTensor]:
    """A logical QKV weight, and how a trainer with fused shards holds it."""
    full = torch.arange(16.0 * 3).reshape(16, 3)
    rows: list[torch.Tensor] = []
    starts, taken = (0, 8, 12), [0, 0, 0]
    for widths in QKV[ranks]:
        for block, width in enumerate(widths):
            at = starts[block] + taken[block]
            rows.append(full[at : at + width])
            taken[block] += width
    stored = torch.cat(rows)
    mesh = init_device_mesh("cpu", (4 // ranks, ranks), mesh_dim_names=("dp", "tp"))["tp"]
    return full, distribute_tensor(stored, mesh, [Shard(0)])


def _qkv(ranks: int) -> Declared:
    return Declared(rules=((re.compile("qkv"), SubBlocks(widths=QKV[ranks])),))


def fused() -> dict[str, Any]:
    """Fused QKV over tp2, declared: stored unfused, and loaded by tp4 in its own order."""
    full, held = _fused(2)
    path = ours("fused", {"model.qkv": held}, rules=_qkv(2))
    _, wanted = _fused(4)
    read: Tensors = {"model.qkv": torch.zeros_like(wanted)}
    load(read, storage_reader=UniversalReader(path, rules=_qkv(4)))
    found = read["model.qkv"]
    assert isinstance(found, DTensor)
    return {
        "stored": torch.equal(whole(path)["qkv param"], full),
        "loaded": torch.equal(found.full_tensor(), wanted.full_tensor()),
    }


def fused_undeclared() -> dict[str, Any]:
    """The control: torch loads tp2's fused rows into tp4 as they lie."""
    _, held = _fused(2)
    _, wanted = _fused(4)
    read: Tensors = {"model.qkv": torch.zeros_like(wanted)}
    load(read, checkpoint_id=torchs("fused", {"model.qkv": held}))
    found = read["model.qkv"]
    assert isinstance(found, DTensor)
    return {"loaded": torch.equal(found.full_tensor(), wanted.full_tensor())}


def padded() -> dict[str, Any]:
    """A vocabulary of 10 padded to 12 is stored as 10, and loaded into one padded to 16."""
    mesh = init_device_mesh("cpu", (4,))
    rules = Declared(rules=((re.compile("embed"), VocabPad(size=10)),))
    table = torch.arange(12.0 * 2).reshape(12, 2) + 1
    held = {
        "model.embed": distribute_tensor(table, mesh, [Shard(0)]),
        "optim.state.embed.exp_avg": distribute_tensor(-table, mesh, [Shard(0)]),
        "optim.state.embed.step": torch.tensor(3.0),
    }
    path = ours("padded", held, rules=rules)
    wide = distribute_tensor(torch.full((16, 2), 9.0), mesh, [Shard(0)])
    read: Tensors = {"model.embed": wide, "optim.state.embed.exp_avg": wide.clone()}
    read["optim.state.embed.step"] = torch.tensor(0.0)
    reader = UniversalReader(path, rules=rules, padded={"embed": 16})
    load(read, storage_reader=reader)
    expected = torch.cat([table[:10], torch.zeros(6, 2)])
    moments = read["optim.state.embed.exp_avg"]
    assert isinstance(moments, DTensor)
    return {
        "stored": torch.equal(whole(path)["embed param"], table[:10]),
        "loaded": torch.equal(wide.full_tensor(), expected),
        "moments": torch.equal(moments.full_tensor(), -expected),
        "step": read["optim.state.embed.step"].item(),
    }


def permuted_experts() -> dict[str, Any]:
    """Experts placed in one order are loaded in another, each with its own weights."""
    mesh = init_device_mesh("cpu", (4,))
    full = torch.arange(8.0 * 3).reshape(8, 3)
    before, after = (7, 0, 6, 1, 5, 2, 4, 3), (2, 3, 0, 1, 6, 7, 4, 5)

    def placed(order: tuple[int, ...]) -> tuple[DTensor, Declared]:
        held = distribute_tensor(full[list(order)], mesh, [Shard(0)])
        return held, Declared(rules=((re.compile("experts"), ExpertStack(experts=order)),))

    held, rules = placed(before)
    path = ours("order", {"model.experts.w": held}, rules=rules)
    wanted, rules = placed(after)
    read: Tensors = {"model.experts.w": torch.zeros_like(wanted)}
    load(read, storage_reader=UniversalReader(path, rules=rules))
    found = read["model.experts.w"]
    assert isinstance(found, DTensor)
    return {
        "stored": torch.equal(whole(path)["experts.w param"], full),
        "loaded": torch.equal(found.full_tensor(), wanted.full_tensor()),
    }


def asynchronous() -> dict[str, Any]:
    """An asynchronous save on a group of its own holds the state of the call."""
    own = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (4,))
    before = torch.arange(32.0).reshape(8, 4)
    held = distribute_tensor(before, mesh, [Shard(0)])
    other = torch.ones(3)
    state: dict[str, Any] = {"model.w": held, "model.v": other, "optim.param_groups.w.lr": 0.1}
    path = OUT / "asynchronous"
    future = async_save(state, storage_writer=UniversalWriter(path), process_group=own)
    # Training goes on: other values, and other messages in the default group.
    held.to_local().mul_(-1.0)
    other.zero_()
    state["optim.param_groups.w.lr"] = 0.2
    messages = 0
    for _ in range(20):
        dist.all_reduce(torch.ones(1000))
        messages += 1
    assert isinstance(future, Future)
    future.result()
    found = whole(path)
    return {
        "w": torch.equal(found["w param"], before),
        "messages": messages,
        "v": found["v param"].tolist(),
        "values": open_checkpoint(path).trainer["values"],
    }


def full_disk() -> dict[str, Any]:
    """One rank cannot write: every rank hears of it, and nothing is published."""
    mesh = init_device_mesh("cpu", (4,))
    tensors: Tensors = {"model.w": distribute_tensor(torch.ones(4096, 64), mesh, [Shard(0)])}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    told = refusal(lambda: ours("full", tensors))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again = refusal(lambda: ours("full", tensors))
    return {"told": group.gather(told), "again": again, "there": (OUT / "full").exists()}


def resharded_bytes() -> dict[str, float]:
    """Bytes read over bytes needed, worst rank, for loads into other layouts."""
    mesh = init_device_mesh("cpu", (4,))
    full = torch.arange(1024.0 * 1024).reshape(1024, 1024)
    pair = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    path = ours("bytes", {"model.w": distribute_tensor(full, pair, [Replicate(), Shard(0)])})
    said: dict[str, float] = {}
    layouts: Mapping[str, tuple[Any, Any]] = {
        "same dim": (mesh, [Shard(0)]),
        "other dim": (mesh, [Shard(1)]),
        "both": (pair, [Shard(0), Shard(1)]),
        "whole": (mesh, [Replicate()]),
    }
    for name, (where, placed) in layouts.items():
        held = distribute_tensor(torch.zeros_like(full), where, placed)
        reader = UniversalReader(path)
        load({"model.w": held}, storage_reader=reader)
        box = box_of("model.w", held)
        assert box is not None
        assert torch.equal(held.full_tensor(), full)
        said[name] = max(group.gather(reader.bytes_read / (4 * box.local.numel())))
    return said
