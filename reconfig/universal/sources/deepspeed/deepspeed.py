"""Opens DeepSpeed checkpoints: ZeRO stages 1, 2 and 3, pipeline modules and tensor parallelism.

`param` is the fp32 master; the working copy in the model's file is a cast of it and is dropped.
Slots are the state of the base optimizer. Buffers are rank 0's, as DeepSpeed itself saves them in
stages 1 and 2.

Invariant: a folder that is not proven to have one of these layouts is refused with one sentence.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.archives.rebuild import brief
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.index.cover import prove
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import PARAM, Index
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.index.rules import Replicate, Rule
from wattmesh.reconfig.universal.sources import slots
from wattmesh.reconfig.universal.sources.deepspeed.decode import (
    Buffers,
    as_dict,
    decode_buffers,
    decode_model,
    place_parameters,
    read,
    stage_of,
)
from wattmesh.reconfig.universal.sources.deepspeed.experts import (
    ExpertOptimizers,
    dense,
    read_experts,
)
from wattmesh.reconfig.universal.sources.deepspeed.grid import Grid, degrees, read_grid
from wattmesh.reconfig.universal.sources.deepspeed.join import RankIndex, join
from wattmesh.reconfig.universal.sources.deepspeed.pipeline import Stages, index_of, read_layers
from wattmesh.reconfig.universal.sources.deepspeed.steps import check_steps
from wattmesh.reconfig.universal.sources.deepspeed.tensor_rules import (
    INFO,
    Said,
    UniversalInfo,
    read_info,
)
from wattmesh.reconfig.universal.sources.deepspeed.values import plain_parts, position, values
from wattmesh.reconfig.universal.sources.deepspeed.working import check_copy, masters
from wattmesh.reconfig.universal.sources.deepspeed.zero_index import Model, Optimizer, make_index
from wattmesh.reconfig.universal.sources.source import (
    Source,
    WatchedFiles,
    check_amount,
    fingerprints,
)

_OTHER_RANK = "the optimizer files are of another rank or another step."


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
    grid = read_grid(folder)
    allowance = allowance or Allowance()
    with WatchedFiles(folder, allowance) as files:
        opening = _Opening(files, grid, declared)
        opening.check_steps()
        index, numbers = opening.index()
        prove(index, allowance)
        seen = fingerprints(files, opening.names)
    check_amount(folder, index, seen)
    first = opening.ranks[0]
    others = [plain_parts(rank.models[0], rank.parts[0]) for rank in opening.ranks]
    for tensor, plain in opening.plain.items():
        others[tensor] |= plain
    for each in others if opening.is_told else ():  # of slices that are joined now
        del each[INFO]
    found = values(others, opening.optimizers, numbers, declared, allowance)
    found["left_out"] += opening.left_out
    slotted = {entry.name for entry in index.entries if entry.state != PARAM} | numbers.keys()
    without = sorted(found["param_groups"].keys() - slotted) if slotted else []
    if without:
        found["without_slots"] = without
    return Source(
        kind="deepspeed",
        described=opening.described + slots.in_words(without),
        folder=folder,
        index=index,
        values=found,
        position=position(first.models[0]),
        files=seen,
    )


@dataclass(frozen=True, slots=True)
class _Rank:
    """What one model-parallel rank's files hold.

    Attributes:
        models: its model files; in stage 3 the others only where they hold parts of frozen ones.
        parts: its optimizer files, by data-parallel rank.
    """

    models: Sequence[Mapping[str, Any]]
    parts: Sequence[Mapping[str, Any]]
    optimizer: Optimizer
    model: Model


class _Opening:
    """A checkpoint that is being opened.

    Attributes:
        names: every file that was read.
        ranks: by model-parallel rank.
        plain: by tensor-parallel rank, values of layers' or experts' files that are no tensors.
        left_out: names of what is not there to be read.
        is_told: whether the files say how tensor-parallel ranks hold parameters.
    """

    def __init__(self, files: Files, grid: Grid, declared: Declared) -> None:
        """Read all ranks' files."""
        self.files, self.grid, self.declared = files, grid, declared
        self.names: list[str] = []
        self.plain: dict[int, dict[str, Any]] = {}
        self.left_out: list[str] = []
        self.is_told = False
        self.experts: ExpertOptimizers | None = None
        parts = [[self._read(name) for name in names] for names in grid.optim]
        self.zero_stage = stage_of(grid.folder, [part for of in parts for part in of])
        heads = [self._read(grid.model_files(self.zero_stage, m)[0]) for m in range(grid.model)]
        self.pipeline = heads[0].get("module") is None
        self.stages, self.tensor = degrees(grid, heads[0], pipeline=self.pipeline)
        if self.pipeline and not grid.layers:
            raise CheckpointDamaged(
                f"{grid.folder.name}: its module was saved in layer files (PipelineModule), and no "
                "layer_*-model_states.pt is there."
            )
        self._check_heads(heads)
        self._check_autoep(heads[0])
        self.ranks = [self._rank(m, heads[m], parts[m]) for m in range(grid.model)]
        if grid.experts and self.experts is None:
            raise InputInvalid(
                f"{grid.folder.name}: there are files of DeepSpeed's mixture of experts, but no "
                "group of experts in the optimizer files."
            )

    def _read(self, name: str) -> dict[str, Any]:
        self.names.append(name)
        return read(self.files, name)

    def _check_heads(self, heads: Sequence[Mapping[str, Any]]) -> None:
        """Check that all model-parallel ranks saved one kind of module in one step."""
        where = self.grid.folder.name
        if self.grid.model > 1 and self.zero_stage == 3:
            raise InputInvalid(
                f"{where}: it is of ZeRO-3 with tensor parallelism, which is not supported."
            )
        for rank, head in enumerate(heads if len(heads) > 1 else ()):
            for key in ("global_steps", "global_samples", "mp_world_size", "dp_world_size"):
                # Containers of a pickle may not be compared: equal ones can take for ever.
                if type(head.get(key)) not in (int, type(None)):
                    raise InputInvalid(
                        f"{where}: model-parallel rank {rank} says {key} is "
                        f"{brief(head.get(key))}, which is no number."
                    )
                if head.get(key) != heads[0].get(key):
                    raise InputInvalid(
                        f"{where}: model-parallel ranks 0 and {rank} say {key} is "
                        f"{brief(heads[0].get(key))} and {brief(head.get(key))}; the files are not "
                        "of one step."
                    )
            if (head.get("module") is None) != self.pipeline:
                raise InputInvalid(f"{where}: some ranks' files hold a module, others do not.")

    def _check_autoep(self, head: Mapping[str, Any]) -> None:
        if head.get("ds_autoep_layers"):
            raise InputInvalid(
                f"{self.grid.folder.name}: its experts were split by DeepSpeed's AutoEP, which is "
                "not supported."
            )

    def _rank(
        self, rank: int, head: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]
    ) -> _Rank:
        names = self.grid.model_files(self.zero_stage, rank)
        models = [head]
        if self.zero_stage == 3 and head.get("frozen_param_fragments"):
            models += [self._read(name) for name in names[1:]]
        names, allowance = names[: len(models)], self.files.allowance
        model = decode_model(names, models, self.zero_stage, allowance)
        stage, groups = self.zero_stage, model.groups
        files = self.grid.optim[rank]
        buffers = decode_buffers(files, parts, stage, len(groups), allowance)
        if buffers.experts:
            self.experts = self._experts(buffers, model)
            buffers, groups = dense(buffers, groups)
        optimizer = place_parameters(buffers, groups, stage, allowance)
        if not self.pipeline and (self.grid.model > 1 or self.experts is not None):
            self._check_copies(names[0], head, optimizer)
        return _Rank(models, parts, optimizer, model)

    def _check_copies(self, file: str, head: Mapping[str, Any], optimizer: Optimizer) -> None:
        """Compare a rank's model file with its optimizer's: no file says of which rank it is."""
        trained, module = masters([optimizer]), head.get("module") or {}
        for name in sorted(trained.keys() & module.keys()):
            if type(module[name]) is StoredTensor:
                check_copy(self.files, trained[name], name, (file, module[name]), _OTHER_RANK)

    def _experts(self, buffers: Buffers, model: Model) -> ExpertOptimizers:
        """The experts of a model that is not split otherwise."""
        where = self.grid.folder.name
        if self.pipeline or self.grid.model > 1 or self.zero_stage not in (1, 2):
            raise InputInvalid(
                f"{where}: it is of DeepSpeed's mixture of experts with pipeline or tensor "
                "parallelism, or with the bf16 optimizer or ZeRO-3, which is not supported."
            )
        if not self.grid.experts:
            raise CheckpointDamaged(f"{where}: no layer_*_expert_*_model_states.pt is there.")
        found = read_experts(self.files, self.grid.experts, buffers, model, self.zero_stage)
        self.names += found.files
        self.plain[0] = dict(found.values)
        return found

    @property
    def described(self) -> str:
        """A short description for the screen."""
        kind = f"ZeRO-{self.zero_stage}" if self.zero_stage else "bf16 optimizer"
        data = f"{self.grid.data} ranks"
        if self.grid.model == 1 and not self.pipeline and self.experts is None:
            return f"DeepSpeed {kind}, {data}"
        data = f"{self.grid.data} data-parallel rank{'s' * (self.grid.data > 1)}"
        degrees = [f"{self.stages} pipeline stages"] if self.pipeline else []
        degrees += [f"tensor parallelism {self.tensor}"] if self.tensor > 1 else []
        degrees += [f"expert parallelism {each}" for each in self._expert_degrees()]
        return f"DeepSpeed {kind}, {data}, {', '.join(degrees)}"

    def check_steps(self) -> None:
        """Check that the optimizers of all ranks are at one step."""
        places = [f"model-parallel rank {rank}" for rank in range(len(self.ranks))]
        experts = self.optimizers[len(places) :]
        places += [f"experts' rank {rank}" for rank in range(len(experts))]
        check_steps(self.files, zip(places, self.optimizers, strict=True))

    def index(self) -> tuple[Index, dict[str, dict[str, Any]]]:
        """All tensors, and the slots that are plain numbers, by parameter."""
        if self.grid.model == 1 and not self.pipeline and self.experts is None:
            only = self.ranks[0]
            return make_index(self.files, only.optimizer, only.model, self.declared)
        parts: list[RankIndex] = []
        for number, rank in enumerate(self.ranks):
            stage, tensor = divmod(number, self.tensor)
            index, numbers = make_index(
                self.files, rank.optimizer, rank.model, Declared(), alone=False
            )
            trained = frozenset(rank.optimizer.groups)
            parts.append(RankIndex(f"stage {stage}", tensor, index, numbers, trained))
        if self.experts is not None:
            parts += self._expert_parts(self.experts)
        if self.pipeline:
            parts += [part for tensor in range(self.tensor) for part in self._layers(tensor)]
        return join(self.files, parts, self.tensor, self._layout(), self.declared)

    def _expert_degrees(self) -> list[int]:
        return sorted(set(self.experts.degrees)) if self.experts is not None else []

    def _expert_parts(self, experts: ExpertOptimizers) -> list[RankIndex]:
        """Every expert-parallel rank's parameters, and what experts have beside them."""
        parts = []
        for at, optimizer in enumerate(experts.optimizers):
            none = Model(files=(), groups=[], whole={}, frozen={}, frozen_parts=[], tied={})
            index, numbers = make_index(self.files, optimizer, none, Declared(), alone=False)
            place = f"expert-parallel rank {at}"
            parts.append(RankIndex(place, 0, index, numbers, frozenset(optimizer.groups)))
        parts += [RankIndex(file, 0, index_of(file, each)) for file, each in experts.whole.items()]
        return parts

    @property
    def optimizers(self) -> list[Optimizer]:
        """All optimizers, those of experts under names that are unique."""
        found = [each.optimizer for each in self.ranks]
        return found + list(self.experts.optimizers if self.experts is not None else ())

    def _layers(self, tensor: int) -> list[RankIndex]:
        """Buffers and frozen parameters in a tensor-parallel rank's layer files."""
        where = self.grid.folder.name
        ranks = self.ranks[tensor :: self.tensor]
        names: dict[int, str] = {}
        for layer, of_ranks in sorted(self.grid.layers.items()):
            if tensor not in of_ranks:
                raise CheckpointDamaged(
                    f"{where}: layer {layer}'s file of tensor-parallel rank {tensor} is missing."
                )
            names[layer] = of_ranks[tensor]
        buffers = {name for rank in ranks for name in _buffers(rank)}
        # Only the first rank of all says it; layers are the same on all tensor-parallel ones.
        said = as_dict(self.ranks[0].models[0].get("shared_params") or {}, where)
        trained = masters([each.optimizer for each in ranks])
        stages = Stages(trained, frozenset(buffers), said, self.declared)
        found = read_layers(self.files, names, stages)
        self.names += found.files
        self.left_out += found.left_out if tensor == 0 else []
        self.plain[tensor] = found.values
        return [RankIndex(f"layer {at}", tensor, index) for at, index in found.indexes.items()]

    def _layout(self) -> "_SliceRules":
        infos = [
            read_info(rank.models[0], rank.model.files[0], self.files.allowance)
            for rank in (self.ranks if self.tensor > 1 else ())
        ]
        if any(info != infos[0] for info in infos):
            raise InputInvalid(
                f"{self.grid.folder.name}: its ranks have different universal_checkpoint_info."
            )
        self.is_told = bool(infos) and infos[0] is not None
        trained = {name for rank in self.ranks for name in rank.optimizer.shapes}
        buffers = {name for rank in self.ranks for name in _buffers(rank)}
        return _SliceRules(self.declared, infos[0] if infos else None, trained, buffers)


@dataclass(frozen=True, slots=True)
class _SliceRules:
    """How tensor-parallel ranks hold tensors: as declared, else as the files say.

    Attributes:
        trained, buffers: names of parameters with a master, and of buffers.
    """

    declared: Declared
    info: UniversalInfo | None
    trained: Collection[str]
    buffers: Collection[str]

    def said(self, name: str, logical: str) -> Said | None:
        """See `join.SliceRules`."""
        for match, rule in self.declared.rules:
            if match.search(logical):
                return Said(rule)
        if self.info is None:
            return None
        if name in self.trained:
            return self.info.rule(name)
        if not self.info.auto:
            return None
        # AutoTP splits no buffers.
        return Said(Replicate()) if name in self.buffers else self.info.rule(name)

    def check(self, name: str, rule: Rule, logical: Shape, stored: Sequence[Shape]) -> None:
        """See `join.SliceRules`."""
        if self.info is not None:
            self.info.check(name, rule, logical, stored)


def _buffers(rank: _Rank) -> list[str]:
    listed = rank.models[0].get("buffer_names") or []
    if type(listed) is not list or not all(map(is_name, listed)):
        raise InputInvalid(f"{rank.model.files[0]}: buffer_names names no buffers.")
    return listed
