"""The DCP storage reader of a universal checkpoint, which reads only what a rank needs.

DCP's own reader loads every stored chunk that a rank needs a part of. This one presents each tensor
to the planner as one chunk, so planning is O(local), and reads the planned boxes with positional
reads into the destination's memory.

Invariant: nothing is cast, cut or skipped silently; padding rows in the trainer's layout become
zeros.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.checkpoint import damage
from wattmesh.reconfig.state import plain
from wattmesh.reconfig.state.memory import Staging, as_array, dtype_name, torch_dtype
from wattmesh.reconfig.universal import folder
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import TensorEntry
from wattmesh.reconfig.universal.index.names import EXTRA, HOOK, Names
from wattmesh.reconfig.universal.index.placing import is_identity, logical_parts, logical_shape
from wattmesh.reconfig.universal.index.rules import Replicate, Rule


class UniversalReader(StorageReader):
    """A DCP storage reader: `dcp.load(state_dict, storage_reader=UniversalReader(folder))`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        names: Names = HOOK,
        rules: Declared | None = None,
        padded: Mapping[str, int] | None = None,
        verify: bool = False,
    ) -> None:
        """Read one checkpoint, virtual or physical, without opening it yet.

        Args:
            path: the checkpoint's folder.
            names: maps the trainer's tensor names.
            rules: differences between the trainer's layout of a tensor and the logical one, and
                tied names.
            padded: for each name with a vocab_pad rule, the size of its dim in the trainer.
            verify: hash every byte first, each rank its share; without it, damage in a data file
                shows only if the caller checks the loaded state (as the hook does).

        Raises:
            InputInvalid: `rules` contains renames, which have no inverse.
        """
        self._path = Path(path)
        self._names = names
        self._rules = rules or Declared()
        self._verify = verify
        self._padded = dict(padded or {})
        if self._rules.renames:
            raise InputInvalid("checkpoint: renames have no inverse; give `names` instead.")
        self._checkpoint: Checkpoint | None = None
        self._problem: WattmeshError | None = None
        self._rows: dict[str, int] = {}
        self.bytes_read = 0

    def open(self) -> Checkpoint:
        """Open the checkpoint, once.

        Raises:
            CheckpointDamaged: see `folder.open_checkpoint`.
        """
        if self._checkpoint is None:
            self._checkpoint = folder.open_checkpoint(self._path)
        return self._checkpoint

    def value(self, encoded: Any) -> Any:
        """Decode a value of trainer.json, with the tensors it refers to.

        Raises:
            InputInvalid: the checkpoint lacks one of them.
            CheckpointDamaged: their bytes are missing.
        """
        checkpoint = self.open()
        with Files(checkpoint.folder) as files:
            return plain.decode(encoded, _Inside(Reader(checkpoint.index, files), self._names))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start over, with another checkpoint if `checkpoint_id` is given."""
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)
        self._checkpoint = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Present every tensor as one chunk of the trainer's shape.

        An error is raised later, by `set_up_storage_reader`, because DCP replaces errors of this
        call by its own.
        """
        try:
            self._problem = None
            return self._metadata(self.open())
        except WattmeshError as error:
            self._problem = error
            return Metadata({})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Raise the error of `read_metadata`.

        Raises:
            CheckpointDamaged: the checkpoint cannot be opened.
            InputInvalid: a rule does not fit a tensor.
        """
        if self._problem is not None:
            raise self._problem

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Assign every rank the share of the files that it verifies."""
        return [replace(plan, storage_data=(rank, len(plans))) for rank, plan in enumerate(plans)]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the planned boxes into the planner's tensors.

        Raises:
            InputInvalid: a tensor has another dtype than the saved one; the message names it.
            CheckpointDamaged: bytes are missing, or (verified) differ from their digest.
        """
        checkpoint = self.open()
        if self._verify:
            share, shares = plan.storage_data or (0, 1)
            damage.check(checkpoint, share=share, shares=shares)
        wanted = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                self._give_value(item, planner, checkpoint)
            else:
                wanted.append((item, self._destination(item, planner, checkpoint)))
        with Files(checkpoint.folder) as files:
            reader, staging = Reader(checkpoint.index, files), Staging()
            for item, out in wanted:
                self._read(item, out, reader, staging)
            staging.finish()
            self.bytes_read += files.bytes_read
        for item, out in wanted:
            planner.commit_tensor(item, out)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _metadata(self, checkpoint: Checkpoint) -> Metadata:
        index = checkpoint.index
        found: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
            fqn: BytesStorageMetadata() for fqn in checkpoint.trainer.get("values", {})
        }
        aliases: dict[str, list[str]] = {}
        for alias, name in {**index.tied, **self._rules.tied}.items():
            aliases.setdefault(name, []).append(alias)
        self._rows = {}
        for row, entry in enumerate(index.entries):
            for name in (entry.name, *aliases.get(entry.name, ())):
                fqn = self._names.fqn(name, entry.state)
                if name != entry.name and (name, entry.state) in index.rows:
                    raise InputInvalid(f"checkpoint: {name!r} is declared tied and stored as well.")
                self._rows[fqn] = row
                found[fqn] = _one_chunk(entry, self._stored_shape(entry))
        return Metadata(found)

    def _rule(self, entry: TensorEntry) -> Rule:
        return Replicate() if entry.state == EXTRA else self._rules.rule(entry.name)

    def _stored_shape(self, entry: TensorEntry) -> Shape:
        rule = self._rule(entry)
        if is_identity(rule):
            return entry.shape
        shape = list(entry.shape)
        if rule.dim < len(shape):
            shape[rule.dim] = self._padded.get(entry.name, shape[rule.dim])
        if logical_shape(rule, tuple(shape)) != entry.shape:
            raise InputInvalid(
                f"checkpoint: {entry} is {entry.shape}, which the rule {rule.kind} makes of "
                f"{tuple(shape)} as {logical_shape(rule, tuple(shape))}."
            )
        return tuple(shape)

    def _destination(
        self, item: ReadItem, planner: LoadPlanner, checkpoint: Checkpoint
    ) -> torch.Tensor:
        """The destination of an item, after checking its dtype and shape."""
        out = planner.resolve_tensor(item).detach()
        entry = checkpoint.index.entries[self._rows[item.storage_index.fqn]]
        if dtype_name(out.dtype) != entry.dtype or tuple(out.shape) != tuple(item.lengths):
            raise InputInvalid(
                f"checkpoint {checkpoint.folder.name}: {item.dest_index.fqn!r} was saved as "
                f"{entry.dtype} {entry.shape}, the job's is {dtype_name(out.dtype)}; build the "
                "same model, or convert on purpose."
            )
        return out

    def _read(self, item: ReadItem, out: torch.Tensor, reader: Reader, staging: Staging) -> None:
        row = self._rows[item.storage_index.fqn]
        entry = reader.index.entries[row]
        start = tuple(item.storage_offsets)
        rule, stored = self._rule(entry), self._stored_shape(entry)

        def fill(part: Box, array: NDArray[np.generic]) -> None:
            at = Box(tuple(a + b for a, b in zip(start, part.start, strict=True)), part.shape)
            parts = list(logical_parts(rule, at, stored))
            if sum(logical.count for logical, _ in parts) < part.count:
                array[...] = 0
            for logical, within in parts:
                place = tuple(slice(a, b) for a, b in zip(within.start, within.stop, strict=True))
                # For a scalar, array[()] would be a copy.
                reader.read_into(row, logical, array[place] if place else array)

        staging.fill(out, fill)

    def _give_value(self, item: ReadItem, planner: LoadPlanner, checkpoint: Checkpoint) -> None:
        """Pass on a value that is not a tensor, without DCP's pickle."""
        fqn = item.storage_index.fqn
        value = self.value(checkpoint.trainer["values"][fqn])
        if not isinstance(planner, DefaultLoadPlanner):
            raise InputInvalid(
                f"checkpoint: {fqn!r} is no tensor, and {type(planner).__name__} takes such "
                "values as pickles only; use torch's DefaultLoadPlanner."
            )
        if planner.flatten_state_dict:
            place = planner.mappings[item.dest_index.fqn]
            torch_compat.set_element(planner.original_state_dict, place, value)
        else:
            planner.state_dict[item.dest_index.fqn] = value

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether it is a folder of this format."""
        return (Path(checkpoint_id) / folder.COMMIT).exists()


class _Inside(dict[str, torch.Tensor]):
    """Tensors inside of values, read on access."""

    def __init__(self, reader: Reader, names: Names) -> None:
        super().__init__()
        self._reader = reader
        self._names = names

    def __missing__(self, fqn: str) -> torch.Tensor:
        row = self._reader.index.row_of(*self._names.entry_key(fqn))
        entry = self._reader.index.entries[row]
        out = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
        self._reader.read_into(row, Box.whole(entry.shape), as_array(out))
        return out


def _one_chunk(entry: TensorEntry, shape: Shape) -> TensorStorageMetadata:
    """The metadata of a tensor for DCP's planner."""
    size = torch.Size(shape)
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=torch_dtype(entry.dtype)),
        size=size,
        chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=size)],
    )
