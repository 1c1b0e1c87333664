"""Sorts Megatron's keys into parameters, slots and the rest, and takes stacked layers apart.

    <name>                                            a parameter or buffer
    [chained_<N>.]optimizer.state.<slot>.<name>       a slot; `fp32_param` and `param` are the master
    [chained_<N>.]optimizer.distributed...            buckets of a distributed optimizer, unnamed
    ...layers.<rest>                                  all layers in one tensor, layer by layer

Megatron saves equal layers as one tensor with a dim of layers before the others, one layer to a
chunk. Here each layer is a tensor of its own, `...layers.<number>.<rest>`.

Invariant: no key is dropped but the working copy of a parameter whose fp32 master is there; two
keys never become one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.names import HOOK
from wattmesh.reconfig.universal.sources.contents import ElementPlace, Place, Tensor
from wattmesh.reconfig.universal.sources.dcp.chunks import Chunks

_SLOT = re.compile(r"(?:chained_\d{1,4}\.)?optimizer\.state\.([^.]+)\.(.+)")
_OPTIMIZER = re.compile(r"(?:chained_\d{1,4}\.)?optimizer\.")
_STACK = re.compile(r"((?:.*\.)?layers\.)(?!\d+\.)(.+)")
_MASTERS = ("fp32_param", "param")


@dataclass(frozen=True, slots=True)
class Sorted:
    """What the keys mean.

    Attributes:
        tensors: under DCP's keys: `model.<name>`, `optim.state.<name>.<slot>`.
        optimized: parameters with a slot or a master.
        masters: how many parameters are read from their fp32 master.
    """

    tensors: Mapping[str, Tensor]
    optimized: tuple[str, ...]
    masters: int


def is_of_optimizer(key: str) -> bool:
    """Tell whether a tensor's or an object's key belongs to an optimizer."""
    return _OPTIMIZER.match(key) is not None


def sort(tensors: Mapping[str, Tensor], chunks: Chunks, where: str) -> Sorted:
    """Sort the keys.

    Args:
        tensors: by Megatron's key.
        chunks: locates chunks of stacked layers.
        where: the folder's name in errors.

    Raises:
        InputInvalid: the optimizer's state has no names, or two keys are one; or a chunk is
            damaged.
        CheckpointDamaged: a file is missing or too short.
    """
    whole = {key: each for key, each in tensors.items() if not is_of_optimizer(key)}
    slots: dict[tuple[str, str], Tensor] = {}
    masters: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if key in whole:
            continue
        match = _SLOT.fullmatch(key)
        if match is None:
            raise InputInvalid(_unnamed(key, where))
        slot, name = match.groups()
        if name not in whole:
            raise InputInvalid(f"{where}: {key!r:.80} is a slot of a parameter that is not there.")
        if (name, slot) in slots or (slot in _MASTERS and name in masters):
            raise InputInvalid(f"{where}: {name!r:.80} has its {slot!r:.40} twice.")
        if slot in _MASTERS:
            masters[name] = _fitting(tensor, whole[name], key, where)
        else:
            slots[name, slot] = tensor
    found: dict[str, Tensor] = {}
    optimized: dict[str, None] = {}
    mastered = 0
    depths: dict[str, int] = {}
    for name, tensor in {**whole, **masters}.items():
        for each, part in _layers(name, tensor, depths, chunks, where):
            _put(found, f"{HOOK.model}{each}", part, where)
            if name in masters:
                optimized[each] = None
                mastered += 1
    for (name, slot), tensor in slots.items():
        for each, part in _layers(name, tensor, depths, chunks, where):
            _put(found, f"{HOOK.optim}state.{each}.{slot}", part, where)
            optimized[each] = None
    return Sorted(found, tuple(optimized), mastered)


def _unnamed(key: str, where: str) -> str:
    return (
        f"{where}: {key!r:.80} is a part of the optimizer's buckets, which say nothing of which "
        "parameter lies where; save with --dist-ckpt-optim-fully-reshardable, or read the weights "
        "only (--weights-only)."
    )


def _fitting(master: Tensor, weight: Tensor, key: str, where: str) -> Tensor:
    if master.shape != weight.shape:
        raise InputInvalid(
            f"{where}: {key!r:.80} has the shape {master.shape}, its parameter {weight.shape}."
        )
    return master


def _put(found: dict[str, Tensor], key: str, tensor: Tensor, where: str) -> None:
    if key in found:
        raise InputInvalid(f"{where}: {key!r:.80} is there twice once layers are taken apart.")
    found[key] = tensor


def _layers(
    name: str, tensor: Tensor, depths: dict[str, int], chunks: Chunks, where: str
) -> Iterator[tuple[str, Tensor]]:
    """The layers of a stack, each with its name; any other tensor as it is."""
    match = _STACK.fullmatch(name)
    alone = tensor.shape and all(box.shape[0] == 1 for box, _ in tensor.chunks)
    if match is None or not alone:
        yield name, tensor
        return
    count = tensor.shape[0]
    if depths.setdefault(match[1], count) != count:
        raise InputInvalid(
            f"{where}: {name!r:.80} has {count} layers, others of {match[1]!r:.40} have "
            f"{depths[match[1]]}."
        )
    parts: dict[int, list[tuple[Box, Place]]] = {}
    for box, place in tensor.chunks:
        stored = chunks.locate(place, tensor.dtype, box.shape)
        inner = StoredTensor(stored.offset, stored.dtype, stored.shape[1:], stored.strides[1:])
        chunk = (Box(box.start[1:], box.shape[1:]), ElementPlace(place.file, inner))
        parts.setdefault(box.start[0], []).append(chunk)
    if missing := [at for at in range(min(count, len(parts) + 1)) if at not in parts]:
        raise InputInvalid(
            f"{where}: layer {missing[0]} of {name!r:.80} is missing; the checkpoint is incomplete."
        )
    for at, boxes in sorted(parts.items()):
        layer = replace(tensor, shape=tensor.shape[1:], chunks=tuple(boxes))
        yield f"{match[1]}{at}.{match[2]}", layer
