"""Saves a distributed state to a sealed folder, and loads it in any layout.

Every rank writes its own part of a universal checkpoint (`direct.py`); values that are not tensors
are JSON in its `trainer.json`: {"header", "values", "extra", "without_slots"}.

Invariant: a checkpoint appears complete under its name or not at all, and never when a newer
attempt exists; a tensor of another dtype or shape than the saved one is never loaded.
"""

import json
import logging
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from wattmesh import durable
from wattmesh.errors import (
    CheckpointDamaged,
    InputInvalid,
    SwitchFailed,
    WattmeshError,
)
from wattmesh.reconfig.checkpoint import damage, direct, extra_state
from wattmesh.reconfig.checkpoint.dcp_storage.files import FILE_BYTES, TensorPiece
from wattmesh.reconfig.checkpoint.dcp_storage.merge import index_of
from wattmesh.reconfig.checkpoint.digest import Values
from wattmesh.reconfig.checkpoint.header import Header, header_in
from wattmesh.reconfig.checkpoint.in_memory import across_hosts, host_memory
from wattmesh.reconfig.checkpoint.in_memory import staged as staged_copy
from wattmesh.reconfig.checkpoint.in_memory.host_memory import NO_MEMORY, HostMemory, MappedFiles
from wattmesh.reconfig.launch import group, in_step
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import per_data_rank, plain, streams
from wattmesh.reconfig.state.boxes import LocalBox, boxes_of
from wattmesh.reconfig.state.memory import dtype_name
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import Named, drop_slots, give_back
from wattmesh.reconfig.universal.folder import (
    Checkpoint,
    CheckpointKind,
    DataFile,
    Manifest,
    open_checkpoint,
    open_sealed,
    seal,
)
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import Index
from wattmesh.reconfig.universal.index.names import HOOK
from wattmesh.reconfig.universal.prune import drop

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENT = in_step.Disk(None)


def read_whole(path: Path) -> Header:
    """Verify every byte of a checkpoint, and return its header.

    Raises:
        CheckpointDamaged: a byte differs from what was written.
    """
    checkpoint = open_checkpoint(path)
    damage.check(checkpoint)
    return header_in(checkpoint)


def find_damage(path: Path, memory: HostMemory = NO_MEMORY) -> str:
    """Name a tensor with changed bytes; "" for none. A collective call."""
    problem = ""
    try:
        checkpoint, mapped = staged_copy.opened(path), memory.files(path)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if mapped is None:
            damage.check(checkpoint, share=rank, shares=ranks)
        else:
            share, shares = memory.share_of_host(rank)
            staged_copy.damage(checkpoint, mapped, share=share, shares=shares)
            beside = _in_folder(checkpoint, mapped)
            damage.check(checkpoint, only=beside, share=rank, shares=ranks)
    except CheckpointDamaged as error:
        problem = str(error)
    return next((each for each in group.gather(problem) if each), "")


def changed_value(path: Path, values: Values) -> str:
    """Name a plain value that differs from the saved one; "" for none. A collective call."""
    problem = ""
    try:
        saved = staged_copy.opened(path).trainer.get("values", {})
        changed = (
            f"{key} is {_shown(value)}, and was saved as {_shown(saved.get(key))}"
            for mine in values.values()
            for key, value in mine.items()
            if saved.get(key) != value
        )
        problem = next(changed, "")
    except CheckpointDamaged as error:
        problem = str(error)
    return next((each for each in group.gather(problem) if each), "")


def _shown(value: Any) -> str:
    return repr(plain.decode(value, {}))


def save(
    folder: RunFolder,
    named: Named,
    state: State,
    header: Header,
    fence: Callable[[], None],
    *,
    staged: bool = False,
    memory: HostMemory | None = None,
    disk: in_step.Disk = _PATIENT,
) -> Path:
    """Write a checkpoint. A collective call of every rank of the process group.

    Args:
        folder: the run's.
        named: this rank's tensors and plain values.
        state: has the extra state.
        header: the checkpoint's header.
        fence: raises Fenced when a newer attempt exists; called on the leader before publishing.
        staged: do not publish it; `settle` does that later. In files it is not fsynced either, so
            that until then only ranks of this host can load it.
        memory: where a staged checkpoint keeps its data; None for files. Where it has no room,
            files are written too, and `memory.refused` says why; those of several hosts are
            fsynced.
        disk: limits the time of its calls.

    Returns:
        Its path: the final or the staging one.

    Raises:
        CheckpointNotSaved: on every rank, when any rank could not write its part (disk full).
        Fenced: on every rank, when a newer attempt exists; nothing was published.
    """
    staging = folder.staging(header.step, header.attempt)
    inside: dict[str, torch.Tensor] = {}
    held: dict[str, LocalBox] = {}
    layout, rank = Layout.from_dict(header.layout), dist.get_rank()
    sync = not staged or (memory is not None and memory.spans_hosts)
    try:
        in_step.leader_does(lambda: disk.do(partial(_make, staging)))

        def own() -> dict[str, Any]:
            part = extra_state.own(named, state, layout, rank, inside)
            held.update({**named.boxes, **boxes_of(inside)})
            return part

        def write() -> dict[str, Any]:
            limit = FILE_BYTES if memory is None else staged_copy.PIECE_BYTES
            pieces = direct.pieces_of(held, share, limit)
            if memory is not None and memory.reserve(staged_copy.nbytes_of(pieces)):
                return disk.do(partial(_stage, staging, memory, rank, pieces, inside))
            return disk.do(partial(direct.write, staging, rank, pieces, durable=sync))

        parts = in_step.together(own)
        share = direct.own_share(held)
        every = in_step.together(write)

        def finish() -> None:
            trainer = extra_state.together(header.to_json(), parts, facts_of(state))
            index = index_of([direct.part_of(*each) for each in enumerate(every)], HOOK, Declared())
            _seal(staging, header, every, index, trainer, sync=sync)
            host_memory.note(staging, every, sync=sync)
            if not staged:
                publish(folder, staging, step=header.step, attempt=header.attempt, fence=fence)

        in_step.leader_does(lambda: disk.do(partial(_or_clear, staging, finish)))
    except WattmeshError:
        if dist.get_rank() == 0:
            with suppress(OSError):
                disk.do(partial(shutil.rmtree, staging, ignore_errors=True))
        raise
    return staging if staged else folder.checkpoint(header.step)


def settle(
    folder: RunFolder,
    staging: Path,
    memory: HostMemory = NO_MEMORY,
    *,
    step: int,
    attempt: int,
    fence: Callable[[], None],
    await_hosts: Callable[[], None] = lambda: None,
) -> None:
    """Make a staged checkpoint durable and publish it. Not a collective call.

    One in shared memory is written to the disk, and every byte is read back and compared with the
    digests that were taken from the tensors, before it gets its name.

    Args:
        folder: the run's.
        staging: the checkpoint's folder.
        memory: of this rank.
        step: of the checkpoint.
        attempt: of the launch that wrote it.
        fence: raises Fenced when a newer attempt exists.
        await_hosts: returns when the other hosts have written what they hold (`settle_of_host`),
            and raises OSError where one could not.

    Raises:
        OSError: the disk is full, or broken; it is not published.
        CheckpointDamaged: what the disk has is not what was in the tensors; it is not published.
        Fenced: a newer attempt exists; it is not published.
    """
    mapped = settle_of_host(staging, memory)
    if mapped is None:
        open_checkpoint(staging)  # not only so because what says where the files are has gone
    else:
        await_hosts()
        (staging / host_memory.MEMORY).unlink()
        opened = open_checkpoint(staging)
        damage.check(opened, only=_in_folder(opened, mapped))
    for path in sorted(staging.iterdir()):
        durable.fsync_file(path)
    publish(folder, staging, step=step, attempt=attempt, fence=fence)


def settle_of_host(staging: Path, memory: HostMemory) -> MappedFiles | None:
    """Write what the memory of this host has of a staged checkpoint to the disk, and compare it.

    Returns:
        The files; None where none is in memory.

    Raises:
        OSError: the disk is full, or broken.
        CheckpointDamaged: what the disk has is not what was in the tensors.
    """
    mapped = memory.files(staging)
    if mapped is not None:
        staged_copy.make_durable(staging, mapped)
        damage.check(open_sealed(staging), only={name for name, _ in mapped.items()})
    return mapped


def publish(
    folder: RunFolder, staging: Path, *, step: int, attempt: int, fence: Callable[[], None]
) -> None:
    """Rename a complete and synced staging folder, durably."""
    final = folder.checkpoint(step)
    fence()
    if final.exists():
        final.rename(final.with_name(f"{final.name}.set-aside-by-attempt-{attempt}"))
    durable.publish_folder(staging, final)


def load(
    path: Path,
    named: Named,
    state: State,
    *,
    layout: Layout | None = None,
    opened: Checkpoint | None = None,
    memory: HostMemory = NO_MEMORY,
) -> Header:
    """Load a checkpoint into a freshly built state of any layout. A collective call.

    The bytes are not compared with their digests: the logical digest of the loaded state proves
    them, and `find_damage` finds the fault when it differs.

    Args:
        path: published or staged.
        named: this rank's tensors and values, to be filled.
        state: the state that they belong to.
        layout: of the built state; None: the checkpoint's.
        opened: the checkpoint, if it is open.
        memory: of this rank, where the checkpoint may be in shared memory.

    Raises:
        CheckpointDamaged: on every rank: a part of the checkpoint is missing.
        InputInvalid: on every rank: a built tensor has another dtype or shape than the saved one.
    """
    checkpoint = opened or open_on_all(path)

    staged: list[MappedFiles] = []

    def read() -> str:
        _prepare(checkpoint, named, state)
        mapped = memory.files(checkpoint.folder)
        direct.read(checkpoint, named.boxes, mapped)
        if mapped is not None:
            staged.append(mapped)
        return memory.here

    def give() -> None:
        mapped = staged[0] if staged else None
        value, trainer = direct.ValueDecoder(checkpoint, mapped), checkpoint.trainer
        for key in named.plain:
            named.plain[key] = value(_required_value(trainer, "values", key, path))
        give_back(state, named)
        for name, each in state.extra.items():
            each.load_state_dict(value(_required_value(trainer, "extra", name, path)))
        shape = layout or Layout.from_dict(header.layout)
        state.streams = streams.given(trainer, shape, dist.get_rank(), value)
        if state.by_data_rank:
            per_data_rank.give_back(state.by_data_rank, trainer, shape, dist.get_rank(), value)

    header = header_in(checkpoint)
    memory.hosts = tuple(_on_all(read))
    if staged and len(set(memory.hosts)) > 1:
        across_hosts.fetch(checkpoint, named.boxes, staged[0], memory.hosts)
    _on_all(give)
    return header


def open_on_all(path: Path) -> Checkpoint:
    """Open a checkpoint on every rank. A collective call.

    Raises:
        CheckpointDamaged: on every rank: it cannot be opened.
    """
    found: list[Checkpoint] = []

    def look() -> None:
        found.append(staged_copy.opened(path))
        header_in(found[0])

    _on_all(look)
    return found[0]


def facts_of(state: State) -> str:
    """Return the canonical text of position and extra state, which is equal on every rank.

    Raises:
        InputInvalid: a checkpoint cannot store some extra state.
    """
    tensors: dict[str, torch.Tensor] = {}
    encoded = {k: plain.encode(v.state_dict(), k, tensors) for k, v in sorted(state.extra.items())}
    values = {key: tensor.tolist() for key, tensor in tensors.items()}
    return json.dumps([asdict(state.position), encoded, values], sort_keys=True)


def prune(folder: RunFolder, *, keep: int, protected: set[str]) -> None:
    """Delete published checkpoints beyond the newest `keep`, except protected ones.

    The caller protects the one it resumed from; the one just published is the newest.
    """
    for each in folder.checkpoints()[keep:]:
        if each.name not in protected:
            drop(each)


def _make(staging: Path) -> None:
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)


def _required_value(trainer: Mapping[str, Any], part: str, key: str, path: Path) -> Any:
    if key not in trainer.get(part, {}):
        raise CheckpointDamaged(f"checkpoint {path.name} has nothing under {key!r} in {part!r}.")
    return trainer[part][key]


def _prepare(checkpoint: Checkpoint, named: Named, state: State) -> None:
    """Match the state to the checkpoint: drop slots that it lacks, refuse other shapes."""
    drop_slots(state, named, checkpoint.trainer.get("without_slots", []))
    index = checkpoint.index
    for fqn, tensor in named.tensors.items():
        name, slot = HOOK.entry_key(fqn)
        row = index.rows.get((index.tied.get(name, name), slot))
        if row is None:
            raise CheckpointDamaged(f"checkpoint {checkpoint.folder.name} holds no tensor {fqn!r}.")
        entry = index.entries[row]
        if (entry.dtype, entry.shape) != (dtype_name(tensor.dtype), tuple(tensor.shape)):
            raise InputInvalid(
                f"checkpoint {checkpoint.folder.name}: {fqn!r} was saved as {entry.dtype} "
                f"{entry.shape}, the job built it as {dtype_name(tensor.dtype)} "
                f"{tuple(tensor.shape)}; build the same model, or convert on purpose."
            )


def _or_clear(staging: Path, act: Callable[[], None]) -> None:
    """Run `act`; on a failure remove the staging folder before the other ranks learn of it.

    They may end the launch at once, and this process with it.
    """
    try:
        act()
    except Exception:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _seal(
    staging: Path,
    header: Header,
    every: Sequence[Mapping[str, Any]],
    index: Index,
    trainer: Mapping[str, Any],
    *,
    sync: bool,
) -> None:
    """Write the index, the manifest and COMMIT over the ranks' files."""
    manifest = Manifest(
        kind=CheckpointKind.PHYSICAL,
        data={name: DataFile(**file) for told in every for name, file in told["files"].items()},
        run=header.run,
        attempt=header.attempt,
        source={"kind": "run"},
        logical_digest=header.digest,
    )
    seal(staging, manifest, index, trainer, sync=sync)


def _stage(
    staging: Path,
    memory: HostMemory,
    rank: int,
    pieces: Sequence[TensorPiece],
    inside: Collection[str],
) -> dict[str, Any]:
    """Stage a rank's pieces in memory; return the report to the leader.

    Where other hosts read them, tensors `inside` of values are files: whoever decodes a value asks
    for them one by one, and they are small.
    """
    if not memory.spans_hosts:
        return staged_copy.write(memory, rank, pieces)
    told = staged_copy.write(memory, rank, [each for each in pieces if each.fqn not in inside])
    beside = [each for each in pieces if each.fqn in inside]
    files = direct.write(staging, rank, beside, durable=True, first=len(told["files"]))
    return {
        **told,
        "files": {**told["files"], **files["files"]},
        "placed": [*told["placed"], *files["placed"]],
    }


def _in_folder(checkpoint: Checkpoint, mapped: MappedFiles) -> set[str]:
    """Name the data files that are in the folder, and were never in memory."""
    data = checkpoint.manifest.data
    return {name for name in data if name not in mapped and name not in mapped.away}


def _on_all(act: Callable[[], T]) -> list[T]:
    """Run one rank's part of a load, and raise any rank's failure on all ranks.

    Returns:
        What each rank's part returned, in group order; it must be JSON.
    """
    problem, kind = "", ""
    own: Exception | None = None
    result: T | None = None
    try:
        result = act()
    except (CheckpointDamaged, InputInvalid) as error:
        problem, kind = str(error), type(error).__name__
    except OSError as error:
        problem = f"a checkpoint could not be loaded: {in_step.words(error)}"
        kind = "CheckpointDamaged"
    except Exception as error:
        # A job's load_state_dict may raise anything; the other ranks wait in the gather below.
        own, problem = error, f"{type(error).__name__}: {error}"
    every = group.gather([problem, kind, result])
    if own is not None:
        raise own
    for rank, (told, told_kind, _) in enumerate(every):
        if told_kind:
            raise InputInvalid(told) if told_kind == "InputInvalid" else CheckpointDamaged(told)
        if told:
            raise SwitchFailed(f"rank {rank} of the group could not load its part: {told}")
    return [found for _, _, found in every]
