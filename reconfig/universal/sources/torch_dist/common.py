"""Reads Megatron's common.pt: position, arguments, the optimizer's groups and step.

    iteration                             steps done
    args                                  a Namespace; `consumed_train_samples` among them
    optimizer[...].param_groups           settings; which parameters they hold is not saved
    optimizer[...].state.common_step      the step of all parameters; else `step` of the groups

Invariant: a parameter's settings are those in which all groups agree, for nothing tells which
group it is in; every group is kept whole beside them. What is no plain data is named, and two keys
never become one.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
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
_STEM, _OPTIMIZER, _STEP, _COMMON_STEP = "common", "optimizer", "step", "common_step"
_DEPTH = 6
_SCALARS = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i"}


@dataclass(frozen=True, slots=True)
class Common:
    """What common.pt holds.

    Attributes:
        values: plain values, by `common.<key>`.
        tensors: by `common.<key>...<key>`.
        left_out: names of what was no plain data.
        groups: how many groups the optimizers have.
        settings: of every parameter.
        step: a tensor without dims, or a number; None where none is told.
        position: "step" and "samples".
        stacked: equal layers may be one tensor.
    """

    values: Mapping[str, Decoded]
    tensors: Mapping[str, Tensor]
    left_out: tuple[str, ...]
    groups: int
    settings: Mapping[str, Any]
    step: StoredTensor | int | float | None
    position: Mapping[str, int]
    stacked: bool


def read(files: Files, *, weights_only: bool) -> Common:
    """Read the file; `weights_only` leaves the optimizer out.

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
        if weights_only and key == _OPTIMIZER:
            split.left_out.append(f"{_STEM}.{key}")
            continue
        found = split.plain(value, f"{_STEM}.{key}", _DEPTH)
        if found is not NotPlain:
            values[f"{_STEM}.{key}"] = Decoded(found, COMMON)
    optimizers = () if weights_only else _nested(told.get(_OPTIMIZER), _DEPTH, files)
    groups, steps = _optimizers(optimizers, archive.where)
    return Common(
        values=values,
        tensors=split.tensors,
        left_out=tuple(split.left_out),
        groups=len(groups),
        settings=_shared(groups, files),
        step=_step(groups, steps, files),
        position=_position(told),
        stacked=_is_stacked(told.get("content_metadata")),
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
            if path in self.tensors:
                raise self._twice(path)
            self.tensors[path] = Tensor.whole(COMMON, value)
            return NotPlain
        if type(value) is dict and depth and all(type(key) in (str, int) for key in value):
            inner = {
                str(key): self.plain(each, f"{path}.{key}", depth - 1)
                for key, each in value.items()
            }
            if len(inner) != len(value):
                raise self._twice(path)
            return {key: each for key, each in inner.items() if each is not NotPlain}
        try:
            return as_json(value, self.files.allowance, COMMON)
        except NotPlain:
            self.left_out.append(f"{path:.200}")
            return NotPlain

    def _twice(self, path: str) -> InputInvalid:
        return InputInvalid(
            f"{self.files.folder.name}/{COMMON}: two of its keys are one below {path!r:.80} once "
            "they are text."
        )


def _attributes(value: Any) -> Any:
    """The attributes of an argparse.Namespace; any other value itself."""
    if type(value) is Record and value.kind.name == "Namespace" and type(value.state) is dict:
        return value.state
    return value


def _optimizers(
    optimizers: Iterable[dict[Any, Any]], where: str
) -> tuple[list[dict[str, Any]], list[Any]]:
    """The groups of all optimizers, and their common steps."""
    groups: list[dict[str, Any]] = []
    steps: list[Any] = []
    for each in optimizers:
        told = each.get("param_groups", [])
        if type(told) is not list or any(type(group) is not dict for group in told):
            raise InputInvalid(f"{where}: its optimizer's groups are no list of settings.")
        groups += told
        state = each.get("state")
        if type(state) is dict and _COMMON_STEP in state:
            steps.append(state[_COMMON_STEP])
    return groups, steps


def _nested(value: Any, depth: int, files: Files) -> Iterator[dict[Any, Any]]:
    """An optimizer's dict, and those of the optimizers that it chains or wraps."""
    if type(value) is not dict or not depth:
        return
    files.allowance.made(1 + len(value), COMMON)
    yield value
    for key, each in value.items():
        if type(key) is int or key == _OPTIMIZER:
            yield from _nested(each, depth - 1, files)


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


def _step(groups: list[dict[str, Any]], steps: list[Any], files: Files) -> Any:
    """The step of all parameters; chained optimizers tell it once each."""
    told = steps or [each[_STEP] for each in groups if each.get(_STEP) is not None]
    if not told:
        return None
    where = f"{files.folder.name}/{COMMON}"
    numbers = {_number(each, files) for each in told}
    if None in numbers:
        raise InputInvalid(f"{where}: its optimizer's step is no number.")
    if len(numbers) > 1:
        raise InputInvalid(f"{where}: its optimizers are at different steps.")
    return told[0]


def _number(step: Any, files: Files) -> tuple[str, int | float] | None:
    """Type and value of a step, a number or a tensor of one; None where it is no such number."""
    kind, value = type(step).__name__, step
    if type(step) is StoredTensor:
        if step.shape or step.dtype not in _SCALARS:
            return None
        kind, data = step.dtype, bytearray(step.nbytes)
        files.read_into(COMMON, step.offset, memoryview(data))
        (value,) = struct.unpack(_SCALARS[step.dtype], data)
    good = type(value) in (int, float) and 0 <= value < documents.LARGEST
    return (kind, value) if good else None


def _is_stacked(told: Any) -> bool:
    """Whether Megatron may have saved equal layers as one tensor; it tells where it did not."""
    alone = ("non_homogeneous_layers", "singleton_local_shards")
    return type(told) is not dict or all(told.get(each) is not True for each in alone)


def _position(told: Mapping[Any, Any]) -> dict[str, int]:
    args = _attributes(told.get("args"))
    samples = args.get("consumed_train_samples") if type(args) is dict else None
    known = {"step": told.get("iteration"), "samples": samples}
    return {
        key: each
        for key, each in known.items()
        if type(each) is int and 0 <= each < documents.LARGEST
    }
