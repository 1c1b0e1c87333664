"""Reads DeepSpeed's mixtures of experts (deepspeed.moe), ZeRO-1 and 2.

Each expert-parallel rank calls its experts 0, 1, ...; so do `param_shapes` and the optimizer files.
The experts' own files `layer_<N>_expert_<E>_mp_rank_00_model_states.pt` have numbers that are
unique. Which data-parallel ranks hold which of E ranks' experts is a setting that no file tells:

    experts before data   rank r is expert-parallel rank r % E
    data before experts   rank r is expert-parallel rank r // (ranks / E)

Only in the right order does each rank's part of the flat buffers continue the one before.

Invariant: every expert's own file is the cast of the master that the order of ranks gives it.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.archives.rebuild import brief
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources.deepspeed.decode import Buffers, place_parameters, read
from wattmesh.reconfig.universal.sources.deepspeed.working import (
    SAMPLE,
    Master,
    is_cast_of_any,
    masters,
)
from wattmesh.reconfig.universal.sources.deepspeed.zero import Shapes
from wattmesh.reconfig.universal.sources.deepspeed.zero_index import Model, Optimizer

_GATE = re.compile(r"((?:.*\.)?deepspeed_moe\.)gate\.")
_EXPERTS = "experts.deepspeed_experts."
_NAME = re.compile(
    r"((?:.*\.)?deepspeed_moe\.experts\.deepspeed_experts\.)(\d{1,9})(\..+)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class ExpertOptimizers:
    """All experts, with numbers that are unique.

    Attributes:
        optimizers: by group, then expert-parallel rank.
        degrees: expert-parallel ranks, by group.
        files: the experts' own files.
        whole: by file: buffers and frozen parameters of experts.
        values: what is no tensor in them.
    """

    optimizers: Sequence[Optimizer]
    degrees: Sequence[int]
    files: Sequence[str]
    whole: Mapping[str, Mapping[str, StoredTensor]]
    values: Mapping[str, Any]


def dense(buffers: Buffers, groups: Sequence[Shapes]) -> tuple[Buffers, list[Shapes]]:
    """The buffers and shapes of all groups but the experts'."""
    experts = set(buffers.experts)
    rest = [at for at in range(len(groups)) if at not in experts]
    return _chosen(buffers, rest, range(len(buffers.files))), [groups[at] for at in rest]


def read_experts(
    files: Files,
    names: Mapping[int, Mapping[int, str]],
    buffers: Buffers,
    model: Model,
    stage: int,
) -> ExpertOptimizers:
    """Read all groups of experts.

    Args:
        files: of the checkpoint.
        names: the experts' own files, by layer of experts, then number.
        buffers: of all ranks and groups.
        model: the rest of the model.
        stage: of ZeRO.

    Raises:
        InputInvalid: no order of ranks fits, or an expert's file is another's.
        CheckpointDamaged: an expert's file is missing.
    """
    copies = _read_copies(files, names)
    optimizers: list[Optimizer] = []
    degrees: list[int] = []
    for group in buffers.experts:
        found = _in_order(files, buffers, (group, model.groups[group]), stage)
        if not _is_proven(files, copies, masters(found)):
            raise InputInvalid(
                f"{files.folder.name}: the experts' own files are not the casts of what the "
                "optimizer files hold; they are of other experts or of another step."
            )
        optimizers += found
        degrees.append(len(found))
    trained = masters(optimizers)
    _check_alike(copies, trained, {*model.whole, *(n for group in model.groups for n in group)})
    whole: dict[str, dict[str, StoredTensor]] = {}
    plain: dict[str, Any] = {}
    for name, (file, value) in copies.items():
        if type(value) is not StoredTensor:
            plain[f"module.{name}"] = value
        elif name not in trained:
            whole.setdefault(file, {})[name] = value
    listed = [name for of_layer in names.values() for name in of_layer.values()]
    return ExpertOptimizers(optimizers, degrees, listed, whole, plain)


def _read_copies(
    files: Files, names: Mapping[int, Mapping[int, str]]
) -> dict[str, tuple[str, Any]]:
    """(file, value) of everything in the experts' own files, by name."""
    found: dict[str, tuple[str, Any]] = {}
    for layer, experts in sorted(names.items()):
        for number in range(max(experts) + 1):
            if number not in experts:
                raise CheckpointDamaged(
                    f"{files.folder.name}: layer_{layer}_expert_{number}_mp_rank_00_model_states"
                    ".pt is missing; later experts are there."
                )
        for number, file in sorted(experts.items()):
            for name, value in read(files, file).items():
                match = _NAME.fullmatch(name) if is_name(name) else None
                if match is None or int(match[2]) != number or name in found:
                    raise InputInvalid(f"{file}: it holds {brief(name)}, which is not expert "
                                       f"{number}'s of one layer.")  # fmt: skip
                found[name] = file, value
    return found


def _check_alike(
    copies: Mapping[str, tuple[str, Any]], trained: Collection[str], known: Collection[str]
) -> None:
    """Check that mixtures have a gate, and their experts the same names, trained or not.

    So no file of an earlier save with more experts passes for frozen ones.
    """
    mixtures: dict[str, dict[int, dict[str, bool]]] = {}
    for name in copies:
        if match := _NAME.fullmatch(name):
            of_expert = mixtures.setdefault(match[1], {}).setdefault(int(match[2]), {})
            of_expert[match[3]] = name in trained
    gated = {match[1] for match in map(_GATE.match, known) if match}
    for prefix, experts in mixtures.items():
        first = experts.get(0, {})
        if prefix.removesuffix(_EXPERTS) not in gated:
            raise InputInvalid(
                f"{prefix[:-1]}: there are files of them, but the model's file holds no gate for "
                "them; the files are not of one save."
            )
        for number, mine in sorted(experts.items()):
            if lost := sorted(first.keys() ^ mine.keys()):
                raise InputInvalid(
                    f"{prefix}{number}: of it and expert 0, only one has {lost[0]}; the files are "
                    "not of one save."
                )
            if other := sorted(name for name in mine if mine[name] != first[name]):
                raise InputInvalid(
                    f"{prefix}{number}: of it and expert 0, the optimizer files hold only one's "
                    f"{other[0]}; the files are not of one save."
                )


def _in_order(
    files: Files, buffers: Buffers, of_group: tuple[int, Shapes], stage: int
) -> list[Optimizer]:
    """The optimizers by expert-parallel rank, in the order of ranks that fits.

    Raises:
        InputInvalid: none does; the message is that of the usual order.
    """
    count = buffers.counts[of_group[0]]
    degree = len(buffers.files) // count
    orders: tuple[Callable[[int], int], ...] = (
        lambda rank: rank % degree,
        lambda rank: rank // count,
    )
    refused: list[InputInvalid] = []
    for order in orders:
        ranks = [[r for r in range(len(buffers.files)) if order(r) == e] for e in range(degree)]
        try:
            return [
                _optimizer(files, buffers, of_group, stage, (rank, ranks[rank]))
                for rank in range(degree)
            ]
        except InputInvalid as error:
            refused.append(error)
    raise refused[0]


def _optimizer(
    files: Files,
    buffers: Buffers,
    of_group: tuple[int, Shapes],
    stage: int,
    of_rank: tuple[int, Sequence[int]],
) -> Optimizer:
    """One expert-parallel rank's optimizer, under unique names."""
    (group, shapes), (rank, ranks) = of_group, of_rank
    local: dict[str, set[int]] = {}
    for name in shapes:
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputInvalid(f"{name}: it is in a group of experts, but is none.")
        local.setdefault(match[1], set()).add(int(match[2]))
    for prefix, numbers in local.items():
        if numbers != set(range(len(numbers))):
            raise InputInvalid(f"{prefix[:-1]}: a rank's are not numbered 0 to {len(numbers) - 1}.")

    def unique(name: Any) -> Any:
        match = _NAME.fullmatch(name) if is_name(name) else None
        if match is None or match[1] not in local:
            return name
        return f"{match[1]}{rank * len(local[match[1]]) + int(match[2])}{match[3]}"

    files.allowance.made(2 * len(shapes), files.folder.name)
    mine = _chosen(buffers, [group], ranks)
    mappings = []
    for of_rank_groups in mine.mappings:
        renamed = [
            {unique(name): address for name, address in each.items()}
            if type(each) is dict else each
            for each in of_rank_groups
        ]  # fmt: skip
        files.allowance.made(sum(len(e) for e in renamed if type(e) is dict), files.folder.name)
        mappings.append(renamed)
    mine = replace(mine, mappings=mappings)
    named = {unique(name): shape for name, shape in shapes.items()}
    return place_parameters(mine, [named], stage, files.allowance)


def _chosen(buffers: Buffers, groups: Sequence[int], ranks: Sequence[int]) -> Buffers:
    for rank in ranks:
        of_rank = buffers.mappings[rank]
        if type(of_rank) is not list or len(of_rank) != len(buffers.settings):
            raise InputInvalid(
                f"{buffers.files[rank]}: param_slice_mappings does not list its groups."
            )
    return Buffers(
        files=tuple(buffers.files[rank] for rank in ranks),
        flats=[[buffers.flats[rank][group] for group in groups] for rank in ranks],
        mappings=[[buffers.mappings[rank][group] for group in groups] for rank in ranks],
        settings=[buffers.settings[group] for group in groups],
        counts=[buffers.counts[group] for group in groups],
    )


def _is_proven(
    files: Files,
    copies: Mapping[str, tuple[str, Any]],
    found: Mapping[str, Sequence[Master]],
) -> bool:
    """Whether all copies are the casts of their masters.

    Raises:
        CheckpointDamaged: an expert has no copy.
    """
    for name, several in found.items():
        files.allowance.look(name)
        if name not in copies:
            raise CheckpointDamaged(
                f"{files.folder.name}: no layer_*_expert_*_model_states.pt holds {name}; an "
                "expert's file is missing."
            )
        file, copy = copies[name]
        if type(copy) is not StoredTensor or not is_cast_of_any(
            files, several, (file, copy), SAMPLE
        ):
            return False
    return True
