"""Reads Megatron's common.pt: position, arguments, the optimizer's groups and step.

    iteration                             steps done
    args                                  a Namespace; `consumed_train_samples` among them
    optimizer[...].param_groups           settings; which parameters they hold is not saved
    optimizer[...].state.common_step      the step of all parameters; else `step` of the groups

Invariant: a parameter's settings are those in which all groups agree, for nothing tells which
group it is in; every group is kept whole beside them. What is no plain data is named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.archive import Archive
from wattmesh.reconfig.universal.archives.rebuild import Record
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.names import is_name
from wattmesh.reconfig.universal.sources.contents import Decoded, Tensor
from wattmesh.reconfig.universal.sources.plain import NotPlain, as_json

COMMON = "common.pt"
_STEM, _STEP, _COMMON_STEP = "common", "step", "common_step"
_DEPTH = 6
_SCALARS = frozenset({"float32", "float64", "int64", "int32"})


@dataclass(frozen=True, slots=True)
class Common:
    """What common.pt holds.

    Attributes:
        values: plain values, by `common.<key>`.
        tensors: by `common.<key>...<key>`.
        left_out: names of what was no plain data.
        settings: of every parameter.
        step: a tensor without dims, or a number; None where none is told.
        position: "step" and "samples".
    """

    values: Mapping[str, Decoded]
    tensors: Mapping[str, Tensor]
    left_out: tuple[str, ...]
    settings: Mapping[str, Any]
    step: StoredTensor | int | float | None
    position: Mapping[str, int]


def read(files: Files) -> Common:
    """Read the file.

    Raises:
        CheckpointDamaged: it is missing.
        InputInvalid: it is damaged, or its optimizers are at different steps.
    """
    archive = Archive(files, COMMON)
    told = archive.value()
    if type(told) is not dict:
        raise InputInvalid(f"{archive.where}: it holds no dict of what the ranks have in common.")
    split = _Split(files)
    values = {}
    for key, value in told.items():
        if not is_name(key):
            raise InputInvalid(f"{archive.where}: a key of it is no printable text.")
        found = split.plain(value, f"{_STEM}.{key}", _DEPTH)
        if found is not NotPlain:
            values[f"{_STEM}.{key}"] = Decoded(found, COMMON)
    groups, steps = _optimizers(told.get("optimizer"), _DEPTH)
    return Common(
        values=values,
        tensors=split.tensors,
        left_out=tuple(split.left_out),
        settings=_shared(groups, files),
        step=_step(groups, steps, archive.where),
        position=_position(told),
    )


@dataclass(slots=True)
class _Split:
    """Separates plain values from tensors and from what is neither."""

    files: Files
    tensors: dict[str, Tensor] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def plain(self, value: Any, path: str, depth: int) -> Any:
        """The plain part of a value; NotPlain for none."""
        value = _attributes(value)
        self.files.allowance.made(1, COMMON)
        self.files.allowance.written(len(path), COMMON)
        if type(value) is StoredTensor and is_name(path):
            self.tensors[path] = Tensor.whole(COMMON, value)
            return NotPlain
        if type(value) is dict and depth and all(type(key) in (str, int) for key in value):
            inner = {
                str(key): self.plain(each, f"{path}.{key}", depth - 1)
                for key, each in value.items()
            }
            return {key: each for key, each in inner.items() if each is not NotPlain}
        try:
            return as_json(value, self.files.allowance, COMMON)
        except NotPlain:
            self.left_out.append(f"{path:.200}")
            return NotPlain


def _attributes(value: Any) -> Any:
    """The attributes of an argparse.Namespace; any other value itself."""
    if type(value) is Record and value.kind.name == "Namespace" and type(value.state) is dict:
        return value.state
    return value


def _optimizers(value: Any, depth: int) -> tuple[list[dict[str, Any]], list[Any]]:
    """The groups of all optimizers, and their common steps."""
    groups: list[dict[str, Any]] = []
    steps: list[Any] = []
    for each in _nested(value, depth):
        told = each.get("param_groups")
        if type(told) is list:
            groups += [group for group in told if type(group) is dict]
        state = each.get("state")
        if type(state) is dict and _COMMON_STEP in state:
            steps.append(state[_COMMON_STEP])
    return groups, steps


def _nested(value: Any, depth: int) -> Iterator[dict[Any, Any]]:
    """An optimizer's dict, and those of the optimizers that it chains or wraps."""
    if type(value) is not dict or not depth:
        return
    yield value
    for key, each in value.items():
        if type(key) is int or key == "optimizer":
            yield from _nested(each, depth - 1)


def _shared(groups: list[dict[str, Any]], files: Files) -> dict[str, Any]:
    """The plain settings in which all groups agree; without the step, which is a slot."""
    found = {}
    for key, value in (groups[0] if groups else {}).items():
        if not is_name(key) or key in (_STEP, "params"):
            continue
        try:
            told = [as_json(each.get(key, NotPlain), files.allowance, COMMON) for each in groups]
        except NotPlain:
            continue
        if all(type(each) is type(told[0]) and each == told[0] for each in told):
            found[key] = value
    return found


def _step(groups: list[dict[str, Any]], steps: list[Any], where: str) -> Any:
    """The step of all parameters."""
    told = steps or [each[_STEP] for each in groups if each.get(_STEP) is not None]
    if not told:
        return None
    first = told[0]
    good = type(first) in (int, float) or (
        type(first) is StoredTensor and not first.shape and first.dtype in _SCALARS
    )
    if not good:
        raise InputInvalid(f"{where}: its optimizer's step is no number.")
    if type(first) is StoredTensor and len(told) > 1:
        raise InputInvalid(f"{where}: {len(told)} optimizers are chained, each with its own step.")
    if any(type(each) is not type(first) or each != first for each in told):
        raise InputInvalid(f"{where}: its optimizers are at different steps.")
    return first


def _position(told: Mapping[Any, Any]) -> dict[str, int]:
    args = _attributes(told.get("args"))
    samples = args.get("consumed_train_samples") if type(args) is dict else None
    known = {"step": told.get("iteration"), "samples": samples}
    return {
        key: each
        for key, each in known.items()
        if type(each) is int and 0 <= each < documents.LARGEST
    }
