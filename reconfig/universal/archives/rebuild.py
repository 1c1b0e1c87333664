"""Inert stand-ins for what a pickle names and calls, and the few calls that are decoded as data.

Invariant: a function here takes and returns plain values, in constant time (a pickle may call it
with the same large value again and again); every other name stays a Global, every other call a
Record.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wattmesh.reconfig.universal.archives.tensors import (
    MAX_DIMS,
    UNTYPED,
    Storage,
    StoredTensor,
    element_type,
)

Arguments = tuple[Any, ...]


class PickleRefused(Exception):
    """The pickle does something that is not allowed here."""


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A class or function that the pickle names. It is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module:.60}.{self.name:.60}"


@dataclass(slots=True, eq=False, repr=False)
class Record:
    """An inert stand-in for the result of a call.

    Attributes:
        kind: the callable.
        args: its arguments.
        state: the state that would be set afterwards; None for none.
        items: items that would be added: values, or (key, value) pairs.
    """

    kind: GlobalName
    args: Arguments
    state: Any = None
    items: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        """Leave its content out, which may be recursive."""
        return f"<a {self.kind}>"


def brief(value: Any) -> str:
    """Format a value for an error message; of a container only the type.

    Never use repr on an object from a pickle: with two lists that contain each other, nested sixty
    deep, it does not end.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return f"{value!r:.60}"
    return f"a {type(value).__name__}"


def holds_tensors(value: Any) -> bool:
    """Tell whether a tensor of any form is in a value; each object is looked at once."""
    seen: set[int] = set()
    left = [value]
    while left:
        each = left.pop()
        if type(each) is StoredTensor:
            return True
        if type(each) not in (dict, list, tuple, Record) or id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) is Record:
            if each.kind.module == "torch._utils":
                return True  # _rebuild_sparse_tensor, _rebuild_wrapper_subclass, ...
            left += [*each.args, each.state, *each.items]
        else:
            left += each.values() if type(each) is dict else each
    return False


def _tensor(args: Arguments) -> StoredTensor:
    """torch._utils._rebuild_tensor, _v2 and _v3."""
    storage, offset, shape, strides, *rest = args
    if type(storage) is not Storage:
        raise PickleRefused("a tensor without a storage")
    dtype, after_hooks = storage.dtype, rest[2:]
    if dtype == UNTYPED:
        # _rebuild_tensor_v3: ..., requires_grad, hooks, dtype.
        dtype, after_hooks = element_type(rest[2].module, rest[2].name), rest[3:]
    if any(each is not None and any(each.values()) for each in after_hooks):
        # {"conj": True, "neg": True}: torch sets these bits on the tensor that it made.
        raise PickleRefused(
            "a tensor that torch conjugates or negates when it is used, so its bytes are not its "
            "elements; save it with resolve_conj() and resolve_neg()"
        )
    return storage.tensor(dtype, offset, shape, strides)


def _parameter(args: Arguments) -> StoredTensor:
    """torch._utils._rebuild_parameter(tensor, ...)."""
    if type(args[0]) is not StoredTensor:
        raise PickleRefused("a parameter without a tensor")
    return args[0]


def _from_type(args: Arguments) -> Any:
    """torch._tensor._rebuild_from_type_v2(function, type, arguments, state)."""
    function, _, arguments, _ = args
    if type(function) is not GlobalName or type(arguments) is not tuple:
        raise PickleRefused("a tensor rebuilt by what is no function")
    known = _TENSORS.get((function.module, function.name))
    return known(arguments) if known else Record(function, arguments)


def _size(args: Arguments) -> tuple[int, ...]:
    (sizes,) = args
    if type(sizes) not in (tuple, list) or len(sizes) > MAX_DIMS:
        raise PickleRefused("a size that is no short list")
    return tuple(sizes)


def _mapping(args: Arguments) -> Any:
    """An ordered or default dict, still empty: later opcodes add its items."""
    return {}


def _set(args: Arguments) -> Any:
    """A set, as the list it was made from."""
    if args and type(args[0]) is not list:
        raise PickleRefused("a set of what is no list")
    return args[0] if args else []


def _bytes(args: Arguments) -> bytes:
    """_codecs.encode: bytes in protocol 2, as text of code points below 256."""
    text, codec = args
    if type(text) is not str or codec != "latin1":
        raise PickleRefused("bytes that are no latin1 text")
    return text.encode("latin-1")


def _no_bytes(args: Arguments) -> bytes:
    """bytes() without arguments: empty bytes in protocol 2."""
    if args:
        raise PickleRefused("bytes made from something")
    return b""


Known = dict[tuple[str, str], Callable[[Arguments], Any]]

_TENSORS: Known = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
}

KNOWN: Known = {
    **_TENSORS,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch", "Size"): _size,
    ("collections", "OrderedDict"): _mapping,
    ("collections", "defaultdict"): _mapping,
    ("builtins", "set"): _set,
    ("builtins", "frozenset"): _set,
    ("__builtin__", "set"): _set,
    ("__builtin__", "frozenset"): _set,
    ("__builtin__", "bytes"): _no_bytes,
    ("_codecs", "encode"): _bytes,
}
"""By (module, name). torch: torch/_utils.py, torch/_tensor.py; the rest: pickle of CPython."""
