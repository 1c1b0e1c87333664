"""What four ranks save with torch's own distributed checkpoint, in many layouts and conventions.

Run by every rank of a launch of the zygote. Per case: OUT/<case>/ is the DCP folder and
OUT/<case>.safetensors what the ranks held, whole: "<name>|<state>" -> tensor, gathered in memory.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from examples.pretrain.config import preset
from examples.pretrain.train import build_state, train_step
from tests.universal.dcp_runs import ORDER, QKV_WIDTHS
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.tensors import name_all

OUT = Path(os.environ.get("OUT", "."))
Tensors = Mapping[str, Any]


def main() -> int:
    """Save every case."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    launch_store = LaunchStore.connect(30.0)
    ranks = Ranks(participants=tuple(range(launch_store.launched)), global_rank=launch_store.rank)
    group.begin(launch_store, 1, ranks, device="cpu", timeout_s=60.0)
    for name, layout in LAYOUTS.items():
        trainer(name, layout)
    for case in (hybrid, titan, nested, not_flattened, strided, declared):
        case()
    group.end()
    return 0


EMA = "average.ema."

LAYOUTS = {
    "dp2-tp2": Layout(dp_shard=2, tp=2),
    "pp2-tp2": Layout(pp=2, tp=2),
    "pp2-dp2": Layout(pp=2, dp_shard=2),
}


def trainer(name: str, layout: Layout) -> None:
    """The example trainer, saved as the hook names things."""
    state = build_state(preset("tiny"), layout)
    train_step(state)
    named = name_all(state)
    put(name, {**named.tensors, **named.plain}, "model.", "optim.state.")


class Experts(nn.Module):
    """Fused QKV, and experts stacked along dim 0."""

    def __init__(self, seed: int) -> None:
        """Draw it; sizes that do not divide."""
        super().__init__()
        torch.manual_seed(seed)
        self.qkv = nn.Linear(6, 10)
        self.experts = nn.Parameter(torch.randn(6, 3, 5))
        self.register_buffer("bias_of_router", torch.arange(6.0))


def stepped(model: nn.Module, make: Callable[..., torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """An optimizer after one step."""
    optimizer = make(model.parameters())
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone() * 0.5
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """AdamW, one tensor at a time."""
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=False)


def sharded(mesh: DeviceMesh, seed: int) -> Experts:
    """Experts over `ep` where the mesh has it, then FSDP (or HSDP) over the rest."""
    model = Experts(seed)
    if mesh.mesh_dim_names is not None and "ep" in mesh.mesh_dim_names:
        whole = distribute_tensor(model.experts.detach(), mesh["ep"], [Shard(0)])
        model.experts = nn.Parameter(whole)
        model.qkv.weight = nn.Parameter(
            distribute_tensor(model.qkv.weight.detach(), mesh["ep"], [Replicate()])
        )
        model.qkv.bias = nn.Parameter(
            distribute_tensor(model.qkv.bias.detach(), mesh["ep"], [Replicate()])
        )
        fully_shard(model, mesh=mesh["dp"])
    else:
        fully_shard(model, mesh=mesh)
    return model


def hybrid() -> None:
    """HSDP: two replicas of two shards, SGD with momentum."""
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), 1)
    optimizer = stepped(model, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False))
    put("hsdp", flat(model, optimizer, "model", "optim"), "model.", "optim.state.")


def titan() -> None:
    """Torchtitan's convention, EP 2 x FSDP 2 (strided shards), with trainer state beside."""
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep")), 2)
    optimizer = stepped(model, adamw)
    state: dict[str, Any] = {
        **get_model_state_dict(model),
        **flat(model, optimizer, "", "optimizer"),
        "train_state": {"step": torch.tensor(7), "losses": [0.5, 0.25]},
        "lr_scheduler": {"last_epoch": 7},
        "dataloader": {"dp_rank_0": b"opaque \x00 bytes"},
    }
    extra = {"train_state.step|param": torch.tensor(7)}
    put("titan", state, "", "optimizer.state.", extra)


def nested() -> None:
    """Both state dicts inside an application's own."""
    model = sharded(init_device_mesh("cpu", (4,)), 3)
    optimizer = stepped(model, adamw)
    state = flat(model, optimizer, "app.model", "app.optim")
    put("nested", {**state, "ema": torch.ones(3)}, "app.model.", "app.optim.state.",
        {"ema|extra": torch.ones(3)})  # fmt: skip


def not_flattened() -> None:
    """The optimizer's state dict as it is: groups in a list, names inside."""
    model = sharded(init_device_mesh("cpu", (4,)), 4)
    optimizer = stepped(model, adamw)
    state = {"model": get_model_state_dict(model),
             "optim": get_optimizer_state_dict(model, optimizer)}  # fmt: skip
    held = flat(model, optimizer, "model", "optim")
    put("not-flattened", held, "model.", "optim.state.", saved=state)


def flat(
    model: nn.Module, optimizer: torch.optim.Optimizer, model_prefix: str, optim_prefix: str
) -> dict[str, Any]:
    """Both state dicts under prefixes, the optimizer's by parameter."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    optim = get_optimizer_state_dict(model, optimizer, options=options)
    found: dict[str, Any] = {f"{optim_prefix}.{key}": value for key, value in optim.items()}
    dot = "." if model_prefix else ""
    found |= {f"{model_prefix}{dot}{k}": v for k, v in get_model_state_dict(model).items()}
    return found


def strided() -> None:
    """Tensors that are saved with strides: transposed, channels last; a slot like its weight."""
    base = torch.arange(24.0).reshape(4, 6)
    conv = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    state = {
        "model.turned": base.t(),
        "model.conv": conv.to(memory_format=torch.channels_last),
        "model.slice": base[1:3, 2:5],
        "model.scalar": torch.tensor(4.5),
        "model.empty": torch.zeros(0, 3),
        "model.half": base.bfloat16().t(),
        "optim.state.turned.exp_avg": -base.t(),
    }
    put("strided", state, "model.", "optim.state.")


def declared() -> None:
    """What needs declarations: fused QKV cut per rank, a padded vocabulary, permuted experts."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    qkv, table, experts = (torch.arange(16.0 * 3).reshape(16, 3), torch.arange(20.0).reshape(10, 2),
                           torch.arange(12.0).reshape(6, 2))  # fmt: skip
    rows, taken = [], [0, 8, 12]
    for widths in QKV_WIDTHS:
        for block, width in enumerate(widths):
            rows.append(qkv[taken[block] : taken[block] + width])
            taken[block] += width
    stored = {
        "attention.qkv": torch.cat(rows),
        "embed": torch.cat([table, torch.full((2, 2), 99.0)]),
        "experts": experts[list(ORDER)],
    }
    held = {"attention.qkv": qkv, "embed": table, "experts": experts}
    state: dict[str, Any] = {}
    for name, tensor in stored.items():
        state[f"stage1.{name}"] = distribute_tensor(tensor, mesh, [Shard(0)])
        state[f"optim.state.{name}.exp_avg"] = distribute_tensor(-tensor, mesh, [Shard(0)])
    state = {f"model.{k}" if k.startswith("stage1") else k: v for k, v in state.items()}
    state = {k.replace("state.", "state.stage1."): v for k, v in state.items()}
    facts = {f"{name}|param": tensor for name, tensor in held.items()}
    facts |= {f"{name}|exp_avg": -tensor for name, tensor in held.items()}
    put("declared", {}, "model.", "optim.state.", facts, saved=state)


def put(
    name: str,
    state: Tensors,
    model: str,
    slots: str,
    extra: Mapping[str, torch.Tensor] | None = None,
    *,
    saved: Tensors | None = None,
) -> None:
    """Save with torch, and write down what `state` holds, whole; `extra` as it is."""
    dcp_save(dict(state if saved is None else saved), checkpoint_id=OUT / name)
    mine = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and (key.startswith((model, slots, EMA))):
            full = value.full_tensor() if isinstance(value, DTensor) else value
            parameter, _, slot = key.removeprefix(slots).rpartition(".")
            label = f"{parameter}|{slot}" if key.startswith(slots) else None
            if key.startswith(EMA):
                label = f"{key.removeprefix(EMA)}|average.ema"
            mine[label or f"{key.removeprefix(model)}|param"] = full.detach().clone()
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    if dist.get_rank() == 0:
        merged = {k: v.contiguous() for part in parts for k, v in part.items()}
        save_file({**merged, **(extra or {})}, OUT / f"{name}.safetensors")
    dist.barrier()
