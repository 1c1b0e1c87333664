"""Decodes one model-parallel rank's files: shapes of the model, flat buffers of the optimizer.

Keys: deepspeed/runtime/engine.py, runtime/zero/stage_1_and_2.py, stage3.py, bf16_optimizer.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.archives.rebuild import Record, brief
from wattmesh.reconfig.universal.archives.tensors import LARGEST, MAX_COUNT, MAX_DIMS, StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources.deepspeed import zero
from wattmesh.reconfig.universal.sources.deepspeed.zero import Flat, Shapes
from wattmesh.reconfig.universal.sources.deepspeed.zero_index import Model, Optimizer


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


def read(files: Files, name: str) -> dict[str, Any]:
    """Read a file that holds a dict.

    Raises:
        InputInvalid: it holds something else.
        CheckpointDamaged: it is missing.
    """
    value = Archive(files, name).value()
    if type(value) is not dict:
        raise InputInvalid(f"{files.folder.name}/{name}: holds no dict; DeepSpeed writes one.")
    return value


def stage_of(folder: Path, parts: Sequence[Mapping[str, Any]]) -> int:
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


def decode_model(
    names: Sequence[str], models: Sequence[Mapping[str, Any]], stage: int, allowance: Allowance
) -> Model:
    """Decode a model-parallel rank's model files; `models` is what `names` hold.

    Raises:
        InputInvalid: they are malformed.
    """
    first, where = models[0], names[0]
    # A pipeline's module is in files by layer.
    module = as_dict({} if first.get("module") is None else first.get("module"), f"{where}: module")
    shapes = first.get("param_shapes")
    if type(shapes) is not list:
        raise InputInvalid(f"{where}: param_shapes does not list the groups' parameters.")
    groups = [_shapes(each, where, allowance) for each in shapes]
    tied = as_dict(first.get("shared_params") or {}, f"{where}: shared_params")
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
    fragments = [as_dict(each.get("frozen_param_fragments") or {}, where) for each in models]
    return Model(
        files=tuple(names),
        groups=groups,
        whole=whole,
        frozen=frozen,
        frozen_parts=fragments if frozen else [],
        tied=tied,
    )


def _shapes(value: Any, where: str, allowance: Allowance) -> Shapes:
    shapes = as_dict(value, f"{where}: param_shapes")
    # Charged per group, because a pickle can list the same shapes again for each one.
    allowance.made(len(shapes), where)
    for name, shape in shapes.items():
        good = is_name(name) and type(shape) is tuple and len(shape) <= MAX_DIMS
        numbers = good and all(type(n) is int and 0 <= n < LARGEST for n in shape)
        if not numbers or math.prod(shape) > MAX_COUNT:
            raise InputInvalid(f"{where}: the shape of {brief(name)} is none.")
    return shapes


@dataclass(frozen=True, slots=True)
class Buffers:
    """What a model-parallel rank's optimizer files hold, by data-parallel rank, then group.

    Attributes:
        files: by data-parallel rank.
        mappings: `param_slice_mappings`, not decoded yet.
        settings: by group, of the first rank.
        counts: over how many ranks each group is partitioned.
    """

    files: tuple[str, ...]
    flats: list[list[Flat]]
    mappings: list[Any]
    settings: list[dict[str, Any]]
    counts: list[int]

    @property
    def experts(self) -> list[int]:
        """The groups that hold experts."""
        return [at for at, each in enumerate(self.settings) if each.get("moe") is True]


def decode_buffers(
    names: Sequence[str],
    parts: Sequence[Mapping[str, Any]],
    stage: int,
    groups: int,
    allowance: Allowance,
) -> Buffers:
    """Decode the optimizer files of all data-parallel ranks; `groups` is how many there must be.

    Raises:
        InputInvalid: they are malformed, or partitioned over groups of ranks that are no experts'.
    """
    flats, settings, mappings = [], [], []
    said: list[list[int]] = []
    for name, part in zip(names, parts, strict=True):
        state = part["optimizer_state_dict"]
        if state.get("ds_zero_partition_groups"):
            raise InputInvalid(f"{name}: its parameters are partitioned over several groups of "
                               "ranks (experts); that is not supported.")  # fmt: skip
        count = state.get("partition_count")
        of_rank, of_group = _flats(name, state, _KEYS[stage], groups, allowance)
        expected = [each.get("moe") is True and stage != 3 for each in of_group]
        counts = count if type(count) is list else [count] * groups
        good = len(counts) == groups and all(
            type(each) is int
            and each > 0
            and (each == len(names) or (moe and not len(names) % each))
            for each, moe in zip(counts, expected, strict=True)
        )
        if not good or counts != (said or [counts])[0]:
            raise InputInvalid(
                f"{name}: its groups are partitioned over {brief(count)} ranks, {len(names)} "
                "optimizer files are there; groups of ranks of their own are not supported, "
                "experts' in ZeRO-1 and 2 excepted."
            )
        flats.append(of_rank)
        settings.append(of_group)
        mappings.append(state.get("param_slice_mappings"))
        said.append(counts)
    return Buffers(tuple(names), flats, mappings, settings[0], said[0])


def place_parameters(
    buffers: Buffers, groups: Sequence[Shapes], stage: int, allowance: Allowance
) -> Optimizer:
    """Find the location of each parameter in the flat buffers of all ranks.

    Args:
        buffers: of all ranks and groups, or of those that hold some of the parameters.
        groups: shapes of the parameters by group, as many as the buffers have.
        stage: of ZeRO.
        allowance: is charged.

    Raises:
        InputInvalid: they do not add up to the parameters.
    """
    all_shapes = {n: shape for group in groups for n, shape in group.items()}
    if sum(map(len, groups)) != len(all_shapes):
        raise InputInvalid(f"{buffers.files[0]}: a parameter is in two groups.")
    order = list(all_shapes)
    if stage == 3:
        number = {each: at for at, each in enumerate(order)}
        allowance.made(len(order) * len(buffers.flats), buffers.files[0])
        fragments = zero.partitioned(groups, number, buffers.flats)
    else:
        fragments = zero.mapped(order, all_shapes, buffers.mappings, buffers.flats, allowance)
    return Optimizer(
        files=buffers.files,
        names=order,
        shapes=all_shapes,
        flats=buffers.flats,
        fragments=fragments,
        settings=buffers.settings,
        listed={name: at for at, group in enumerate(groups) for name in group},
    )


def _flats(
    name: str, state: Mapping[str, Any], keys: _Keys, count: int, allowance: Allowance
) -> tuple[list[Flat], list[dict[str, Any]]]:
    """One rank's flat buffers by group, and the settings of each."""
    base = _base(state, keys, name)
    slots = as_dict(base.get("state"), f"{name}: {keys.state}.state")
    masters, groups = state.get(keys.masters), base.get("param_groups")
    if type(masters) is not list or type(groups) is not list or len(masters) != count:
        raise InputInvalid(f"{name}: it has no {count} groups of flat fp32 parameters.")
    settings: dict[int, dict[str, Any]] = {}
    for group in groups:
        rest = dict(as_dict(group, f"{name}: param_groups"))
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
    if len(paddings) != count or any(each < 0 for each in paddings):
        raise InputInvalid(f"{name}: its group_paddings are not those of {count} groups.")
    flats = []
    for number, master in enumerate(masters):
        if type(master) is not StoredTensor or len(master.shape) != 1 or not master.contiguous:
            raise InputInvalid(f"{name}: its fp32 group {number} is no flat tensor.")
        held = as_dict(slots.get(number, {}), f"{name}: state {number}")
        allowance.made(CONTAINER + len(held), name)
        flats.append(Flat(master, held, paddings[number]))
    return flats, [settings[number] for number in range(count)]


def _base(state: Mapping[str, Any], keys: _Keys, name: str) -> dict[Any, Any]:
    """The base optimizer's state dict; made up from the elastic form, which has no settings."""
    base = state.get(keys.state)
    if type(base) is not list or not base:
        return as_dict(base, f"{name}: {keys.state}")
    slots = {
        number: dict(as_dict(each, f"{name}: {keys.state}")) for number, each in enumerate(base)
    }
    step = state.get("base_optimizer_state_step")
    if type(step) is int:
        for each in slots.values():
            each.setdefault("step", step)
    return {"state": slots, "param_groups": [{"params": [number]} for number in slots]}


def as_dict(value: Any, where: str) -> dict[Any, Any]:
    """Return a dict as it is.

    Raises:
        InputInvalid: it is none; `where` says what should be one.
    """
    if type(value) is not dict:
        raise InputInvalid(f"{where}: is no dict; this is no DeepSpeed checkpoint that we know.")
    return value


def _list(value: Any, where: str) -> list[int]:
    if type(value) is not list or not all(type(each) is int for each in value):
        raise InputInvalid(f"{where}: is no list of numbers.")
    return value
