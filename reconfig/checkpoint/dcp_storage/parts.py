"""What one rank writes, from DCP's plan: pieces of tensors, and values as JSON.

Invariant: state that a checkpoint cannot store exactly (complex numbers, unusual shardings,
objects) is refused by name before anything is written, and nothing is ever pickled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.dcp_storage.files import PlacedPiece, TensorPiece
from wattmesh.reconfig.state import plain
from wattmesh.reconfig.state.memory import boxes_within, dtype_name, narrow
from wattmesh.reconfig.universal.folder import DataFile
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import Names
from wattmesh.reconfig.universal.index.placing import logical_parts


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's report to the coordinator after writing.

    Attributes:
        rank: of the process group.
        files: its data files.
        written: the pieces in them.
        left_out: digests of pieces that DCP dropped as replicas of other ranks' pieces.
        values: values that are not tensors, as JSON, by the trainer's name.
    """

    rank: int
    files: dict[str, DataFile]
    written: list[PlacedPiece]
    left_out: list[PlacedPiece]
    values: dict[str, Any] = field(default_factory=dict)


class PlanReader:
    """Reads one rank's state through DCP's planner."""

    def __init__(self, planner: SavePlanner, names: Names, rules: Declared, limit: int) -> None:
        """Look objects up in `planner`; cut pieces to at most `limit` bytes."""
        self._planner = planner
        self._names = names
        self._rules = rules
        self._limit = limit

    def all_items(self, plan: SavePlan) -> list[WriteItem]:
        """Return everything that this rank holds. `plan`: its own local plan.

        A planner that caches its plans returns an empty one the second time; then it is made again.
        """
        if plan.usable:
            return plan.items
        state = getattr(self._planner, "state_dict", None)
        if not isinstance(state, dict):
            raise InputInvalid(
                f"checkpoint: {type(self._planner).__name__} caches plans and hides its state; "
                "save with enable_plan_caching=False."
            )
        return list(create_default_local_save_plan(state, is_coordinator=False).items)

    def values(self, items: Iterable[WriteItem]) -> tuple[dict[str, Any], list[TensorPiece]]:
        """Encode values that are not tensors as JSON; also return the tensors inside of them."""
        inside: dict[str, torch.Tensor] = {}
        values = {
            item.index.fqn: plain.encode(self._object(item), item.index.fqn, inside)
            for item in items
            if item.type is WriteItemType.BYTE_IO
        }
        pieces: list[TensorPiece] = []
        for fqn, tensor in inside.items():
            shape = tuple(tensor.shape)
            pieces += self._cut(fqn, tensor, shape, Box.whole(shape))
        return values, pieces

    def pieces(self, items: Iterable[WriteItem]) -> Iterator[TensorPiece]:
        """Yield the tensors among `items`, cut to size, in logical coordinates.

        Raises:
            InputInvalid: a tensor cannot be stored; the message names it.
        """
        for item in items:
            if item.type is WriteItemType.BYTE_IO:
                continue
            fqn, data = item.index.fqn, item.tensor_data
            local = self._planner.resolve_data(item)
            if data is None or not isinstance(local, torch.Tensor):
                raise InputInvalid(f"checkpoint: {fqn!r} was planned as a tensor but is none.")
            box = Box(tuple(data.chunk.offsets), tuple(data.chunk.sizes))
            self._check(fqn, local, box, tuple(data.size))
            yield from self._cut(fqn, local, tuple(data.size), box)

    def _cut(self, fqn: str, local: torch.Tensor, whole: Shape, box: Box) -> Iterator[TensorPiece]:
        key = self._names.entry_key(fqn)
        dtype, local = dtype_name(local.dtype), local.detach()
        for logical, within in logical_parts(self._rules.rule(key[0]), box, whole):
            part = narrow(local, within)
            for cut in boxes_within(within.shape, local.element_size(), self._limit):
                start = tuple(a + b for a, b in zip(logical.start, cut.start, strict=True))
                placed = Box(start, cut.shape)
                yield TensorPiece(fqn, key, dtype, whole, placed, narrow(part, cut))

    def _object(self, item: WriteItem) -> Any:
        look_up = getattr(self._planner, "lookup_object", None)
        if look_up is None:
            raise InputInvalid(
                f"checkpoint: {item.index.fqn!r} is no tensor and {type(self._planner).__name__} "
                "gives only a pickle of it; use a planner with `lookup_object`."
            )
        return look_up(item.index)

    def _check(self, fqn: str, local: torch.Tensor, box: Box, whole: Shape) -> None:
        """Refuse a tensor that cannot be stored exactly; torch refuses to plan partial sums."""
        if local.is_complex():
            raise InputInvalid(f"checkpoint: {fqn!r} is complex; store it with view_as_real.")
        if local.layout != torch.strided or local.is_meta:
            raise InputInvalid(f"checkpoint: {fqn!r} has no plain memory ({local.layout}, meta).")
        if dtype_name(local.dtype) not in dtypes.CARRIED:
            raise InputInvalid(
                f"checkpoint: {fqn!r} is {local.dtype}, which a checkpoint does not store; it "
                f"carries {', '.join(sorted(dtypes.CARRIED))}."
            )
        if tuple(local.shape) != box.shape:
            raise InputInvalid(
                f"checkpoint: this rank's piece of {fqn!r} is {tuple(local.shape)}, its sharding "
                f"says {box.shape} of {whole}; such a tensor cannot be moved safely."
            )
