"""Gathers the unsharded state of a distributed job without any of our checkpoint code.

V1 and V2 compare it, so it must not depend on what they check: neither on our boxes, digests, names
or readers, nor on torch's state dicts. It walks modules and optimizers, and `pieces.py` puts the
pieces together, one mesh axis after the other.

Invariant: a name whose bits differ between ranks that share it is `disputed`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.equivalence.pieces import Cut, put_together
from wattmesh.reconfig.equivalence.whole import WholeState
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.state.state import State

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
"""Parts of names that torch.compile and other wrappers add."""

_WIDENED = {torch.bfloat16: torch.float32, torch.float8_e4m3fn: torch.float32}
_WIDENED[torch.float8_e5m2] = torch.float32


def gather_whole(state: State) -> WholeState:
    """Gather parameters, buffers, optimizer slots, averages and settings. A collective call.

    Group rank 0 holds everything in host memory, so it is meant for a model that is scaled down for
    validation.

    Returns:
        Everything on group rank 0; an empty state elsewhere.
    """
    shard_again(state)
    return _gather(dict(_tensors(state)), _state_without_tensors(state))


def gather_trained(state: State, kinds: tuple[str, ...]) -> WholeState:
    """Gather what an optimizer changes, of some kinds: "param.", "slot.". A collective call."""
    shard_again(state)
    return _gather({key: each for key, each in _tensors(state) if key.startswith(kinds)}, {})


def gather_gradients(state: State) -> WholeState:
    """Gather the gradients after `backward`, before clipping. A collective call."""
    held = {}
    for module in state.modules:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                held[f"grad.{_clean(name)}"] = parameter.grad
    return _gather(held, {})


def shard_again(state: State) -> None:
    """Reshard FSDP modules: a forward without backward leaves unsharded copies behind."""
    for module in state.modules:
        for each in module.modules():
            if isinstance(each, FSDPModule):
                each.reshard()


def _tensors(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of this rank, by a name that is the same in all layouts."""
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


def _state_without_tensors(state: State) -> dict[str, Any]:
    """State that is not tensors: settings by parameter, schedules, the position."""
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


def _gather(held: dict[str, torch.Tensor], plain: dict[str, Any]) -> WholeState:
    """Send every rank's pieces to group rank 0 and put them together there."""
    pieces = {name: _piece(name, tensor) for name, tensor in held.items()}
    headers = {name: [asdict(cut), str(array.dtype)] for name, (cut, array) in pieces.items()}
    data = b"".join(array.tobytes() for _, array in pieces.values())
    told = group.gather({"headers": headers, "plain": plain, "size": len(data)})
    received = _collect(data, [each["size"] for each in told])
    if dist.get_rank():
        return WholeState(arrays={})
    found: dict[str, list[tuple[Cut, NDArray[Any]]]] = {}
    for each, payload in zip(told, received, strict=True):
        for name, piece in _pieces_in(payload, each["headers"]):
            found.setdefault(name, []).append(piece)
    values, disputed = _one_value_each([each["plain"] for each in told])
    wholes = {name: put_together(each) for name, each in found.items()}
    disputed |= {name for name, (_, agreed) in wholes.items() if not agreed}
    return WholeState(
        arrays={name: array for name, (array, _) in wholes.items()},
        dtypes={name: each[0][0].dtype for name, each in found.items()},
        plain=values,
        disputed=tuple(sorted(disputed)),
    )


def _pieces_in(
    payload: bytes, headers: dict[str, Any]
) -> Iterator[tuple[str, tuple[Cut, NDArray[Any]]]]:
    """Decode what one rank sent, by name."""
    at = 0
    for name, (fields, kind) in headers.items():
        cut = Cut.of(fields)
        count = math.prod(cut.local)
        array = np.frombuffer(payload, np.dtype(kind), count, at).reshape(cut.local)
        at += array.nbytes
        yield name, (cut, array)


def _one_value_each(told: Sequence[dict[str, Any]]) -> tuple[dict[str, str], set[str]]:
    """The plain values of all ranks, and the names under which ranks have different ones."""
    values: dict[str, str] = {}
    disputed = set()
    for each in told:
        for name, value in each.items():
            text = json.dumps(value, sort_keys=True)
            if values.setdefault(name, text) != text:
                disputed.add(name)
    return values, disputed


def _collect(data: bytes, sizes: list[int]) -> list[bytes]:
    """Send everything to group rank 0, rank after rank; gives it there, and nothing elsewhere."""
    me = dist.get_rank()
    found = [data]
    for sender in range(1, len(sizes)):
        if me == sender and data:
            dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0)
        elif me == 0:
            buffer = torch.empty(sizes[sender], dtype=torch.uint8)
            if sizes[sender]:
                dist.recv(buffer, sender)
            found.append(buffer.numpy().tobytes())
    return found


def _piece(name: str, tensor: torch.Tensor) -> tuple[Cut, NDArray[Any]]:
    """This rank's part of a tensor, and how the tensor was sharded."""
    local = tensor.detach()
    mesh: list[list[int]] = []
    if isinstance(tensor, DTensor):
        local = tensor.to_local().detach()
        mesh = [tensor.device_mesh.mesh.flatten().tolist(), list(tensor.device_mesh.mesh.shape)]
    array = local.to(_WIDENED.get(local.dtype, local.dtype)).cpu().contiguous().numpy()
    if not isinstance(tensor, DTensor):
        return Cut(dtype=str(tensor.dtype), local=array.shape, mesh=(dist.get_rank(),)), array
    return Cut(
        dtype=str(tensor.dtype),
        local=array.shape,
        mesh=tuple(mesh[0]),
        sizes=tuple(mesh[1]),
        place=tuple(tensor.device_mesh.get_coordinate() or ()),
        axes=tuple(_axis(name, tensor, axis) for axis in range(tensor.device_mesh.ndim)),
    ), array


def _axis(name: str, tensor: DTensor, axis: int) -> tuple[int, int]:
    """How a mesh axis shards a tensor: (dim or -1, torch's split factor).

    Raises:
        InputInvalid: the placement cannot be undone without torch.
    """
    placement = tensor.placements[axis]
    if placement.is_replicate():
        return -1, 1
    dim = getattr(placement, "dim", None)
    if placement.is_partial() or dim is None:
        raise InputInvalid(f"equivalence: {name!r} is {placement}, which cannot be put together")
    return int(dim), int(getattr(placement, "split_factor", 1))


def _clean(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
