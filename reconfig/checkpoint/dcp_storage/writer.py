"""The DCP storage writer of a universal checkpoint.

Every rank writes its planned pieces into its own safetensors files, hashed from the tensors' memory
before the write. The coordinator builds the index, proves that it covers every tensor, seals and
publishes.

DCP deduplicates replicas by name and offset alone, so of two different tensors with the same name
one is silently lost. Here every rank also hashes the dropped pieces, and different ones are refused
by name.

Invariant: a checkpoint appears under its name complete, proven and synced, or not at all.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from wattmesh import durable
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.dcp_storage.files import (
    FILE_BYTES,
    digest_of,
    report_of,
    write_files,
)
from wattmesh.reconfig.checkpoint.dcp_storage.merge import index_of, values_of
from wattmesh.reconfig.checkpoint.dcp_storage.parts import Part, PlanReader
from wattmesh.reconfig.state.memory import Staging
from wattmesh.reconfig.universal import folder
from wattmesh.reconfig.universal.folder import CheckpointKind, Manifest
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import HOOK, Names


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata:
    """A checkpoint's metadata besides its tensors.

    Attributes:
        run, attempt: of the writer; the attempt is in the staging folder's name.
        logical_digest: of the whole state in memory; "" when not known.
        trainer: content of trainer.json, from the coordinator. DCP's plain values are added under
            "values".
        source: see `folder.Manifest`.
    """

    run: str = ""
    attempt: int = 0
    logical_digest: str = ""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=lambda: {"kind": "run"})


class UniversalWriter(StorageWriter):
    """A DCP storage writer: `dcp.save(state_dict, storage_writer=UniversalWriter(folder))`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        names: Names = HOOK,
        rules: Declared | None = None,
        about: CheckpointMetadata | None = None,
        before_publish: Callable[[Path], None] | None = None,
        check_replicas: bool = True,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Write one checkpoint.

        Args:
            path: the checkpoint's folder.
            names: maps the trainer's tensor names.
            rules: differences between the trainer's layout of a tensor and the logical one.
            about: its metadata.
            before_publish: called with `path` on the coordinator when everything is written; may
                refuse by raising, or move an older checkpoint away. Without it an existing path is
                refused.
            check_replicas: compare replicas by digest; switch it off only if they were compared
                already.
            file_bytes: most bytes of a data file.
        """
        self._path = Path(path)
        self._names = names
        self._rules = rules or Declared()
        self._about = about or CheckpointMetadata()
        self._before_publish = before_publish
        self._check_replicas = check_replicas
        self._file_bytes = file_bytes
        self._rank = 0
        self._local = SavePlan([])

    @property
    def staging(self) -> Path:
        """The folder of the files until the checkpoint is published."""
        return self._path.with_name(f".{self._path.name}.attempt-{self._about.attempt}.staging")

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start a new checkpoint, at `checkpoint_id` if it is given."""
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Create the staging folder.

        Raises:
            InputInvalid: the path exists, or DCP was asked to save without collectives.
        """
        self._rank = int(kwargs.get("rank") or 0)
        if not kwargs.get("use_collectives", True):
            raise InputInvalid(
                "checkpoint: use_collectives=False makes one checkpoint per rank; a universal "
                "checkpoint has one index and needs them."
            )
        if is_coordinator:
            self._refuse_existing()
            shutil.rmtree(self.staging, ignore_errors=True)
            self.staging.mkdir(parents=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Remember this rank's plan before replicas are dropped."""
        self._local = plan
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans unchanged."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's pieces; return one result with the rank's `Part`.

        Raises:
            InputInvalid: a tensor or value cannot be stored; the message names it.
            OSError: the disk is full.
        """
        holder = PlanReader(planner, self._names, self._rules, self._file_bytes)
        mine = {item.index for item in plan.items}
        dropped = [each for each in holder.all_items(self._local) if each.index not in mine]
        values, inside = holder.values(plan.items)
        pieces = [*holder.pieces(plan.items), *inside]
        files, written = write_files(self.staging, self._rank, pieces, self._file_bytes)
        same, inside = holder.values(dropped)
        left_out = []
        if self._check_replicas:
            staging = Staging()
            others = (*holder.pieces(dropped), *inside)
            left_out = [report_of(piece, digest_of(piece, staging)) for piece in others]
        part = Part(self._rank, files, written, left_out, {**values, **same})
        size = sum(file.size for file in files.values())
        future: Future[list[WriteResult]] = Future()
        future.set_result([WriteResult(MetadataIndex(f"rank {self._rank}"), size, part)])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Seal and publish the checkpoint, on the coordinator.

        Raises:
            InputInvalid: pieces leave a gap, or ranks disagree; the message names the tensor.
            OSError: the disk is full.
        """
        parts: list[Part] = [each.storage_data for of_rank in results for each in of_rank]
        try:
            self._seal(parts)
            self._refuse_existing()
            if self._before_publish is not None:
                self._before_publish(self._path)
            durable.publish_folder(self.staging, self._path)
        except BaseException:
            shutil.rmtree(self.staging, ignore_errors=True)
            raise

    def _seal(self, parts: list[Part]) -> None:
        about = self._about
        index = index_of(parts, self._names, self._rules)
        values = {**about.trainer.get("values", {}), **values_of(parts)}
        manifest = Manifest(
            kind=CheckpointKind.PHYSICAL,
            data={name: file for part in parts for name, file in part.files.items()},
            run=about.run,
            attempt=about.attempt,
            source=dict(about.source),
            logical_digest=about.logical_digest,
        )
        folder.seal(self.staging, manifest, index, {**about.trainer, "values": values})

    def _refuse_existing(self) -> None:
        if self._before_publish is None and self._path.exists():
            raise InputInvalid(
                f"checkpoint: {self._path} exists already and is not replaced; choose another "
                "name or move it away."
            )

    def storage_meta(self) -> StorageMeta | None:
        """Return the checkpoint's path for planners."""
        return StorageMeta(checkpoint_id=self._path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether it is a path in a file system and not a URL."""
        return "://" not in str(checkpoint_id)
