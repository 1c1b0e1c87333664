"""Encodes plain data as JSON that decodes to equal values; tensors are stored apart.

Invariant: a value that would not decode to an equal one is refused, by name, at save time.
"""

from typing import Any

import torch

from wattmesh.errors import InputInvalid

_TUPLE = "__tuple__"
_PAIRS = "__pairs__"
_TENSOR = "__tensor__"
_BYTES = "__bytes__"


def encode(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Encode a state as JSON; tensors go into `tensors` under their path.

    Raises:
        InputInvalid: a value is neither a tensor nor plain; the message has its path.
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
        f"checkpoint: {where} is a {type(value).__name__}, which a checkpoint does not store; "
        "give numbers, strings, bytes, lists, tuples, dicts or tensors (or leave it out)."
    )


def decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Decode the result of `encode`."""
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
    """Decode a tensor, or bytes that are stored as one."""
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    where = value[_BYTES]
    return tensors[where].numpy().tobytes() if where else b""


def _encode_bytes(value: bytes, where: str, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Encode bytes as a tensor; empty bytes need none."""
    if value:
        tensors[where] = torch.frombuffer(bytearray(value), dtype=torch.uint8)
    return {_BYTES: where if value else ""}


def _encode_dict(value: dict[Any, Any], where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Encode a dict.

    With keys that are not strings it becomes pairs, because JSON would turn 1 into "1".
    """
    if all(isinstance(key, str) and not key.startswith("__") for key in value):
        return {key: encode(item, f"{where}.{key}", tensors) for key, item in value.items()}
    return {
        _PAIRS: [
            [encode(key, f"{where} key", tensors), encode(item, f"{where}.{key}", tensors)]
            for key, item in value.items()
        ]
    }
