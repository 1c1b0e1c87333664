"""Opens DeepSpeed checkpoints: ZeRO stages 1, 2 and 3 over any number of data-parallel ranks.

    [bf16_]zero_pp_rank_<R>_mp_rank_00_optim_states.pt   rank R's fp32 master and slots, flat
    mp_rank_00_model_states.pt                           stages 1 and 2: shapes, buffers, settings
    zero_pp_rank_<R>_mp_rank_00_model_states.pt          stage 3: the same; parts of frozen ones

`param` is the fp32 master; the working copy in the model's file is a cast of it and is dropped.
Slots are the state of the base optimizer. Buffers are rank 0's, as DeepSpeed itself saves them in
stages 1 and 2. Keys: deepspeed/runtime/engine.py, runtime/zero/stage_1_and_2.py and stage3.py.

Invariant: a folder that is not proven to have one of these layouts is refused with one sentence.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.archives.rebuild import Record, brief
from wattmesh.reconfig.universal.archives.tensors import LARGEST, MAX_COUNT, MAX_DIMS, StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.cover import prove
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources import zero
from wattmesh.reconfig.universal.sources.plain import NotPlain, as_json, characters
from wattmesh.reconfig.universal.sources.source import (
    Source,
    WatchedFiles,
    check_amount,
    fingerprints,
)
from wattmesh.reconfig.universal.sources.zero import Flat, Shapes
from wattmesh.reconfig.universal.sources.zero_index import Model, Optimizer, make_index

OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")

# Files of other layouts, and the names of those.
_OTHERS = (
    (r"layer_.*_model_states\.pt", "DeepSpeed's pipeline module or its mixture of experts"),
    (r"(expp_rank|expert)_.*\.pt", "DeepSpeed's mixture of experts"),
    (r".*_expert_.*\.pt", "DeepSpeed's mixture of experts"),
    (r"offloaded_tensors", "optimizer state offloaded to NVMe"),
    (r"zero", "DeepSpeed's own universal format, already converted"),
)
_KNOWN = frozenset({
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "skipped_steps", "global_steps", "global_samples", "dp_world_size",
    "mp_world_size", "checkpoint_parallel_dimensions", "ds_config", "ds_version",
})  # fmt: skip


def open_deepspeed(folder: Path, declared: Declared, allowance: Allowance | None = None) -> Source:
    """Open one tag's folder of a DeepSpeed checkpoint.

    Args:
        folder: contains the ranks' files.
        declared: layout rules and renames.
        allowance: the limits on reading; None for a new one.

    Raises:
        InputInvalid: it is not supported, or its files do not belong together.
        CheckpointDamaged: a file is missing.
    """
    names = _rank_files(folder)
    allowance = allowance or Allowance()
    with WatchedFiles(folder, allowance) as files:
        parts = [_read(files, name) for name in names]
        stage = _stage(folder, parts)
        model_files = _model_files(folder, stage, len(names))
        models = [_read(files, model_files[0])]
        first = models[0]
        _check_degrees(folder, first, len(names))
        if stage == 3 and first.get("frozen_param_fragments"):
            models += [_read(files, name) for name in model_files[1:]]
        model = _decode_model(model_files[: len(models)], models, stage, allowance)
        optimizer = _optimizer(names, parts, stage, model, allowance)
        index, numbers = make_index(files, optimizer, model, declared)
        prove(index, allowance)
        seen = fingerprints(files, [*names, *model_files[: len(models)]])
    check_amount(folder, index, seen)
    return Source(
        kind="deepspeed",
        described=f"DeepSpeed {f'ZeRO-{stage}' if stage else 'bf16 optimizer'}, {len(names)} ranks",
        folder=folder,
        index=index,
        values=_values(_plain_parts(first, parts[0]), optimizer, numbers, declared, allowance),
        position=_position(first),
        files=seen,
    )


def is_deepspeed(folder: Path) -> bool:
    """Tell whether the folder contains a rank's optimizer file."""
    return any(OPTIM.fullmatch(each.name) for each in folder.iterdir())


def _rank_files(folder: Path) -> list[str]:
    """The optimizer files, by rank."""
    found: dict[int, str] = {}
    for each in sorted(folder.iterdir()):
        for pattern, words in _OTHERS:
            if re.fullmatch(pattern, each.name):
                raise InputInvalid(
                    f"{folder.name}: {each.name} belongs to {words}, which is not supported."
                )
        if match := OPTIM.fullmatch(each.name):
            if int(match[2]):
                raise InputInvalid(
                    f"{folder.name}: {each.name} is of a tensor- or pipeline-parallel rank; only "
                    "data-parallel DeepSpeed checkpoints are supported."
                )
            if found.setdefault(int(match[1]), each.name) != each.name:
                raise InputInvalid(f"{folder.name}: two files are rank {int(match[1])}'s.")
    missing = next((rank for rank in range(len(found)) if rank not in found), None)
    if missing is not None:
        raise CheckpointDamaged(
            f"{folder.name}: the optimizer file of rank {missing} is missing; "
            f"{len(found)} others are there."
        )
    return [found[rank] for rank in sorted(found)]


def _read(files: Files, name: str) -> dict[str, Any]:
    value = Archive(files, name).value()
    if type(value) is not dict:
        raise InputInvalid(f"{files.folder.name}/{name}: holds no dict; DeepSpeed writes one.")
    return value


def _stage(folder: Path, parts: Sequence[Mapping[str, Any]]) -> int:
    """The ZeRO stage, on which all ranks must agree."""
    stages = []
    for part in parts:
        state = part.get("optimizer_state_dict")
        stage = state.get("zero_stage") if type(state) is dict else None
        if (
            type(stage) is Record and stage.args
        ):  # an enum is pickled as a call of its class with its value
            stage = stage.args[0]
        stages.append(stage)
    if all(_is_bf16_optimizer(part.get("optimizer_state_dict")) for part in parts):
        return BF16
    if type(stages[0]) is not int or stages[0] not in STAGES:
        raise InputInvalid(
            f"{folder.name}: its optimizer files say no ZeRO stage 1, 2 or 3 (but "
            f"{brief(stages[0])}); DeepSpeed's separate fp16 optimizer is not supported."
        )
    if any(type(stage) is not int or stage != stages[0] for stage in stages):
        raise InputInvalid(f"{folder.name}: its ranks say different ZeRO stages.")
    return int(stages[0])


def _is_bf16_optimizer(state: Any) -> bool:
    """Tell DeepSpeed's BF16_Optimizer by its keys: like stage 1, but it names no stage."""
    keys = {"single_partition_of_fp32_groups", "param_slice_mappings", "group_paddings"}
    return type(state) is dict and keys <= set(state) and "zero_stage" not in state


def _model_files(folder: Path, stage: int, ranks: int) -> list[str]:
    if stage == 3:
        return [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(ranks)]
    return ["mp_rank_00_model_states.pt"]


def _check_degrees(folder: Path, model: Mapping[str, Any], ranks: int) -> None:
    if model.get("mp_world_size") not in (None, 1):
        raise InputInvalid(
            f"{folder.name}: it was saved with tensor parallelism {brief(model['mp_world_size'])}; "
            "only data-parallel DeepSpeed checkpoints are supported."
        )
    if model.get("dp_world_size") not in (None, ranks):
        raise CheckpointDamaged(
            f"{folder.name}: it was saved by {brief(model['dp_world_size'])} data-parallel ranks, "
            f"{ranks} optimizer files are there."
        )


def _decode_model(
    names: Sequence[str], models: Sequence[Mapping[str, Any]], stage: int, allowance: Allowance
) -> Model:
    first, where = models[0], names[0]
    module = _dict(first.get("module"), f"{where}: module")
    shapes = first.get("param_shapes")
    if type(shapes) is not list:
        raise InputInvalid(f"{where}: param_shapes does not list the groups' parameters.")
    groups = [_shapes(each, where, allowance) for each in shapes]
    tied = _dict(first.get("shared_params") or {}, f"{where}: shared_params")
    if not all(is_name(alias) and is_name(name) for alias, name in tied.items()):
        raise InputInvalid(f"{where}: shared_params names no parameters.")
    frozen = _shapes(first.get("frozen_param_shapes") or {}, where, allowance) if stage == 3 else {}
    known = {*(name for group in groups for name in group), *tied, *frozen}
    whole = {
        name: value
        for name, value in module.items()
        if type(value) is StoredTensor and name not in known
    }
    for name in whole:
        if not is_name(name):
            raise InputInvalid(f"{where}: module holds a tensor called {brief(name)}.")
    fragments = [_dict(each.get("frozen_param_fragments") or {}, where) for each in models]
    return Model(
        files=tuple(names),
        groups=groups,
        whole=whole,
        frozen=frozen,
        frozen_parts=fragments if frozen else [],
        tied=tied,
    )


def _shapes(value: Any, where: str, allowance: Allowance) -> Shapes:
    shapes = _dict(value, f"{where}: param_shapes")
    # Charged per group, because a pickle can list the same shapes again for each one.
    allowance.made(len(shapes), where)
    for name, shape in shapes.items():
        good = is_name(name) and type(shape) is tuple and len(shape) <= MAX_DIMS
        numbers = good and all(type(n) is int and 0 <= n < LARGEST for n in shape)
        if not numbers or math.prod(shape) > MAX_COUNT:
            raise InputInvalid(f"{where}: the shape of {brief(name)} is none.")
    return shapes


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of a ZeRO stage."""

    state: str
    masters: str


BF16 = 0
"""Stands for the stage of DeepSpeed's separate bf16 optimizer."""

STAGES = (1, 2, 3)

_KEYS = {
    BF16: _Keys("base_optimizer_state", "single_partition_of_fp32_groups"),
    1: _Keys("base_optimizer_state", "single_partition_of_fp32_groups"),
    2: _Keys("base_optimizer_state", "single_partition_of_fp32_groups"),
    3: _Keys("optimizer_state_dict", "fp32_flat_groups"),
}


def _optimizer(
    names: Sequence[str],
    parts: Sequence[Mapping[str, Any]],
    stage: int,
    model: Model,
    allowance: Allowance,
) -> Optimizer:
    """The flat buffers of all ranks, and the location of each parameter in them."""
    flats, settings = [], []
    for name, part in zip(names, parts, strict=True):
        state = part["optimizer_state_dict"]
        if state.get("ds_zero_partition_groups"):
            raise InputInvalid(f"{name}: its parameters are partitioned over several groups of "
                               "ranks (experts); that is not supported.")  # fmt: skip
        count = state.get("partition_count")
        counts = count if type(count) is list else [count]
        if any(type(each) is not int or each != len(names) for each in counts):
            raise InputInvalid(
                f"{name}: its groups are partitioned over {brief(count)} ranks, {len(names)} "
                "optimizer files are there; groups of ranks of their own are not supported."
            )
        of_rank, groups = _flats(name, state, _KEYS[stage], len(model.groups), allowance)
        flats.append(of_rank)
        settings.append(groups)
    all_shapes = {n: shape for group in model.groups for n, shape in group.items()}
    if sum(map(len, model.groups)) != len(all_shapes):
        raise InputInvalid(f"{names[0]}: a parameter is in two groups.")
    order = list(all_shapes)
    if stage == 3:
        number = {each: at for at, each in enumerate(order)}
        allowance.made(len(order) * len(flats), names[0])
        fragments = zero.partitioned(model.groups, number, flats)
    else:
        mappings = [part["optimizer_state_dict"].get("param_slice_mappings") for part in parts]
        fragments = zero.mapped(order, all_shapes, mappings, flats, allowance)
    return Optimizer(
        files=tuple(names),
        names=order,
        shapes=all_shapes,
        flats=flats,
        fragments=fragments,
        settings=settings[0],
    )


def _flats(
    name: str, state: Mapping[str, Any], keys: _Keys, count: int, allowance: Allowance
) -> tuple[list[Flat], list[dict[str, Any]]]:
    """One rank's flat buffers by group, and the settings of each."""
    base = _base(state, keys, name)
    slots = _dict(base.get("state"), f"{name}: {keys.state}.state")
    masters, groups = state.get(keys.masters), base.get("param_groups")
    if type(masters) is not list or type(groups) is not list or len(masters) != count:
        raise InputInvalid(f"{name}: it has no {count} groups of flat fp32 parameters.")
    settings: dict[int, dict[str, Any]] = {}
    for group in groups:
        rest = dict(_dict(group, f"{name}: param_groups"))
        numbers = _list(rest.pop("params", None), f"{name}: param_groups.params")
        allowance.made(len(rest) + len(numbers), name)
        settings.update(dict.fromkeys(numbers, rest))
    if sorted(settings) != list(range(count)):
        raise InputInvalid(f"{name}: its param_groups do not name the {count} flat groups.")
    if extra := sorted(map(brief, set(slots) - set(range(count)))):
        raise InputInvalid(
            f"{name}: there is optimizer state of {extra[0]:.40}, which is no group."
        )
    paddings = _list(state.get("group_paddings", [0] * count), f"{name}: group_paddings")
    if len(paddings) != count:
        raise InputInvalid(f"{name}: its group_paddings are not those of {count} groups.")
    flats = []
    for number, master in enumerate(masters):
        if type(master) is not StoredTensor or len(master.shape) != 1 or not master.contiguous:
            raise InputInvalid(f"{name}: its fp32 group {number} is no flat tensor.")
        held = _dict(slots.get(number, {}), f"{name}: state {number}")
        allowance.made(CONTAINER + len(held), name)
        flats.append(Flat(master, held, paddings[number]))
    return flats, [settings[number] for number in range(count)]


def _base(state: Mapping[str, Any], keys: _Keys, name: str) -> dict[Any, Any]:
    """The base optimizer's state dict; made up from the elastic form, which has no settings."""
    base = state.get(keys.state)
    if type(base) is not list or not base:
        return _dict(base, f"{name}: {keys.state}")
    slots = {number: dict(_dict(each, f"{name}: {keys.state}")) for number, each in enumerate(base)}
    step = state.get("base_optimizer_state_step")
    if type(step) is int:
        for each in slots.values():
            each.setdefault("step", step)
    return {"state": slots, "param_groups": [{"params": [number]} for number in slots]}


def _dict(value: Any, where: str) -> dict[Any, Any]:
    if type(value) is not dict:
        raise InputInvalid(f"{where}: is no dict; this is no DeepSpeed checkpoint that we know.")
    return value


def _list(value: Any, where: str) -> list[int]:
    if type(value) is not list or not all(type(each) is int for each in value):
        raise InputInvalid(f"{where}: is no list of numbers.")
    return value


def _plain_parts(model: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """State that is not tensors: client's, schedulers', modules' extra state, loss scaler."""
    found = {str(k): value for k, value in model.items() if k not in _KNOWN and value is not None}
    module = model["module"].items()
    found |= {f"module.{k}": value for k, value in module if type(value) is not StoredTensor}
    scaler = part["optimizer_state_dict"].get("loss_scaler")
    if type(scaler) is Record:
        found["loss_scaler"] = scaler.state
    return found


def _values(
    parts: Mapping[str, Any],
    optimizer: Optimizer,
    numbers: dict[str, dict[str, Any]],
    declared: Declared,
    allowance: Allowance,
) -> dict[str, Any]:
    """All values that are not tensors, as JSON."""
    where = optimizer.files[0]
    left_out: list[str] = []
    other: dict[str, Any] = {}
    for key, value in parts.items():
        try:
            other[key] = as_json(value, allowance, where)
        except NotPlain:
            left_out.append(key)
    settings: list[dict[str, Any]] = []
    for number, group in enumerate(optimizer.settings):
        try:
            settings.append(
                {str(key): as_json(value, allowance, where) for key, value in group.items()}
            )
        except NotPlain as error:
            raise InputInvalid(
                f"{where}: the settings of group {number} are no plain data."
            ) from error
    sizes = [characters(each) for each in settings]
    allowance.written(sum(sizes[group] for group in optimizer.groups.values()), where)
    allowance.written(sum(map(characters, numbers.values())), where)
    of_name = {declared.name(name): settings[group] for name, group in optimizer.groups.items()}
    return {"param_groups": of_name, "slots": numbers, "other": other, "left_out": left_out}


def _position(model: Mapping[str, Any]) -> dict[str, int]:
    keys = {"step": "global_steps", "samples": "global_samples"}
    found = {name: model.get(key) for name, key in keys.items()}
    for name, value in found.items():
        if type(value) is int and not 0 <= value < LARGEST:
            raise InputInvalid(
                f"the model's file says {keys[name]} is {brief(value)}, which is none."
            )
    return {name: value for name, value in found.items() if type(value) is int}
