"""Writes DeepSpeed's universal layout, which `{"checkpoint": {"load_universal": true}}` loads.

    TAG/zero/<parameter>/fp32.pt, exp_avg.pt ...    {"param": tensor, ...}, one file per state
    TAG/zero/<parameter>/step.pt                    the step
    TAG/zero/optimizer_state.pt                     groups and step, no tensors of a parameter
    TAG/mp_rank_00_model_states.pt                  counters, and what has no optimizer state
    TAG/zero_pp_rank_0_mp_rank_00_model_states.pt   the same: the name that ZeRO-3 looks for
    latest_universal                                TAG, beside it

ZeRO-1, 2 and 3 load it on any number of ranks. It follows DeepSpeed 0.19.8 (ds_to_universal.py and
universal_checkpoint.py), which silently skips missing files, so all of them must be written.

Invariant: state that DeepSpeed could not restore exactly is refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from wattmesh import durable
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.archive_writer import ArchiveWriter
from wattmesh.reconfig.universal.archives.pickled import Build, Global, New, Reduce
from wattmesh.reconfig.universal.exports.casts import cast_of
from wattmesh.reconfig.universal.exports.engine import EngineState, engine_of
from wattmesh.reconfig.universal.exports.stream import pieces
from wattmesh.reconfig.universal.exports.target import Target, exported
from wattmesh.reconfig.universal.exports.values import ByParameter
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.index.index import PARAM, Index, TensorEntry
from wattmesh.reconfig.universal.index.names import EXTRA, HOOK, is_average
from wattmesh.reconfig.universal.index.rules import ExpertStack, Rule, Shard, SubBlocks, VocabPad
from wattmesh.reconfig.universal.sources.source import BYTES

DEEPSPEED = "0.19.8"
"""The release of this layout, which is written into the files."""

LATEST = "latest_universal"

__all__ = ["DEEPSPEED", "LATEST", "EngineState", "engine_of", "export"]

_STEP = "step"
_MASTER = "fp32"
_WIDENED = ("float32", "bfloat16", "float16")
_MODEL_STATES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


def export(
    index: Index,
    files: Files,
    target: Path,
    *,
    engine: EngineState,
    numbers: ByParameter = MappingProxyType({}),
    progress: Progress = silent,
) -> None:
    """Write the universal layout to the new folder `target`, and `latest_universal` beside it.

    Args:
        index: of the checkpoint.
        files: the files that it points to.
        target: a folder that does not exist yet; its name is DeepSpeed's tag.
        engine: counters and settings.
        numbers: parameter -> slot -> value, for scalar slots that are not tensors: steps.
        progress: called with the bytes written.

    Raises:
        InputInvalid: a state that DeepSpeed cannot represent, or a target that cannot be written.
        CheckpointDamaged: bytes are missing.
    """
    plan = _planned(index, engine)
    reader = Reader(index, files)
    step = _common_step(reader, plan, numbers)
    with exported(target, progress) as folder:
        _write_states(folder, reader, plan.trained)
        for name, slots in numbers.items():
            with folder.file(f"zero/{name}/{_STEP}.pt") as out:
                ArchiveWriter().write(out, slots[_STEP])
        _write_optimizer(folder, reader, engine, step)
        for name in _MODEL_STATES:
            _write_model(folder, name, reader, plan, engine)
    try:
        durable.write_text(target.parent / LATEST, target.name)
    except OSError as error:
        raise InputInvalid(
            f"{target} was written, but {LATEST} beside it was not ({error.strerror}); load it by "
            "its tag."
        ) from error


@dataclass(frozen=True, slots=True)
class _Plan:
    """Rows of the index by destination.

    Attributes:
        trained: parameters with optimizer state, and their slots: files below zero/.
        names: the names of those parameters.
        kept: buffers and frozen parameters: inside the model states file.
        extra: entries that are not parameters.
    """

    names: frozenset[str]
    trained: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)


def _planned(index: Index, engine: EngineState) -> _Plan:
    """Sort the entries by destination; refuse what does not fit."""
    if not engine.groups:
        raise InputInvalid(
            "export: without parameter groups DeepSpeed would load no parameter, and not say so; "
            "give as many as its optimizer has, empty ones to keep its own settings."
        )
    parameters = {entry.name: entry for entry in index.entries if entry.state == PARAM}
    slotted = frozenset(entry.name for entry in index.entries if entry.state not in (PARAM, EXTRA))
    if not slotted:
        raise InputInvalid(
            "export: the checkpoint holds no optimizer state, and DeepSpeed's universal layout is "
            "for going on with training; export to Hugging Face instead."
        )
    plan = _Plan(slotted)
    for row, entry in enumerate(index.entries):
        if entry.state == EXTRA and entry.name.startswith(f"{HOOK.optim}param_groups."):
            raise InputInvalid(
                f"export: the setting {entry.name} is a tensor; DeepSpeed would go on with its own "
                "in its place. Export to DCP instead."
            )
        if entry.state in (EXTRA, BYTES):
            plan.extra.append(row)
        elif entry.name in slotted:
            _refuse_unfit(entry, parameters.get(entry.name))
            plan.trained.append(row)
        else:
            plan.kept.append(row)
    return plan


def _refuse_unfit(entry: TensorEntry, parameter: TensorEntry | None) -> None:
    """Refuse an entry that DeepSpeed would shard wrongly, cast, or have no file for."""
    if parameter is None:
        raise InputInvalid(f"export: {entry} is the state of a parameter that does not exist.")
    if "/" in entry.name or "/" in entry.state or entry.name in (".", ".."):
        raise InputInvalid(f"export: {entry} has a name that no folder can have.")
    if entry.state == PARAM and entry.dtype not in _WIDENED:
        raise InputInvalid(
            f"export: {entry} is {entry.dtype}; DeepSpeed trains on float32, which does not hold "
            "its values."
        )
    if is_average(entry.state):
        raise InputInvalid(
            f"export: DeepSpeed has no place for {entry}; export to DCP or Hugging Face instead."
        )
    if entry.state == _MASTER:
        raise InputInvalid(f"export: the slot {entry} has the name of DeepSpeed's own file.")
    shape = () if entry.state == _STEP else parameter.shape
    if entry.shape != shape:
        raise InputInvalid(
            f"export: {entry} has the shape {entry.shape}; DeepSpeed carries only slots of the "
            f"parameter's shape {parameter.shape} and a scalar step."
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """The step of all parameters: an entry of the index, or a plain number."""

    row: int | None = None
    number: Any = None

    def value(self, archive: ArchiveWriter, reader: Reader) -> Any:
        """Return it as an archive holds it."""
        return self.number if self.row is None else _tensor(archive, reader, self.row)


def _common_step(reader: Reader, plan: _Plan, numbers: ByParameter) -> _Step | None:
    """The step of all parameters; None where the optimizer counts none."""
    found: dict[tuple[str, Any], tuple[str, _Step]] = {}
    for row in plan.trained:
        entry = reader.index.entries[row]
        if entry.state == _STEP:
            key = (entry.dtype, reader.read(row).tobytes())
            found.setdefault(key, (entry.name, _Step(row)))
    for name, slots in numbers.items():
        if other := slots.keys() - {_STEP}:
            raise InputInvalid(
                f"export: {name} ({min(other)}) is a plain number; DeepSpeed carries none but the "
                "step."
            )
        if name not in plan.names:
            raise InputInvalid(f"export: {name} has a step, but no slot of its shape.")
        found.setdefault(("number", slots[_STEP]), (name, _Step(number=slots[_STEP])))
    if len(found) > 1:
        (one, _), (other_one, _) = list(found.values())[:2]
        raise InputInvalid(
            f"export: {one} and {other_one} are at different steps; DeepSpeed keeps one step for a "
            "group of parameters."
        )
    return next((step for _, step in found.values()), None)


def _write_states(folder: Target, reader: Reader, rows: Sequence[int]) -> None:
    """Write the tensors below zero/, except the optimizer's own file."""
    for row in rows:
        entry = reader.index.entries[row]
        archive = ArchiveWriter()
        value: Any = _tensor(archive, reader, row)
        if entry.state != _STEP:
            value = {"param": value, **_marks(entry)}
        name = _MASTER if entry.state == PARAM else entry.state
        with folder.file(f"zero/{entry.name}/{name}.pt") as out:
            archive.write(out, value)


def _tensor(archive: ArchiveWriter, reader: Reader, row: int) -> Reduce:
    """A parameter, widened exactly to float32, or a slot as stored."""
    entry = reader.index.entries[row]
    wanted = "float32" if entry.state == PARAM else entry.dtype
    cast = cast_of(entry.dtype, wanted)
    return archive.tensor(wanted, entry.shape, partial(pieces, reader, row, cast=cast))


def _marks(entry: TensorEntry) -> dict[str, Any]:
    """The metadata by which DeepSpeed shards a tensor over tensor or expert parallel ranks."""
    rule: Rule = entry.rule
    marks: dict[str, Any] = {"cat_dim": rule.dim if isinstance(rule, Shard) else 0}
    if isinstance(rule, VocabPad):
        marks["vocab_tensor"] = True
    if isinstance(rule, ExpertStack) and rule.dim == 0:
        marks["is_expert_param"] = True
        marks["ep_num_experts"] = entry.shape[0]
    if isinstance(rule, SubBlocks):
        widths = tuple(sum(each) for each in zip(*rule.widths, strict=True))
        shape = (*entry.shape[: rule.dim], widths, *entry.shape[rule.dim + 1 :])
        kind = Global("deepspeed.checkpoint.universal_checkpoint", "SubparamShape")
        state = {"patterns": [], "shape": shape, "partition_dim": rule.dim}
        marks["sub_param_shape"] = Build(New(kind), state)
    return marks


def _write_optimizer(
    folder: Target, reader: Reader, engine: EngineState, step: _Step | None
) -> None:
    """Write the groups' settings: at the top for ZeRO-1 and 2, in `optimizer_state_dict` for 3."""
    archive = ArchiveWriter()
    groups = [{**settings, "params": []} for settings in engine.groups]
    state = {} if step is None else {0: {_STEP: step.value(archive, reader)}}
    value = {
        "param_groups": groups,
        "optimizer_state_dict": {"state": state, "param_groups": groups},
        "ds_version": DEEPSPEED,
    }
    with folder.file("zero/optimizer_state.pt") as out:
        archive.write(out, value)


def _write_model(
    folder: Target, name: str, reader: Reader, plan: _Plan, engine: EngineState
) -> None:
    """Write the engine's counters, and the tensors that DeepSpeed does not train."""
    archive = ArchiveWriter()
    entries = reader.index.entries
    value = {
        "module": {entries[row].name: _as_stored(archive, reader, row) for row in plan.kept},
        "extra": {entries[row].name: _as_stored(archive, reader, row) for row in plan.extra},
        "global_steps": engine.global_steps,
        "skipped_steps": engine.skipped_steps,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "lr_scheduler": engine.lr_scheduler,
        "ds_version": DEEPSPEED,
    }
    if engine.global_samples is not None:
        value["global_samples"] = engine.global_samples
    if taken := value.keys() & engine.client.keys():
        raise InputInvalid(f"export: client data may not be called {min(taken)!r}.")
    value.update(engine.client)
    with folder.file(name) as out:
        archive.write(out, value)


def _as_stored(archive: ArchiveWriter, reader: Reader, row: int) -> Reduce:
    entry = reader.index.entries[row]
    return archive.tensor(entry.dtype, entry.shape, partial(pieces, reader, row))
