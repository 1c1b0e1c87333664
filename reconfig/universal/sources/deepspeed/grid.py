"""Which rank each file of a DeepSpeed checkpoint is of, and that none is missing.

    [bf16_]zero_pp_rank_<R>_mp_rank_<M>_optim_states.pt   flat master and slots of a rank
    mp_rank_<M>_model_states.pt                           stages 1 and 2: shapes, buffers, settings
    zero_pp_rank_<R>_mp_rank_<M>_model_states.pt          stage 3: the same; parts of frozen ones
    layer_<NN>[-model_<T>]-model_states.pt                a layer of a pipeline module
    layer_<N>_expert_<E>_mp_rank_00_model_states.pt       an expert of the Nth mixture of experts

R counts data-parallel ranks. M counts model-parallel ones: stage after stage of a pipeline, within
a stage the tensor-parallel ranks T.

Invariant: every data-parallel rank of every model-parallel rank has its optimizer file.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.archives.rebuild import brief

OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt", re.ASCII)
"""A rank's optimizer file: data-parallel rank, model-parallel rank."""

MAX_LAYERS = 100_000
"""Most layers of a pipeline module."""

_EXPERT = re.compile(r"layer_(\d+)_expert_(\d+)_mp_rank_(\d+)_model_states\.pt", re.ASCII)
_LAYER = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt", re.ASCII)

# Files of other layouts, and the names of those.
_OTHERS = (
    (
        r"layer_(?!\d+_expert_\d+_mp_rank_\d+_).*_model_states\.pt",
        "an old form of DeepSpeed's pipeline module",
    ),
    (r"(expp_rank|expert)_.*\.pt", "DeepSpeed's mixture of experts without ZeRO"),
    (r"offloaded_tensors", "optimizer state offloaded to NVMe"),
    (r"zero", "DeepSpeed's own universal format, already converted"),
)


@dataclass(frozen=True, slots=True)
class Grid:
    """The files of a folder.

    Attributes:
        optim: by model-parallel rank, then by data-parallel rank.
        layers: by number of the layer, then by tensor-parallel rank.
        experts: by layer of experts, then by number of the expert.
    """

    folder: Path
    optim: tuple[tuple[str, ...], ...]
    layers: Mapping[int, Mapping[int, str]]
    experts: Mapping[int, Mapping[int, str]]

    @property
    def data(self) -> int:
        """Number of data-parallel ranks."""
        return len(self.optim[0])

    @property
    def model(self) -> int:
        """Number of model-parallel ranks: pipeline stages times tensor-parallel ranks."""
        return len(self.optim)

    def model_files(self, zero_stage: int, rank: int) -> list[str]:
        """Names of a model-parallel rank's model files: one, in stage 3 one per data rank."""
        if zero_stage == 3:
            return [
                f"zero_pp_rank_{r}_mp_rank_{rank:02d}_model_states.pt" for r in range(self.data)
            ]
        return [f"mp_rank_{rank:02d}_model_states.pt"]


def is_deepspeed(folder: Path) -> bool:
    """Tell whether the folder contains a rank's optimizer file."""
    return any(OPTIM.fullmatch(each.name) for each in folder.iterdir())


def is_without_zero(folder: Path) -> bool:
    """Tell whether the folder contains model files of DeepSpeed, and no rank's optimizer file."""
    pattern = r"mp_rank_\d+_model_states\.pt"
    return not is_deepspeed(folder) and any(
        re.fullmatch(pattern, each.name) for each in folder.iterdir()
    )


def read_grid(folder: Path) -> Grid:
    """Sort a folder's files by rank.

    Raises:
        InputInvalid: a file belongs to a layout that is not supported, or two are one rank's.
        CheckpointDamaged: a rank's optimizer file is missing.
    """
    found: dict[tuple[int, int], str] = {}
    layers: dict[int, dict[int, str]] = {}
    experts: dict[int, dict[int, str]] = {}
    for each in sorted(folder.iterdir()):
        for pattern, words in _OTHERS:
            if re.fullmatch(pattern, each.name):
                raise InputInvalid(
                    f"{folder.name}: {each.name} belongs to {words}, which is not supported."
                )
        if match := OPTIM.fullmatch(each.name):
            place = int(match[2]), int(match[1])
            if found.setdefault(place, each.name) != each.name:
                raise InputInvalid(f"{folder.name}: two files are rank {place[1]}'s.")
        elif match := _EXPERT.fullmatch(each.name):
            of_layer = experts.setdefault(int(match[1]), {})
            if int(match[3]) or of_layer.setdefault(int(match[2]), each.name) != each.name:
                raise InputInvalid(
                    f"{folder.name}: {each.name} belongs to DeepSpeed's mixture of experts with "
                    "tensor parallelism, which is not supported."
                )
        elif match := _LAYER.fullmatch(each.name):
            of_layer = layers.setdefault(int(match[1]), {})
            if of_layer.setdefault(int(match[2] or 0), each.name) != each.name:
                raise InputInvalid(f"{folder.name}: two files are layer {int(match[1])}'s.")
    return Grid(folder, _complete(folder, found), _bounded(folder, layers), experts)


def _bounded(
    folder: Path, layers: Mapping[int, Mapping[int, str]]
) -> Mapping[int, Mapping[int, str]]:
    if max(layers, default=0) >= MAX_LAYERS:
        raise InputInvalid(
            f"{folder.name}: it holds a file of layer {max(layers)}; no model has so many."
        )
    return layers


def _complete(folder: Path, found: Mapping[tuple[int, int], str]) -> tuple[tuple[str, ...], ...]:
    """The optimizer files by model-parallel, then data-parallel rank."""
    data, model = (len({place[axis] for place in found}) for axis in (1, 0))
    for rank in range(model):
        for part in range(data):
            if (rank, part) not in found:
                of_model = f" (model-parallel rank {rank})" if model > 1 or rank else ""
                raise CheckpointDamaged(
                    f"{folder.name}: the optimizer file of rank {part}{of_model} is missing; "
                    f"{len(found)} others are there."
                )
    return tuple(tuple(found[rank, part] for part in range(data)) for rank in range(model))


def degrees(grid: Grid, model: Mapping[str, Any], *, pipeline: bool) -> tuple[int, int]:
    """Pipeline stages and tensor-parallel ranks, as the files and what they say of themselves.

    Args:
        grid: the folder's files.
        model: what the first model file holds.
        pipeline: whether the module lies in layer files.

    Raises:
        InputInvalid: the numbers contradict each other.
        CheckpointDamaged: fewer ranks are there than saved.
    """
    name = grid.folder.name
    told = model.get("mp_world_size")
    if told not in (None, grid.model):
        raise CheckpointDamaged(
            f"{name}: it was saved by {brief(told)} model-parallel ranks, optimizer files of "
            f"{grid.model} are there."
        )
    if model.get("dp_world_size") not in (None, grid.data):
        raise CheckpointDamaged(
            f"{name}: it was saved by {brief(model['dp_world_size'])} data-parallel ranks, "
            f"{grid.data} optimizer files are there."
        )
    tensor = max((rank for of in grid.layers.values() for rank in of), default=0) + 1
    if not pipeline:
        tensor = grid.model
    stages, rest = divmod(grid.model, tensor)
    dims = model.get("checkpoint_parallel_dimensions")
    said = dims if type(dims) is dict else {}
    if (
        rest
        or said.get("tp_degree") not in (None, tensor)
        or (said.get("pp_degree") not in (None, stages))
    ):
        raise InputInvalid(
            f"{name}: it says {brief(said.get('pp_degree'))} pipeline stages and tensor "
            f"parallelism {brief(said.get('tp_degree'))}; its files are of {stages} "
            f"stages and {tensor} tensor-parallel ranks."
        )
    return stages, tensor
