"""Saving a distributed state to a sealed folder, and loading it in any layout.

Tensors go through torch's distributed checkpoint (DCP); everything else is JSON or safetensors in
`trainer.json` and `extra.safetensors`. Known limit until our own format replaces DCP: its
`.metadata` file is a pickle that torch executes. We let it be read only after its hash matched the
manifest, so what runs is what this job wrote.

Invariant: a checkpoint appears whole under its name or not at all, and never when a newer attempt
exists; nothing is loaded whose hash, dtype or shape differs from what was saved.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged, Fenced, InputInvalid, NotSwitched
from wattmesh.reconfig import group, manifest, plain
from wattmesh.reconfig.folder import RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import Position, State
from wattmesh.reconfig.tensors import Named, give_back

log = logging.getLogger(__name__)

TRAINER = "trainer.json"
EXTRA = "extra.safetensors"


class CheckpointNotSaved(NotSwitched):
    """The checkpoint could not be written; the job trains on, the one before stays the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a checkpoint says of itself beside the tensors."""

    run: str
    attempt: int
    step: int
    samples: int
    tokens: int
    layout: dict[str, Any]
    ranks: tuple[int, ...]
    digest: str
    torch: str = torch.__version__

    @property
    def position(self) -> Position:
        """Where training stood."""
        return Position(step=self.step, samples=self.samples, tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class Document:
    """What goes into `trainer.json`, and the tensors it refers to."""

    header: Header
    text: str
    tensors: dict[str, torch.Tensor]


def read_header(folder: Path) -> Header:
    """Read what a checkpoint says of itself; check it with `manifest` first.

    Raises:
        CheckpointDamaged: the header is missing or is not one.
    """
    try:
        data = json.loads((folder / TRAINER).read_bytes())["header"]
        return Header(**{**data, "ranks": tuple(data["ranks"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {TRAINER} cannot be read ({error})."
        ) from error


def save(
    folder: RunFolder, named: Named, state: State, header: Header, fence: Callable[[], None]
) -> Path:
    """Write and publish a checkpoint; a collective call of every rank of the process group.

    Args:
        folder: the run's.
        named: this rank's tensors and plain values.
        state: where the extra state is.
        header: what the checkpoint says of itself.
        fence: raises Fenced when a newer attempt exists; called on the leader before publishing.

    Raises:
        CheckpointNotSaved: on every rank, when any rank could not write its part (disk full).
        Fenced: on every rank, when a newer attempt exists; nothing was published.
    """
    staging = folder.staging(header.step, header.attempt)
    final = folder.checkpoint(header.step)
    leads = dist.get_rank() == 0
    try:
        _together(lambda: _make_staging(staging) if leads else None)
        _together(lambda: _write_tensors(named, staging))
        plain_values = _gather_plain(named)
        entries = _together(lambda: _own_entries(staging))
        _together(
            lambda: (
                _finish(folder, _document(state, header, plain_values), entries, fence)
                if leads
                else None
            )
        )
    except (CheckpointNotSaved, Fenced):
        if leads:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    return final


def load(folder: Path, named: Named, state: State) -> Header:
    """Load a checkpoint into a freshly built state of any layout; a collective call.

    Raises:
        CheckpointDamaged: on the rank that found bytes, dtype or shape to differ.
    """
    entries = manifest.read(folder)
    mine = sorted(entries)[dist.get_rank() :: dist.get_world_size()]
    _together_raising(lambda: manifest.check_files(folder, entries, mine))
    with _dcp_errors(CheckpointDamaged, f"checkpoint {folder.name} could not be loaded"):
        reader = FileSystemReader(folder)
        _check_shapes(folder, named, reader.read_metadata().state_dict_metadata)
        dcp_load(dict(named.tensors), storage_reader=reader)
    document = json.loads((folder / TRAINER).read_bytes())
    tensors = load_file(folder / EXTRA) if (folder / EXTRA).exists() else {}
    for key in named.plain:
        if key not in document["plain"]:
            raise CheckpointDamaged(f"checkpoint {folder.name} has no value for {key!r}.")
        named.plain[key] = plain.decode(document["plain"][key], tensors)
    give_back(state, named)
    for name, each in state.extra.items():
        if name not in document["extra"]:
            raise CheckpointDamaged(f"checkpoint {folder.name} has no extra state {name!r}.")
        each.load_state_dict(plain.decode(document["extra"][name], tensors))
    return read_header(folder)


def facts_of(state: State) -> str:
    """Canonical text of what belongs to the state beside tensors; equal on every rank.

    Raises:
        InputInvalid: an extra state that a checkpoint cannot carry.
    """
    tensors: dict[str, torch.Tensor] = {}
    encoded = {k: plain.encode(v.state_dict(), k, tensors) for k, v in sorted(state.extra.items())}
    values = {key: tensor.tolist() for key, tensor in tensors.items()}
    return json.dumps([asdict(state.position), encoded, values], sort_keys=True)


def prune(folder: RunFolder, *, keep: int, protected: set[str]) -> list[str]:
    """Delete published checkpoints beyond the newest `keep`, never a protected one.

    The one just published is the newest; the caller protects the one it resumed from.
    """
    dropped = []
    for each in folder.checkpoints()[keep:]:
        if each.name not in protected:
            # Without its COMMIT it is no checkpoint, so a crash in the middle leaves no half one.
            (each / manifest.COMMIT).unlink(missing_ok=True)
            shutil.rmtree(each, ignore_errors=True)
            dropped.append(each.name)
    return dropped


def _make_staging(staging: Path) -> None:
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)


def _write_tensors(named: Named, staging: Path) -> None:
    """Let DCP write this rank's pieces and fsync them; it agrees on failures by itself."""
    writer = FileSystemWriter(staging, sync_files=True)
    with warnings.catch_warnings():
        # DCP warns that it runs on the CPU thread of a process without a GPU.
        warnings.simplefilter("ignore")
        dcp_save(dict(named.tensors), storage_writer=writer)


def _own_entries(staging: Path) -> manifest.Entries:
    """Hash the files that this rank wrote, as they read back."""
    names = [path.name for path in staging.glob(f"__{dist.get_rank()}_*.distcp")]
    if dist.get_rank() == 0:
        names.append(".metadata")
    return {name: manifest.entry(staging / name) for name in names}


def _gather_plain(named: Named) -> dict[str, Any]:
    """Bring every rank's plain values together, refusing two values under one name."""
    tensors: dict[str, torch.Tensor] = {}
    mine = {key: plain.encode(value, key, tensors) for key, value in named.plain.items()}
    merged: dict[str, Any] = {}
    for values in group.gather(mine):
        for key, value in values.items():
            if merged.setdefault(key, value) != value:
                raise CheckpointNotSaved(
                    f"checkpoint: ranks hold different values for {key!r}: {merged[key]!r} and "
                    f"{value!r}; nothing was written."
                )
    return merged


def _document(state: State, header: Header, plain_values: dict[str, Any]) -> Document:
    """Everything but the named tensors, as the leader writes it."""
    tensors: dict[str, torch.Tensor] = {}
    extra = {
        name: plain.encode(each.state_dict(), name, tensors) for name, each in state.extra.items()
    }
    values = {"header": asdict(header), "plain": plain_values, "extra": extra}
    return Document(header, json.dumps(values, sort_keys=True) + "\n", tensors)


def _finish(
    folder: RunFolder,
    document: Document,
    entries: list[manifest.Entries],
    fence: Callable[[], None],
) -> None:
    """The leader's part: header, extra state, manifest, COMMIT, name."""
    header = document.header
    staging = folder.staging(header.step, header.attempt)
    final = folder.checkpoint(header.step)
    merged = {name: line for part in entries for name, line in part.items()}
    if document.tensors:
        save_file(document.tensors, staging / EXTRA)
        durable.fsync_file(staging / EXTRA)
        merged[EXTRA] = manifest.entry(staging / EXTRA)
    durable.write_text(staging / TRAINER, document.text)
    merged[TRAINER] = manifest.entry(staging / TRAINER)
    manifest.seal(staging, merged)
    fence()
    if final.exists():
        final.rename(final.with_name(f"{final.name}.set-aside-by-attempt-{header.attempt}"))
    durable.publish_folder(staging, final)


def _check_shapes(folder: Path, named: Named, stored: dict[str, Any]) -> None:
    """Refuse what DCP would cast, cut or skip in silence."""
    for key, tensor in named.tensors.items():
        found = stored.get(key)
        if not isinstance(found, TensorStorageMetadata):
            raise CheckpointDamaged(f"checkpoint {folder.name} holds no tensor {key!r}.")
        if found.properties.dtype != tensor.dtype or tuple(found.size) != tuple(tensor.shape):
            raise InputInvalid(
                f"checkpoint {folder.name}: {key!r} was saved as {found.properties.dtype} "
                f"{tuple(found.size)}, the job built it as {tensor.dtype} {tuple(tensor.shape)}; "
                "build the same model, or load it elsewhere and convert on purpose."
            )


def _together(act: Any) -> list[Any]:
    """Run one rank's part of a save; when any rank fails, every rank raises the same.

    Gives every rank's JSON result in group order.
    """
    result: Any = None
    problem, fenced = "", False
    try:
        with _dcp_errors(OSError, "torch could not write"):
            result = act()
    except Fenced as error:
        problem, fenced = str(error), True
    except Exception as error:
        # Whatever it was, the other ranks wait in the gather below and must hear of it.
        problem = f"{type(error).__name__}: {error}"
    facts = group.gather([problem, fenced, result])
    for rank, (told, is_fenced, _) in enumerate(facts):
        if is_fenced:
            raise Fenced(told)
        if told:
            raise CheckpointNotSaved(
                f"rank {rank} of the group could not write its part ({told}); make room on the "
                "disk. Training goes on; the checkpoint before stays the one to restart from."
            )
    return [result for _, _, result in facts]


def _together_raising(act: Any) -> None:
    """Run a check on every rank; damage that one found is raised on all."""
    problem = ""
    try:
        act()
    except CheckpointDamaged as error:
        problem = str(error)
    told = next((each for each in group.gather(problem) if each), "")
    if told:
        raise CheckpointDamaged(told)


@contextmanager
def _dcp_errors(kind: type[Exception], words: str) -> Iterator[None]:
    """Turn DCP's CheckpointException, which `except Exception` does not catch, into ours."""
    try:
        yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()), (error,))[0]
        raise kind(f"{words}: {type(first).__name__}: {first}") from error


def header_of(
    *,
    run: str,
    attempt: int,
    position: Position,
    layout: Layout,
    ranks: tuple[int, ...],
    digest: str,
) -> Header:
    """Make the header of a checkpoint about to be written."""
    return Header(
        run=run,
        attempt=attempt,
        step=position.step,
        samples=position.samples,
        tokens=position.tokens,
        layout=layout.to_dict(),
        ranks=ranks,
        digest=digest,
    )
