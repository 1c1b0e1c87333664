"""The whole state of a distributed job, gathered without any of our checkpoint code.

It is what V1 and V2 compare, so it must not stand on what they judge: neither on our boxes,
digests, names or readers, nor on torch's state dicts. It walks modules and optimizers and asks
torch for each full tensor.

Invariant: a name that several ranks have must have the same bits on each; where it has not, it is
`disputed`, whatever was gathered.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from wattmesh.reconfig import group
from wattmesh.reconfig.equivalence.whole import Whole
from wattmesh.reconfig.state import State

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
"""What torch.compile and the like put into names."""

_WIDENED = {torch.bfloat16: torch.float32, torch.float8_e4m3fn: torch.float32}
_WIDENED[torch.float8_e5m2] = torch.float32


def gather_whole(state: State) -> Whole:
    """Gather parameters, buffers, optimizer slots, averages and settings; a collective call.

    While it runs every rank holds the whole tensors of its stages in host memory: it is meant for a
    model scaled down for validation, not for the full one.

    Returns:
        Everything on group rank 0; no arrays elsewhere, but what is disputed on every rank.
    """
    shard_again(state)
    return _gather(dict(_tensors(state)), _plain(state))


def gather_gradients(state: State) -> Whole:
    """Gather the gradients that `backward` has left, before they are clipped; a collective call."""
    held = {}
    for module in state.modules:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                held[f"grad.{_clean(name)}"] = parameter.grad
    return _gather(held, {})


def shard_again(state: State) -> None:
    """Shard what a forward without backward has left gathered: a copy, no parameter of ours."""
    for module in state.modules:
        for each in module.modules():
            if isinstance(each, FSDPModule):
                each.reshard()


def _tensors(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of this rank, by a name that no layout changes."""
    names: dict[int, str] = {}
    for module in state.modules:
        for name, weight in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(weight), _clean(name))
            yield f"param.{_clean(name)}", weight
        for name, buffer in module.named_buffers():
            yield f"buffer.{_clean(name)}", buffer
    for optimizer in state.optimizers:
        for parameter, slots in optimizer.state.items():
            for slot, value in slots.items():
                if isinstance(value, torch.Tensor):
                    yield f"slot.{names[id(parameter)]}.{slot}", value
    for slot, averages in state.averages.items():
        for key, average in averages.items():
            yield f"average.{_clean(key)}.{slot}", average


def _plain(state: State) -> dict[str, Any]:
    """What is no tensor: settings by parameter, schedules, the position."""
    names = {
        id(parameter): _clean(name)
        for module in state.modules
        for name, parameter in module.named_parameters()
    }
    found: dict[str, Any] = {"position": asdict(state.position)}
    for optimizer in state.optimizers:
        for each in optimizer.param_groups:
            settings = {key: repr(value) for key, value in each.items() if key != "params"}
            for parameter in each["params"]:
                found[f"settings.{names[id(parameter)]}"] = settings
    for name, extra in state.extra.items():
        found[f"extra.{name}"] = repr(extra.state_dict())
    return found


def _gather(held: dict[str, torch.Tensor], plain: dict[str, Any]) -> Whole:
    """Bring every name to group rank 0, from the first rank that has it."""
    # In the order in which the model was built: a stage's ranks must take part in one order.
    arrays = {name: _full(tensor) for name, tensor in held.items()}
    facts = {
        name: [str(held[name].dtype), list(array.shape), str(array.dtype), _hash(array)]
        for name, array in arrays.items()
    }
    everywhere = group.gather({"tensors": facts, "plain": plain})
    owners: dict[str, tuple[int, list[Any]]] = {}
    values: dict[str, Any] = {}
    disputed = set()
    for rank, told in enumerate(everywhere):
        for name, fact in told["tensors"].items():
            if owners.setdefault(name, (rank, fact))[1] != fact:
                disputed.add(name)
        for name, value in told["plain"].items():
            if values.setdefault(name, value) != value:
                disputed.add(name)
    collected = _collect(arrays, owners)
    return Whole(
        arrays=collected,
        dtypes={name: fact[0] for name, (_, fact) in owners.items()},
        plain={name: json.dumps(value, sort_keys=True) for name, value in values.items()},
        disputed=tuple(sorted(disputed)),
    )


def _collect(
    arrays: dict[str, NDArray[Any]], owners: dict[str, tuple[int, list[Any]]]
) -> dict[str, NDArray[Any]]:
    """Send what group rank 0 lacks, rank by rank in one message each."""
    me = dist.get_rank()
    found = {name: arrays[name] for name, (rank, _) in owners.items() if rank == me == 0}
    for sender in range(1, dist.get_world_size()):
        names = sorted(name for name, (rank, _) in owners.items() if rank == sender)
        if not names or me not in (0, sender):
            continue
        shapes = [(name, owners[name][1][1], np.dtype(owners[name][1][2])) for name in names]
        total = sum(int(np.prod(shape)) * dtype.itemsize for _, shape, dtype in shapes)
        if me == sender:
            data = b"".join(arrays[name].tobytes() for name in names)
            if total:
                dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0)
            continue
        buffer = torch.empty(total, dtype=torch.uint8)
        if total:
            dist.recv(buffer, sender)
        data, at = buffer.numpy().tobytes(), 0
        for name, shape, dtype in shapes:
            size = int(np.prod(shape)) * dtype.itemsize
            found[name] = np.frombuffer(data[at : at + size], dtype).reshape(shape)
            at += size
    return found


def _full(tensor: torch.Tensor) -> NDArray[Any]:
    """The unsharded tensor, on the CPU; collective over its mesh."""
    whole = tensor.detach()
    if isinstance(whole, DTensor):
        whole = whole.full_tensor()
    whole = whole.to(_WIDENED.get(whole.dtype, whole.dtype))
    array: NDArray[Any] = whole.cpu().contiguous().numpy()
    return array.copy()


def _hash(array: NDArray[Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def _clean(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
