"""Sorts Megatron's keys into parameters, slots and the rest, and takes stacked layers apart.

    <name>                                            a parameter or buffer
    [chained_<N>.]optimizer.state.<slot>.<name>       a slot; or, as `fp32_param` or `param`,
                                                      the parameter's fp32 master
    [chained_<N>.]optimizer.distributed...            buckets of a distributed optimizer, unnamed
    ...layers.<rest>                                  all layers in one tensor, layer by layer

Megatron saves equal layers as one tensor with a dim of layers before the others, one layer to a
chunk. Here each layer is a tensor of its own, `...layers.<number>.<rest>`. Experts stay together in
a dim of their own, behind that of layers. A stack is taken apart where Megatron does not say that
it saved layers by number, and every tensor below that `layers.` has one row to a chunk.

Invariant: no key is dropped but the working copy of a parameter whose fp32 master is there; two
keys never become one.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.names import HOOK
from wattmesh.reconfig.universal.sources.contents import ElementPlace, Place, Tensor
from wattmesh.reconfig.universal.sources.dcp.chunks import Chunks

_SLOT = re.compile(r"(?:chained_\d{1,4}\.)?optimizer\.state\.([^.]+)\.(.+)")
_OPTIMIZER = re.compile(r"(?:chained_\d{1,4}\.)?optimizer\.")
_STACK = re.compile(r"((?:.*\.)?layers\.)(?!\d+\.)(.+)")
_MASTERS = ("fp32_param", "param")
_WIDER = ("float32", "float64")
_MASTER_NBYTES = 4
"""An element of fewer bytes has a master wherever Megatron keeps masters."""


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


def sort(tensors: Mapping[str, Tensor], chunks: Chunks, where: str, *, stacked: bool) -> Sorted:
    """Sort the keys.

    Args:
        tensors: by Megatron's key.
        chunks: locates chunks of stacked layers.
        where: the folder's name in errors.
        stacked: equal layers may be one tensor.

    Raises:
        InputInvalid: the optimizer's state has no names, or two keys are one; or a chunk is
            damaged.
        CheckpointDamaged: a file is missing or too short.
    """
    whole = {key: each for key, each in tensors.items() if not is_of_optimizer(key)}
    slots, masters = _slots(tensors, whole, where)
    every = [*whole.items(), *masters.items(), *((name, each) for (name, _), each in slots.items())]
    taken = _Taken(chunks, where, _stacks(every) if stacked else set())
    for name, tensor in {**whole, **masters}.items():
        for each, part in taken.apart(name, tensor):
            taken.put(f"{HOOK.model}{each}", part)
            if name in masters:
                taken.optimized[each] = None
    mastered = len(taken.optimized)
    for (name, slot), tensor in slots.items():
        for each, part in taken.apart(name, tensor):
            taken.put(f"{HOOK.optim}state.{each}.{slot}", part)
            taken.optimized[each] = None
    return Sorted(taken.found, tuple(taken.optimized), mastered)


def _stacks(tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
    """The `...layers.` below which every tensor is a stack: one row to a chunk."""
    found: dict[str, bool] = {}
    for name, tensor in tensors:
        if match := _STACK.fullmatch(name):
            rows = tensor.shape[:1] != (0,) and all(
                box.shape[:1] == (1,) for box, _ in tensor.chunks
            )
            found[match[1]] = found.get(match[1], True) and bool(tensor.shape) and rows
    return {layers for layers, is_stack in found.items() if is_stack}


def _slots(
    tensors: Mapping[str, Tensor], whole: Mapping[str, Tensor], where: str
) -> tuple[dict[tuple[str, str], Tensor], dict[str, Tensor]]:
    """The optimizer's tensors: slots by (parameter, slot), and masters by parameter."""
    slots: dict[tuple[str, str], Tensor] = {}
    masters: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if key in whole:
            continue
        match = _SLOT.fullmatch(key)
        if match is None:
            raise InputInvalid(_unnamed(key, where))
        slot, name = match.groups()
        weight = whole.get(name)
        if weight is None:
            raise InputInvalid(f"{where}: {key!r:.80} is a slot of a parameter that is not there.")
        if (name, slot) in slots or (slot in _MASTERS and name in masters):
            raise InputInvalid(f"{where}: {name!r:.80} has its {slot!r:.40} twice.")
        if len(tensor.shape) == len(weight.shape) + 1:
            raise InputInvalid(_flattened(key, where))
        if slot in _MASTERS:
            _check_master(key, tensor, weight, where)
            masters[name] = tensor
        else:
            slots[name, slot] = tensor
    for name in (name for name, _ in slots if masters and name not in masters):
        if dtypes.size_of(whole[name].dtype) < _MASTER_NBYTES:
            raise InputInvalid(
                f"{where}: {name!r:.80} is {whole[name].dtype} and lacks its fp32 master, which "
                "other parameters have; the checkpoint is incomplete."
            )
    return slots, masters


def _check_master(key: str, master: Tensor, weight: Tensor, where: str) -> None:
    if master.shape != weight.shape:
        raise InputInvalid(
            f"{where}: {key!r:.80} has the shape {master.shape}, its parameter {weight.shape}."
        )
    if not _is_master(master.dtype, weight.dtype):
        raise InputInvalid(
            f"{where}: {key!r:.80} is {master.dtype}, no master of a parameter in "
            f"{weight.dtype}; read the weights only (--weights-only)."
        )


def _is_master(dtype: str, of: str) -> bool:
    """Tell whether weights of a type can be casts of masters of another."""
    return dtype == of or (dtype in _WIDER and dtypes.size_of(dtype) > dtypes.size_of(of))


def _unnamed(key: str, where: str) -> str:
    return (
        f"{where}: {key!r:.80} is a part of the optimizer's buckets, which say nothing of which "
        "parameter lies where; save with --dist-ckpt-optim-fully-reshardable, or read the weights "
        "only (--weights-only)."
    )


def _flattened(key: str, where: str) -> str:
    return (
        f"{where}: {key!r:.80} has one dim more than its parameter, for Megatron before 0.16 saved "
        "ranges of flattened pieces (fully_sharded_model_space); load it with Megatron and save it "
        "with --dist-ckpt-optim-fully-reshardable."
    )


class _Taken:
    """Tensors under DCP's keys while stacks of layers are taken apart."""

    def __init__(self, chunks: Chunks, where: str, stacks: Collection[str]) -> None:
        self.found: dict[str, Tensor] = {}
        self.optimized: dict[str, None] = {}
        self._chunks = chunks
        self._where = where
        self._stacks = stacks
        self._depths: dict[str, int] = {}

    def put(self, key: str, tensor: Tensor) -> None:
        if key in self.found:
            raise InputInvalid(
                f"{self._where}: {key!r:.80} is there twice once layers are taken apart."
            )
        self.found[key] = tensor

    def apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The layers of a stack, each with its name; any other tensor as it is."""
        match = _STACK.fullmatch(name)
        if match is None or match[1] not in self._stacks:
            yield name, tensor
            return
        count = tensor.shape[0]
        depth = self._depths.setdefault(match[1], count)
        if depth != count:
            raise InputInvalid(
                f"{self._where}: {name!r:.80} has {count} layers, others of {match[1]!r:.40} have "
                f"{depth}."
            )
        parts: dict[int, list[tuple[Box, Place]]] = {}
        for box, place in tensor.chunks:
            stored = self._chunks.locate(place, tensor.dtype, box.shape)
            inner = StoredTensor(stored.offset, stored.dtype, stored.shape[1:], stored.strides[1:])
            chunk = (Box(box.start[1:], box.shape[1:]), ElementPlace(place.file, inner))
            parts.setdefault(box.start[0], []).append(chunk)
        wrong = next((at for at in range(count) if at not in parts), None)
        if wrong is not None or len(parts) > count:
            raise InputInvalid(
                f"{self._where}: layer {count if wrong is None else wrong} of {name!r:.80} is "
                f"{'beyond its last' if wrong is None else 'missing'}; the checkpoint is damaged."
            )
        for at, boxes in sorted(parts.items()):
            layer = replace(tensor, shape=tensor.shape[1:], chunks=tuple(boxes))
            yield f"{match[1]}{at}.{match[2]}", layer
