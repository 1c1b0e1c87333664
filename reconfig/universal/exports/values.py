"""Reads settings and scalar slots that are not tensors from trainer.json.

There are two forms: jobs by flat name (`optim.param_groups.<parameter>.<setting>`),
converted sources by parameter (`{"param_groups": {parameter: {setting: value}}}`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal.index.names import HOOK, Names

_TUPLE = "__tuple__"
_PAIRS = "__pairs__"
_TENSOR = "__tensor__"

ByParameter = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerValues:
    """Optimizer state per parameter that is not tensors.

    Attributes:
        settings: parameter -> setting of its group -> value ("lr" -> 0.001).
        numbers: parameter -> slot -> value, for slots that are plain numbers ("step" -> 3).
        other: values that belong to no parameter, by the trainer's name.
    """

    settings: ByParameter = field(default_factory=dict)
    numbers: ByParameter = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)

    def groups(self, parameters: Iterable[str]) -> list[dict[str, Any]]:
        """Return the distinct settings, in the order of the parameters."""
        found: list[dict[str, Any]] = []
        for name in parameters:
            group = dict(self.settings.get(name, {}))
            if group and group not in found:
                found.append(group)
        return found


NOTHING = OptimizerValues()


def from_trainer(trainer: Mapping[str, Any], names: Names = HOOK) -> OptimizerValues:
    """Read the values of a trainer.json, without tensors, which are entries of the index.

    Args:
        trainer: the document.
        names: the prefixes of flat names.

    Raises:
        CheckpointDamaged: the values are malformed.
    """
    try:
        return _values(trainer.get("values", {}), names)
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointDamaged(
            f"trainer.json holds values that no job writes ({error!s:.200}); use another "
            "checkpoint."
        ) from error


def _values(told: Mapping[str, Any], names: Names) -> OptimizerValues:
    if isinstance(told.get("param_groups"), Mapping):
        return OptimizerValues(
            settings=_decoded(told["param_groups"]),
            numbers=_decoded(told.get("slots", {})),
            other=_without_tensors(told.get("other", {})),
        )
    heads = (f"{names.optim}param_groups.", f"{names.optim}state.")
    rest = {key: value for key, value in told.items() if not key.startswith(heads)}
    return OptimizerValues(
        settings=_decoded(_nested(told, heads[0])),
        numbers=_decoded(_nested(told, heads[1])),
        other=_without_tensors(rest),
    )


def _nested(told: Mapping[str, Any], head: str) -> dict[str, dict[str, Any]]:
    """Flat names below `head` as parameter -> last part -> value."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in told.items():
        name, dot, last = key.removeprefix(head).rpartition(".")
        if key.startswith(head) and dot:
            found.setdefault(name, {})[last] = value
    return found


def _decoded(told: ByParameter) -> dict[str, dict[str, Any]]:
    return {name: _without_tensors(values) for name, values in told.items()}


def _without_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in values.items() if not _holds_tensor(value)}


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_tensor, value))
    if not isinstance(value, dict):
        return False
    return _TENSOR in value or any(map(_holds_tensor, value.values()))


def _plain(value: Any) -> Any:
    """Decode the JSON of `wattmesh.reconfig.state.plain`, without torch."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(_plain(each) for each in value[_TUPLE])
    if _PAIRS in value:
        return {_plain(key): _plain(each) for key, each in value[_PAIRS]}
    return {key: _plain(each) for key, each in value.items()}
