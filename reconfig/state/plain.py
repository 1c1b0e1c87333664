"""Plain data: state that is neither tensor nor pickle, as JSON that comes back as it was.

Invariant: what cannot be written so that it reads back equal is refused, by name, at save time.
"""

from typing import Any

import torch

from wattmesh.errors import InputInvalid

_TUPLE = "__tuple__"
_PAIRS = "__pairs__"
_TENSOR = "__tensor__"
_BYTES = "__bytes__"


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
    if isinstance(value, bytes):
        return _encode_bytes(value, where, tensors)
    if isinstance(value, list):
        return [encode(item, f"{where}[{n}]", tensors) for n, item in enumerate(value)]
    if isinstance(value, tuple):
        return {_TUPLE: [encode(item, f"{where}[{n}]", tensors) for n, item in enumerate(value)]}
    if isinstance(value, dict):
        return _encode_dict(value, where, tensors)
    raise InputInvalid(
        f"checkpoint: {where} is a {type(value).__name__}, which a checkpoint does not carry; "
        "give numbers, strings, bytes, lists, tuples, dicts or tensors (or leave it out)."
    )


def decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Undo `encode`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value or _BYTES in value:
        return _decode_tensor(value, tensors)
    if _TUPLE in value:
        return tuple(decode(item, tensors) for item in value[_TUPLE])
    if _PAIRS in value:
        return {decode(key, tensors): decode(item, tensors) for key, item in value[_PAIRS]}
    return {key: decode(item, tensors) for key, item in value.items()}


def _decode_tensor(value: dict[str, str], tensors: dict[str, torch.Tensor]) -> Any:
    """A tensor, or the bytes that one carries."""
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    where = value[_BYTES]
    return tensors[where].numpy().tobytes() if where else b""


def _encode_bytes(value: bytes, where: str, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Bytes that only their owner understands, as a tensor; none at all need no tensor."""
    if value:
        tensors[where] = torch.frombuffer(bytearray(value), dtype=torch.uint8)
    return {_BYTES: where if value else ""}


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
