"""Writes pickles (protocol 2) without importing the functions and classes that they name.

A torch archive names functions of torch, and DCP's index names its own classes. Here those are
marker values, so writing needs no torch.

Invariant: nothing is called or imported; a value without an exact pickle is refused with its path.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid

# Opcodes (CPython, Lib/pickletools.py) of protocol 2 and below: torch's weights-only reader accepts
# no others.
_PROTO = b"\x80\x02"
_STOP = b"."
_MARK = b"("
_TUPLES = (b")", b"\x85", b"\x86", b"\x87")
_SETITEMS = b"u"
_APPENDS = b"e"


@dataclass(frozen=True, slots=True)
class Global:
    """A function or class, by name."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """The result of calling `function` with `arguments`."""

    function: Global
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class New:
    """An object of class `kind`, made by `kind.__new__` without arguments."""

    kind: Global


@dataclass(frozen=True, slots=True)
class Build:
    """`target` (a `New` or `Reduce`) after `__setstate__(state)`, or with `state` as attributes."""

    target: Any
    state: Any


@dataclass(frozen=True, slots=True)
class PersistentId:
    """The result of the reader's `persistent_load(value)`: in torch archives, a storage."""

    value: Any


@dataclass(frozen=True, slots=True)
class Pairs:
    """A dict as pairs, because markers are not hashable as the keys that they stand for."""

    items: Sequence[tuple[Any, Any]]


def dumps(value: Any) -> bytes:
    """Pickle plain data (None, bool, int, float, str, bytes, list, tuple, dict) and markers.

    Raises:
        InputInvalid: a value of another type, a value that contains itself, or an integer of more
            than 255 bytes; the path to it is named.
    """
    emitter = _Emitter()
    emitter.value(value, "value")
    return _PROTO + bytes(emitter.out) + _STOP


class _Emitter:
    """One pickle under construction; repeated strings and globals are written once."""

    def __init__(self) -> None:
        self.out = bytearray()
        self._seen: dict[str | Global, int] = {}
        self._open: set[int] = set()

    def value(self, value: Any, where: str) -> None:
        """Append the opcodes that push `value`.

        Exact types only: a subclass may have more state.
        """
        emit = _EMIT.get(type(value))
        if emit is None:
            raise InputInvalid(
                f"pickle: {where} is a {type(value).__name__}, which cannot be written without "
                "running its code; give plain data."
            )
        if isinstance(value, _LEAVES):
            emit(self, value, where)
            return
        if id(value) in self._open:
            raise InputInvalid(f"pickle: {where} contains itself; give data that is a tree.")
        self._open.add(id(value))
        emit(self, value, where)
        self._open.remove(id(value))

    def repeated(self, key: "str | Global", opcodes: bytes) -> None:
        """Push a string or global: in full the first time, later by its memo number."""
        number = self._seen.get(key)
        if number is not None:
            self.out += struct.pack("<cB" if number < 256 else "<cI", _get(number), number)
            return
        number = self._seen[key] = len(self._seen)
        self.out += opcodes + struct.pack("<cB" if number < 256 else "<cI", _put(number), number)


_LEAVES = (type(None), bool, int, float, str, bytes, Global)


def _get(number: int) -> bytes:
    return b"h" if number < 256 else b"j"


def _put(number: int) -> bytes:
    return b"q" if number < 256 else b"r"


def _none(to: _Emitter, value: None, where: str) -> None:
    to.out += b"N"


def _bool(to: _Emitter, value: bool, where: str) -> None:
    to.out += b"\x88" if value else b"\x89"


def _int(to: _Emitter, value: int, where: str) -> None:
    if 0 <= value < 1 << 8:
        to.out += struct.pack("<cB", b"K", value)
    elif -(1 << 31) <= value < 1 << 31:
        to.out += struct.pack("<ci", b"J", value)
    else:
        size = value.bit_length() // 8 + 1
        if size > 255:
            raise InputInvalid(f"pickle: {where} is an integer of {size} bytes; 255 is the most.")
        to.out += struct.pack("<cB", b"\x8a", size) + value.to_bytes(size, "little", signed=True)


def _float(to: _Emitter, value: float, where: str) -> None:
    to.out += struct.pack(">cd", b"G", value)


def _str(to: _Emitter, value: str, where: str) -> None:
    text = value.encode("utf-8", "surrogatepass")
    to.repeated(value, struct.pack("<cI", b"X", len(text)) + text)


def _bytes(to: _Emitter, value: bytes, where: str) -> None:
    # Protocol 2 has no opcode for bytes; CPython writes them like this.
    encode = Global("_codecs", "encode")
    to.value(Reduce(encode, (value.decode("latin-1"), "latin1")), where)


def _global(to: _Emitter, value: Global, where: str) -> None:
    if "\n" in value.module + value.name or not (value.module and value.name):
        raise InputInvalid(f"pickle: {where} names {value.module!r}.{value.name!r}, no global.")
    to.repeated(value, f"c{value.module}\n{value.name}\n".encode())


def _tuple(to: _Emitter, value: tuple[Any, ...], where: str) -> None:
    short = len(value) < len(_TUPLES)
    if not short:
        to.out += _MARK
    for number, item in enumerate(value):
        to.value(item, f"{where}[{number}]")
    to.out += _TUPLES[len(value)] if short else b"t"


def _list(to: _Emitter, value: list[Any], where: str) -> None:
    to.out += b"]"
    if value:
        to.out += _MARK
        for number, item in enumerate(value):
            to.value(item, f"{where}[{number}]")
        to.out += _APPENDS


def _dict(to: _Emitter, value: dict[Any, Any], where: str) -> None:
    _items(to, value.items(), where)


def _pairs(to: _Emitter, value: Pairs, where: str) -> None:
    _items(to, value.items, where)


def _items(to: _Emitter, items: Iterable[tuple[Any, Any]], where: str) -> None:
    to.out += b"}" + _MARK
    for key, item in items:
        to.value(key, f"{where} key")
        to.value(item, f"{where}[{key!r}]")
    to.out += _SETITEMS


def _reduce(to: _Emitter, value: Reduce, where: str) -> None:
    to.value(value.function, where)
    to.value(value.arguments, where)
    to.out += b"R"


def _new(to: _Emitter, value: New, where: str) -> None:
    to.value(value.kind, where)
    to.out += b")\x81"


def _build(to: _Emitter, value: Build, where: str) -> None:
    to.value(value.target, where)
    to.value(value.state, where)
    to.out += b"b"


def _persistent(to: _Emitter, value: PersistentId, where: str) -> None:
    to.value(value.value, where)
    to.out += b"Q"


_EMIT: dict[type, Callable[[_Emitter, Any, str], None]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    bytes: _bytes,
    tuple: _tuple,
    list: _list,
    dict: _dict,
    Pairs: _pairs,
    Global: _global,
    Reduce: _reduce,
    New: _new,
    Build: _build,
    PersistentId: _persistent,
}
