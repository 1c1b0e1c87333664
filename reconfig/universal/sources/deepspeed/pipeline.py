"""Reads the layer files of a PipelineModule, `layer_<NN>-model_states.pt`.

A file holds a layer's own state dict. Its names in the optimizer are `<NN>.<name>`, those of a
module that several layers share (TiedLayerSpec) `tied_modules.<key>.<name>`; the file of a shared
module does not say that it is one.

Invariant: a trained parameter's value is its master; its working copy in a layer's file is compared
with it and dropped. What is neither trained nor a known buffer is frozen, unless its file proves
to be of a shared module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER
from wattmesh.reconfig.universal.archives.rebuild import brief
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import PARAM, Index, Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources.deepspeed.decode import read
from wattmesh.reconfig.universal.sources.deepspeed.working import (
    SAMPLE,
    Master,
    check_copy,
    is_cast,
    is_cast_of_any,
)

TIED = "tied_modules."


@dataclass(frozen=True, slots=True)
class Stages:
    """What the stages of one tensor-parallel rank say of their layers.

    Attributes:
        masters: of all stages' parameters, by name.
        buffers: names of all buffers.
        said: alias -> name within a layer, as DeepSpeed saves it of the first stage.
        declared: may tie others, by logical names.
    """

    masters: Mapping[str, Sequence[Master]]
    buffers: frozenset[str]
    said: Mapping[str, str]
    declared: Declared

    def tied_to(self, alias: str) -> str | None:
        """The name whose parameter a name is another one of; None where it is its own."""
        if alias in self.said:
            return self.said[alias]
        logical = self.declared.tied.get(self.declared.name(alias))
        if logical is None or alias in self.masters:
            return None
        return next((each for each in self.masters if self.declared.name(each) == logical), "")


@dataclass(slots=True)
class Layers:
    """What layer files hold beside working copies.

    Attributes:
        files: all layer files.
        indexes: by number of the layer: its buffers and frozen parameters.
        values: by name, what is no tensor.
        left_out: buffers that DeepSpeed did not save, layers without a file.
    """

    files: list[str] = field(default_factory=list)
    indexes: dict[int, Index] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def read_layers(files: Files, names: Mapping[int, str], stages: Stages) -> Layers:
    """Read all layer files of one tensor-parallel rank.

    Args:
        files: of the checkpoint.
        names: file names, by number of the layer.
        stages: what was read of the stages.

    Raises:
        InputInvalid: a file belongs to another layer or step, or cannot be told from one.
        CheckpointDamaged: a layer's file is missing.
    """
    expected = _by_layer(stages)
    for layer in sorted(set(expected) - set(names)):
        raise CheckpointDamaged(
            f"{files.folder.name}: layer_{layer:02d}-model_states.pt is missing; the optimizer "
            f"files name parameters of layer {layer}."
        )
    found = Layers(files=[names[layer] for layer in sorted(names)])
    seen: set[str] = set()
    for layer in sorted(names):
        seen |= _read_layer(files, names[layer], layer, stages, found)
    for layer, wanted in sorted(expected.items()):
        if lost := sorted(wanted - seen):
            raise InputInvalid(
                f"{names[layer]}: it holds no {brief(lost[0])}; it is no file of layer {layer}."
            )
    gone = (name for name in stages.buffers if name.startswith(TIED) and name not in seen)
    found.left_out += sorted(gone)
    found.left_out += [f"layer {at}" for at in range(max(names, default=0)) if at not in names]
    return found


def _by_layer(stages: Stages) -> dict[int, set[str]]:
    """Names that each layer's file must hold."""
    found: dict[int, set[str]] = {}
    for name in (*stages.masters, *stages.buffers):
        number = name.partition(".")[0]
        if number.isascii() and number.isdecimal() and len(number) < 10:
            found.setdefault(int(number), set()).add(name)
    return found


def _read_layer(files: Files, file: str, layer: int, stages: Stages, found: Layers) -> set[str]:
    """Read one file; return the full names of its tensors."""
    value = read(files, file)
    prefix = f"{layer}."
    if not any(_known(f"{prefix}{key}", stages) for key in value):
        prefix = _shared_by(files, file, layer, value, stages)
    whole: dict[str, StoredTensor] = {}
    for key, tensor in value.items():
        name = f"{prefix}{key}"
        if not is_name(key) or not is_name(name):
            raise InputInvalid(f"{file}: holds what is called {brief(key)}.")
        owners = stages.masters.get(name)
        if type(tensor) is not StoredTensor:
            found.values[f"module.{name}"] = tensor
        elif owners is not None:
            check_copy(files, owners, name, (file, tensor))
        elif stages.tied_to(name) is not None:
            _check_alias(files, name, (file, tensor), stages)
        else:
            whole[name] = tensor
    trained = [name for name in (f"{prefix}{key}" for key in value) if name in stages.masters]
    frozen = {name: each for name, each in whole.items() if name not in stages.buffers}
    _refuse_unsaid_ties(files, file, {name: stages.masters[name][0] for name in trained}, frozen)
    if whole:
        files.allowance.made(2 * CONTAINER * len(whole), file)
        found.indexes[layer] = index_of(file, whole)
    return {f"{prefix}{key}" for key, each in value.items() if type(each) is StoredTensor}


def _known(name: str, stages: Stages) -> bool:
    return name in stages.buffers or name in stages.said or name in stages.masters


def _check_alias(
    files: Files, alias: str, working: tuple[str, StoredTensor], stages: Stages
) -> None:
    """Compare a second name of a parameter with its master, before it is dropped."""
    name = stages.tied_to(alias) or ""
    owners = stages.masters.get(name)
    file, _ = working
    if owners is None:
        raise InputInvalid(f"{file}: {alias} is tied to {brief(name)}, which no stage trains.")
    if not is_cast_of_any(files, owners, working):
        raise InputInvalid(f"{file}: {alias} is tied to {name}, but differs from it.")


def _shared_by(
    files: Files, file: str, layer: int, value: Mapping[Any, Any], stages: Stages
) -> str:
    """Prefix of the names of a layer that trains nothing: a shared module's, or its own."""
    tensors = {key: each for key, each in value.items() if type(each) is StoredTensor}
    differing = ""
    for prefix, shapes in _shared_modules(stages).items():
        if not shapes or any(
            name not in tensors or tensors[name].shape != shape for name, shape in shapes.items()
        ):
            continue
        if all(
            is_cast_of_any(files, stages.masters[f"{prefix}{name}"], (file, tensors[name]))
            for name in shapes
        ):
            return prefix
        differing = prefix
    if differing:
        raise InputInvalid(
            f"{file}: it has the names and shapes of {differing.rstrip('.')} but other values; a "
            "frozen layer cannot be told from a shared one that is damaged or of another step."
        )
    return f"{layer}."


def _shared_modules(stages: Stages) -> dict[str, dict[str, tuple[int, ...]]]:
    """Shapes of the trained parameters of every shared module, by its prefix."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, owners in stages.masters.items():
        if name.startswith(TIED):
            key, dot, rest = name.removeprefix(TIED).partition(".")
            found.setdefault(f"{TIED}{key}{dot}", {})[rest] = owners[0].shape
    return found


def _refuse_unsaid_ties(
    files: Files, file: str, trained: Mapping[str, Master], frozen: Mapping[str, StoredTensor]
) -> None:
    """Refuse a copy of a trained parameter under a name of its own.

    DeepSpeed says which names within a layer are tied on its first stage only.
    """
    for alias, tensor in frozen.items():
        for name, master in trained.items():
            files.allowance.look(file)
            if master.shape != tensor.shape or not is_cast(files, master, (file, tensor), SAMPLE):
                continue
            if is_cast(files, master, (file, tensor)):
                raise InputInvalid(
                    f"{file}: {alias} is frozen or tied to {name}, whose values it has; DeepSpeed "
                    "says which on its first stage only. Declare it in [[tied]]."
                )


def index_of(file: str, whole: Mapping[str, StoredTensor]) -> Index:
    """An index of tensors that one file holds whole."""
    entries = [
        TensorEntry(name=name, state=PARAM, dtype=tensor.dtype, shape=tensor.shape)
        for name, tensor in whole.items()
    ]
    segments = [
        Segment(
            entry=(name, PARAM),
            file=file,
            offset=tensor.offset,
            box=Box.whole(tensor.shape),
            strides=tensor.strides,
        )
        for name, tensor in whole.items()
    ]
    return build(entries, segments)
