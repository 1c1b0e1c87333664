"""What a DeepSpeed checkpoint holds beside tensors: settings, the client's state, the position."""

from collections.abc import Mapping, Sequence
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.archives.rebuild import Record, brief, holds_tensors
from wattmesh.reconfig.universal.archives.tensors import LARGEST, StoredTensor
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.sources.deepspeed.zero_index import Optimizer
from wattmesh.reconfig.universal.sources.plain import NotPlain, as_json, characters

_MODULE = "module."
"""Prefix of what is of the model: its own, its layers' or its experts'."""

_KNOWN = frozenset({
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "skipped_steps", "global_steps", "global_samples", "dp_world_size",
    "mp_world_size", "checkpoint_parallel_dimensions", "ds_config", "ds_version",
})  # fmt: skip


def plain_parts(model: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """State that is not tensors: client's, schedulers', modules' extra state, loss scaler."""
    found = {str(k): value for k, value in model.items() if k not in _KNOWN and value is not None}
    module = model.get("module") or {}
    found |= {
        f"{_MODULE}{k}": value for k, value in module.items() if type(value) is not StoredTensor
    }
    scaler = part["optimizer_state_dict"].get("loss_scaler")
    if type(scaler) is Record:
        found["loss_scaler"] = scaler.state
    return found


def values(
    parts: Sequence[Mapping[str, Any]],
    optimizers: Sequence[Optimizer],
    numbers: dict[str, dict[str, Any]],
    declared: Declared,
    allowance: Allowance,
) -> dict[str, Any]:
    """All values that are not tensors, as JSON.

    Args:
        parts: by model-parallel rank. The first rank's are taken; where another rank has others,
            their keys are listed in "left_out".
        optimizers: of all ranks.
        numbers: slots that are plain numbers, by parameter.
        declared: renames.
        allowance: is charged.

    Raises:
        InputInvalid: settings are no plain data, or differ between ranks.
    """
    where = optimizers[0].files[0]
    other, left_out = _plain(parts[0], allowance, where)
    for rank, of_rank in enumerate(parts[1:], 1):
        mine, _ = _plain(of_rank, allowance, where)
        lost = (key for key in mine if key not in other or mine[key] != other[key])
        left_out += [f"{key} of model-parallel rank {rank}" for key in lost]
    of_name: dict[str, Any] = {}
    for optimizer in optimizers:
        for name, settings in _settings(optimizer, allowance).items():
            # A shared module's parameters are in the groups of several stages.
            if of_name.setdefault(declared.name(name), settings) != settings:
                raise InputInvalid(
                    f"{optimizer.files[0]}: it has other settings for {name} than the ranks before."
                )
    allowance.written(sum(map(characters, numbers.values())), where)
    return {"param_groups": of_name, "slots": numbers, "other": other, "left_out": left_out}


def _plain(
    parts: Mapping[str, Any], allowance: Allowance, where: str
) -> tuple[dict[str, Any], list[str]]:
    """Values as JSON, and the keys of those that are no plain data.

    Raises:
        InputInvalid: one of the model's holds tensors.
    """
    found: dict[str, Any] = {}
    left_out: list[str] = []
    for key, value in parts.items():
        try:
            found[key] = as_json(value, allowance, where)
        except NotPlain as error:
            if key.startswith(_MODULE) and holds_tensors(value):
                raise InputInvalid(
                    f"{where}: {key.removeprefix(_MODULE)!r:.80} of the model is no plain tensor "
                    "(a sparse one, or several in a dict or list), and would be lost; it is not "
                    "read."
                ) from error
            left_out.append(key)
    return found, left_out


def _settings(optimizer: Optimizer, allowance: Allowance) -> dict[str, dict[str, Any]]:
    where = optimizer.files[0]
    settings = [
        {str(key): _setting(value, f"{key!r:.80} of group {number}", allowance, where)
         for key, value in group.items()}
        for number, group in enumerate(optimizer.settings)
    ]  # fmt: skip
    sizes = [characters(each) for each in settings]
    allowance.written(sum(sizes[group] for group in optimizer.groups.values()), where)
    return {name: settings[group] for name, group in optimizer.groups.items()}


def _setting(value: Any, name: str, allowance: Allowance, where: str) -> Any:
    try:
        return as_json(value, allowance, where)
    except NotPlain as error:
        raise InputInvalid(
            f"{where}: the setting {name} is no plain data (a tensor, perhaps); make it a number "
            "and save again."
        ) from error


def position(model: Mapping[str, Any]) -> dict[str, int]:
    """The position that a model file tells: "step" and "samples".

    Raises:
        InputInvalid: a number is out of range.
    """
    keys = {"step": "global_steps", "samples": "global_samples"}
    found = {name: model.get(key) for name, key in keys.items()}
    for name, value in found.items():
        if type(value) is int and not 0 <= value < LARGEST:
            raise InputInvalid(
                f"the model's file says {keys[name]} is {brief(value)}, which is none."
            )
    return {name: value for name, value in found.items() if type(value) is int}
