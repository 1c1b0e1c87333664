"""Saves through the job's own checkpointer: start, wait or continue, index, hash.

Invariant: a published checkpoint is the state at the step where its save started; nothing older is
deleted before it was compared with the digest taken in memory and hashed.
"""

import base64
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from wattmesh.errors import Fenced, InputInvalid, WattmeshError
from wattmesh.reconfig.checkpoint import checkpoint, extra_state, foreign
from wattmesh.reconfig.checkpoint.foreign import RequiredTensors, Save, Written
from wattmesh.reconfig.checkpoint.header import Header
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.in_step import CheckpointNotSaved
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.memory import as_array, dtype_name, torch_dtype
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import Named
from wattmesh.reconfig.universal.files.staging import Fence
from wattmesh.reconfig.universal.folder import CheckpointKind, Manifest
from wattmesh.reconfig.universal.prune import drop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedSave:
    """A started save, with everything that is needed to index it later."""

    written: Written
    header: Header
    trainer: Mapping[str, Any]
    tensors: Mapping[str, Any]
    inside: Mapping[str, torch.Tensor]


class OwnSaves:
    """One rank's part in saves through the job's own checkpointer."""

    def __init__(self, save: Save, folder: RunFolder, keep: int) -> None:
        """Index the folders of `save` in `folder`; keep the newest `keep` verified ones."""
        self._save = save
        self._folder = folder
        self._keep = keep
        self._begun: StartedSave | None = None
        self._hashing: threading.Thread | None = None

    @property
    def begun(self) -> bool:
        """Tell whether a started save is not indexed yet; the same on every rank."""
        return self._begun is not None

    @property
    def in_flight(self) -> bool:
        """Tell whether this rank is still writing."""
        return self._begun is not None and not self._begun.written.ready

    def begin(self, state: State, named: Named, header: Header) -> None:
        """Start the checkpointer's save. A collective call.

        Raises:
            CheckpointNotSaved: on every rank, when it failed on any rank.
        """
        trainer, inside = _facts(named, state, header)
        problem, written = "", Written(folder="")
        try:
            written = self._save(state, header.step)
        except (Exception, CheckpointException) as error:
            problem = _words(error)
        _raise_on_every_rank(problem)
        self._begun = StartedSave(
            written=written,
            header=header,
            trainer=trainer,
            tensors=foreign.described(named.tensors),
            inside={name: each.clone() for name, each in inside.items()},
        )

    def forget(self) -> None:
        """Do not index the started save; its files stay with the checkpointer."""
        self._begun = None

    def finish(
        self, *, leads: bool, protected: set[str], fence: Fence, prove: bool = False
    ) -> Header:
        """Wait for the save, index it and hash it in the background. A collective call.

        `prove`: return only when it is verified, because the caller may have to go back to it.

        Raises:
            CheckpointNotSaved: on every rank, when the write or the index failed.
            Fenced: on every rank; a newer attempt exists.
        """
        begun, self._begun = self._begun, None
        assert begun is not None
        problem = ""
        try:
            if begun.written.future is not None:
                begun.written.future.result()
        except (Exception, CheckpointException) as error:
            problem = _words(error)
        _raise_on_every_rank(problem)
        told = group.gather({"tensors": begun.tensors, "inside": _as_json(begun.inside)})
        path = self._folder.checkpoint(begun.header.step)
        fenced = ""
        try:
            if leads:
                self._publish(begun, path, told, fence)
                if prove:
                    foreign.prove(path, gentle=False)
        except Fenced as error:
            fenced = str(error)
        except (WattmeshError, OSError) as error:
            problem = str(error)
        told_fenced = group.agree_on_problem(fenced)
        if told_fenced:
            raise Fenced(told_fenced)
        _raise_on_every_rank(problem)
        if leads:
            args = (path, {*protected, path.name})
            self._hashing = threading.Thread(
                target=self._prove, args=args, name="hash", daemon=True
            )
            self._hashing.start()
        return begun.header

    def wait(self, patience_s: float) -> None:
        """Wait until the last save is hashed, on the leader."""
        if self._hashing is not None:
            self._hashing.join(patience_s)

    def _publish(
        self, begun: StartedSave, path: Path, told: list[dict[str, Any]], fence: Fence
    ) -> None:
        header = begun.header
        fence()
        if path.exists():
            path.rename(path.with_name(f"{path.name}.set-aside-by-attempt-{header.attempt}"))
        foreign.publish(
            begun.written,
            path,
            wanted=RequiredTensors.of([each["tensors"] for each in told]),
            beside=_from_json([each["inside"] for each in told]),
            about=Manifest(
                kind=CheckpointKind.VIRTUAL,
                data={},
                run=header.run,
                attempt=header.attempt,
                logical_digest=header.digest,
            ),
            trainer=begun.trainer,
            fence=fence,
        )

    def _prove(self, path: Path, protected: set[str]) -> None:
        """Hash a checkpoint at idle priority, and only then delete older ones."""
        try:
            foreign.prove(path, gentle=True)
            self.prune(protected)
        except (WattmeshError, OSError) as error:
            log.error("%s stays unverified, and older checkpoints stay: %s", path.name, error)

    def prune(self, protected: set[str]) -> None:
        """Delete checkpoints older than the newest `keep` verified ones, except protected ones."""
        found = self._folder.checkpoints()
        verified = [each for each in found if foreign.is_verified(each)]
        if len(verified) > self._keep:
            for each in found[found.index(verified[self._keep - 1]) + 1 :]:
                if each.name not in protected:
                    drop(each)


def _facts(
    named: Named, state: State, header: Header
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Merge all ranks' parts of trainer.json; also return this rank's tensors in it."""
    inside: dict[str, torch.Tensor] = {}
    problem, mine, whole = "", {}, {}
    try:
        layout = Layout.from_dict(header.layout)
        mine = extra_state.own(named, state, layout, dist.get_rank(), inside)
    except InputInvalid as error:
        problem = str(error)
    _raise_on_every_rank(problem)
    parts = group.gather(mine)
    try:
        whole = extra_state.together(header.to_json(), parts, checkpoint.facts_of(state))
    except InputInvalid as error:
        problem = str(error)
    _raise_on_every_rank(problem)
    return whole, inside


def _raise_on_every_rank(problem: str) -> None:
    told = group.agree_on_problem(problem)
    if told:
        raise CheckpointNotSaved(
            f"the job's own checkpointer: {told} Training goes on; the checkpoint before stays the "
            "one to restart from."
        )


def _words(error: BaseException) -> str:
    """Format an error; of DCP's own, the cause on the first rank."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(failure for failure, _ in error.failures.values())
    return f"{type(error).__name__}: {error}"


def _as_json(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
    """Encode small tensors as text: dtype, shape, bytes."""
    return {
        name: [
            dtype_name(each.dtype),
            list(each.shape),
            base64.b64encode(as_array(each).tobytes()).decode(),
        ]
        for name, each in tensors.items()
    }


def _from_json(told: list[dict[str, list[Any]]]) -> dict[str, torch.Tensor]:
    """Decode `_as_json` of all ranks; of several the first counts."""
    found: dict[str, torch.Tensor] = {}
    for name, (kind, shape, text) in (item for part in told for item in part.items()):
        dtype, data = torch_dtype(kind), bytearray(base64.b64decode(text))
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        found.setdefault(name, flat.reshape(shape))
    return found
