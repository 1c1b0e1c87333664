"""Plain data: state that is neither tensor nor pickle, as JSON that comes back as it was.

Invariant: what cannot be written so that it reads back equal is refused, by name, at save time.
"""

from typing import Any

import torch

from wattmesh.errors import InputInvalid

_TUPLE = "__tuple__"
_PAIRS = "__pairs__"
_TENSOR = "__tensor__"


def encode(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Turn a state into JSON; tensors go into `tensors` under the path they were found at.

    Raises:
        InputInvalid: a value that JSON cannot carry and that is no tensor; the path is named.
    """
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, torch.Tensor):
        tensors[where] = value.detach().cpu().contiguous()
        return {_TENSOR: where}
    if isinstance(value, list):
        return [encode(item, f"{where}[{n}]", tensors) for n, item in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [encode(item, f"{where}[{n}]", tensors) for n, item in enumerate(value)]}
    if isinstance(value, dict):
        return _encode_dict(value, where, tensors)
    raise InputInvalid(
        f"checkpoint: {where} is a {type(value).__name__}, which a checkpoint does not carry; "
        "give numbers, strings, lists, tuples, dicts or tensors (or leave it out of state_dict)."
    )


def decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Undo `encode`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    if _TUPLE in value:
        return tuple(decode(item, tensors) for item in value[_TUPLE])
    if _PAIRS in value:
        return {decode(key, tensors): decode(item, tensors) for key, item in value[_PAIRS]}
    return {key: decode(item, tensors) for key, item in value.items()}


def _encode_dict(value: dict[Any, Any], where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Keep string keys readable; other keys become pairs, since JSON would turn 1 into "1"."""
    if all(isinstance(key, str) and not key.startswith("__") for key in value):
        return {key: encode(item, f"{where}.{key}", tensors) for key, item in value.items()}
    return {
        _PAIRS: [
            [encode(key, f"{where} key", tensors), encode(item, f"{where}.{key}", tensors)]
            for key, item in value.items()
        ]
    }
