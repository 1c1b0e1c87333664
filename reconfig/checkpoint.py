"""Saving a distributed state to a sealed folder, and loading it in any layout.

Every rank writes its own part of a universal checkpoint (`direct.py`); what is no tensor is JSON in
its `trainer.json`: {"header", "values", "extra", "without_slots"}.

Invariant: a checkpoint appears whole under its name or not at all, and never when a newer attempt
exists; nothing is loaded whose dtype or shape differs from what was saved.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from wattmesh import durable
from wattmesh.errors import (
    CheckpointDamaged,
    Fenced,
    InputInvalid,
    NotSwitched,
    SwitchFailed,
    WattmeshError,
)
from wattmesh.reconfig import damage, direct, facts, group, plain, shares
from wattmesh.reconfig.boxes import boxes_of
from wattmesh.reconfig.dcp_merge import index_of
from wattmesh.reconfig.folder import RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.memory import dtype_name
from wattmesh.reconfig.state import Position, State
from wattmesh.reconfig.tensors import Named, drop_slots, give_back
from wattmesh.reconfig.universal.declared import Declared
from wattmesh.reconfig.universal.folder import (
    COMMIT,
    TRAINER,
    Checkpoint,
    DataFile,
    Kind,
    Manifest,
    open_checkpoint,
    seal,
)
from wattmesh.reconfig.universal.index import Index
from wattmesh.reconfig.universal.names import HOOK

log = logging.getLogger(__name__)


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


def header_in(checkpoint: Checkpoint) -> Header:
    """Give what an opened checkpoint says of itself.

    Raises:
        CheckpointDamaged: it was not written by a run.
    """
    try:
        data = checkpoint.trainer["header"]
        return Header(**{**data, "ranks": tuple(data["ranks"])})
    except (KeyError, TypeError) as error:
        raise CheckpointDamaged(
            f"checkpoint {checkpoint.folder.name}: {TRAINER} has no header of a run ({error})."
        ) from error


def read_whole(path: Path) -> Header:
    """Read every byte of a checkpoint, and give what it says of itself.

    Raises:
        CheckpointDamaged: it differs in any byte from what was written.
    """
    checkpoint = open_checkpoint(path)
    damage.check(checkpoint)
    return header_in(checkpoint)


def find_damage(path: Path) -> str:
    """Say which tensor's bytes have changed, "" when none have; a collective call."""
    problem = ""
    try:
        checkpoint = open_checkpoint(path)
        damage.check(checkpoint, share=dist.get_rank(), shares=dist.get_world_size())
    except CheckpointDamaged as error:
        problem = str(error)
    return next((each for each in group.gather(problem) if each), "")


def save(
    folder: RunFolder,
    named: Named,
    state: State,
    header: Header,
    fence: Callable[[], None],
    *,
    staged: bool = False,
) -> Path:
    """Write a checkpoint; a collective call of every rank of the process group.

    Args:
        folder: the run's.
        named: this rank's tensors and plain values.
        state: where the extra state is.
        header: what the checkpoint says of itself.
        fence: raises Fenced when a newer attempt exists; called on the leader before publishing.
        staged: neither sync nor publish it: `settle` does so later. It can be loaded until then by
            ranks of this host.

    Returns:
        Where it lies: under its name, or in staging.

    Raises:
        CheckpointNotSaved: on every rank, when any rank could not write its part (disk full).
        Fenced: on every rank, when a newer attempt exists; nothing was published.
    """
    staging = folder.staging(header.step, header.attempt)
    inside: dict[str, torch.Tensor] = {}
    layout = Layout.from_dict(header.layout)
    try:
        parts = _together(lambda: _begin(staging, named, state, inside, layout))
        held = _alone(lambda: {**named.boxes, **boxes_of(inside)})
        share = direct.own_share(held)
        rank = dist.get_rank()
        told = _alone(lambda: direct.write(staging, rank, held, share, durable=not staged))
        every = group.gather_at_leader(told)

        def finish() -> None:
            trainer = facts.together(asdict(header), parts, facts_of(state))
            index = index_of([direct.part_of(*each) for each in enumerate(every)], HOOK, Declared())
            _seal(staging, header, every, index, trainer, sync=not staged)
            if not staged:
                publish(folder, staging, step=header.step, attempt=header.attempt, fence=fence)

        _leader_does(partial(_or_clear, staging, finish))
    except WattmeshError:
        if dist.get_rank() == 0:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    return staging if staged else folder.checkpoint(header.step)


def settle(
    folder: RunFolder, staging: Path, *, step: int, attempt: int, fence: Callable[[], None]
) -> None:
    """Make a staged checkpoint durable and publish it; no collective call.

    Raises:
        OSError: the disk is full, or broken; it is not published.
        Fenced: a newer attempt exists; it is not published.
    """
    for path in sorted(staging.iterdir()):
        durable.fsync_file(path)
    publish(folder, staging, step=step, attempt=attempt, fence=fence)


def publish(
    folder: RunFolder, staging: Path, *, step: int, attempt: int, fence: Callable[[], None]
) -> None:
    """Give a whole and synced staging folder its name, durably."""
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
) -> Header:
    """Load a checkpoint into a freshly built state of any layout; a collective call.

    The bytes are not compared with their digests here: the logical digest of what is in memory
    afterwards proves them, and `find_damage` says what is wrong when it differs.

    Args:
        path: published or staged.
        named: this rank's tensors and values, to be filled.
        state: where they belong.
        layout: the built state's; None where it is the checkpoint's.
        opened: the checkpoint, where it is open already.

    Raises:
        CheckpointDamaged: on every rank: a part of the checkpoint is missing.
        InputInvalid: on every rank: the job built another dtype or shape than was saved.
    """
    checkpoint = opened or open_on_all(path)

    def fill() -> None:
        _prepare(checkpoint, named, state)
        direct.read(checkpoint, named.boxes)
        value, trainer = direct.Values(checkpoint), checkpoint.trainer
        for key in named.plain:
            named.plain[key] = value(_told(trainer, "values", key, path))
        give_back(state, named)
        for name, each in state.extra.items():
            each.load_state_dict(value(_told(trainer, "extra", name, path)))
        if state.by_data_rank:
            shape = layout or Layout.from_dict(header.layout)
            shares.give_back(state.by_data_rank, trainer, shape, dist.get_rank(), value)

    header = header_in(checkpoint)
    _on_all(fill)
    return header


def open_on_all(path: Path) -> Checkpoint:
    """Open a checkpoint on every rank; a collective call.

    Raises:
        CheckpointDamaged: on every rank: it cannot be opened.
    """
    found: list[Checkpoint] = []

    def look() -> None:
        found.append(open_checkpoint(path))
        header_in(found[0])

    _on_all(look)
    return found[0]


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
            (each / COMMIT).unlink(missing_ok=True)
            shutil.rmtree(each, ignore_errors=True)
            dropped.append(each.name)
    return dropped


def _begin(
    staging: Path, named: Named, state: State, inside: dict[str, torch.Tensor], layout: Layout
) -> dict[str, Any]:
    """Give this rank's `facts.own`; the leader makes the folder."""
    if dist.get_rank() == 0:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    return facts.own(named, state, layout, dist.get_rank(), inside)


def _told(trainer: Mapping[str, Any], part: str, key: str, path: Path) -> Any:
    """A value that the checkpoint must have."""
    if key not in trainer.get(part, {}):
        raise CheckpointDamaged(f"checkpoint {path.name} has nothing under {key!r} in {part!r}.")
    return trainer[part][key]


def _prepare(checkpoint: Checkpoint, named: Named, state: State) -> None:
    """Make the state what was saved in kind: no slots that were not there, no other shapes."""
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


def _together(act: Callable[[], Any]) -> list[Any]:
    """Run one rank's part as `_alone` does; gives every rank's JSON result in group order."""
    result: Any = None
    problem = ""
    try:
        result = act()
    except Exception as error:
        problem = _words(error)
    every = group.gather([problem, result])
    _raise_first([told for told, _ in every])
    return [result for _, result in every]


def _alone(act: Callable[[], Any]) -> Any:
    """Run one rank's part of a save; when any rank fails, every rank raises the same."""
    result: Any = None
    problem = ""
    try:
        result = act()
    except Exception as error:
        # Whatever it was, the other ranks wait in the gather below and must hear of it.
        problem = str(error) if isinstance(error, InputInvalid) else _words(error)
    _raise_first(group.gather(problem))
    return result


def _raise_first(problems: Sequence[str]) -> None:
    for rank, told in enumerate(problems):
        if told:
            raise CheckpointNotSaved(_sentence(rank, told))


def _leader_does(act: Callable[[], None]) -> None:
    """Run what the first rank does for all; what stopped it is raised on all."""
    told = ["", ""]
    if dist.get_rank() == 0:
        try:
            act()
        except Fenced as error:
            told = ["fenced", str(error)]
        except WattmeshError as error:
            told = ["refused", str(error)]
        except Exception as error:
            told = ["failed", _sentence(0, _words(error))]
    kind, words = group.gather(told)[0]
    if kind:
        raise Fenced(words) if kind == "fenced" else CheckpointNotSaved(words)


def _or_clear(staging: Path, act: Callable[[], None]) -> None:
    """Let the leader act; when that fails, what was staged goes before the others hear of it.

    They may end the launch at once, and this process with it.
    """
    try:
        act()
    except Exception:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _seal(
    staging: Path,
    header: Header,
    every: Sequence[Mapping[str, Any]],
    index: Index,
    trainer: Mapping[str, Any],
    *,
    sync: bool,
) -> None:
    """Write what makes the ranks' files a checkpoint."""
    manifest = Manifest(
        kind=Kind.PHYSICAL,
        data={name: DataFile(**file) for told in every for name, file in told["files"].items()},
        run=header.run,
        attempt=header.attempt,
        source={"kind": "run"},
        logical_digest=header.digest,
    )
    seal(staging, manifest, index, trainer, sync=sync)


def _sentence(rank: int, problem: str) -> str:
    return (
        f"rank {rank} of the group could not write its part ({problem}); make room on the disk. "
        "Training goes on; the checkpoint before stays the one to restart from."
    )


def _on_all(act: Callable[[], None]) -> None:
    """Run one rank's part of a load; what stopped one is raised on all."""
    problem, kind = "", ""
    own: Exception | None = None
    try:
        act()
    except (CheckpointDamaged, InputInvalid) as error:
        problem, kind = str(error), type(error).__name__
    except OSError as error:
        problem, kind = f"a checkpoint could not be loaded: {_words(error)}", "CheckpointDamaged"
    except Exception as error:
        # A job's own load_state_dict may raise anything; the others wait below all the same.
        own, problem = error, f"{type(error).__name__}: {error}"
    every = group.gather([problem, kind])
    if own is not None:
        raise own
    for rank, (told, told_kind) in enumerate(every):
        if told_kind:
            raise InputInvalid(told) if told_kind == "InputInvalid" else CheckpointDamaged(told)
        if told:
            raise SwitchFailed(f"rank {rank} of the group could not load its part: {told}")


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
