"""Decodes pickles as plain data: interprets the opcodes and runs nothing that they name.

Even a restricted `pickle.Unpickler` is not safe here: it allocates as much as a memo index asks
for, hashes keys that take for ever, and resolves extension codes, so a few dozen bytes of a hostile
file can stop the process. Here a global is a name, a call is a record of it, and only the few
functions in rebuild.py are called, which turn torch's calls into data.

Invariant: nothing is imported, called or set because a pickle says so; time and memory are linear
in its bytes (`allowance`); every fault of it raises InputInvalid.
"""

import struct
from collections.abc import Callable
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.rebuild import KNOWN, GlobalName, PickleRefused, Record
from wattmesh.reconfig.universal.archives.tensors import Storage, StoredTensor, storage_type

MAX_NBYTES = 1 << 30
"""Longest pickle; its objects may take some forty times its bytes in memory."""

MAX_INT_NBYTES = 128
MAX_KEY_INT = 1 << 60  # larger ones can be chosen with equal hashes
MAX_KEY_ITEMS = 3


Extents = Callable[[str], tuple[int, int]]
"""Returns the byte offset and size, in the file, of an archive's storage by its key."""


def load(
    data: bytes,
    where: str,
    extents: Extents | None = None,
    allowance: Allowance | None = None,
) -> Any:
    """Decode a pickle of protocol 2 to 5.

    Args:
        data: the pickle.
        where: its name in errors.
        extents: locates the storages of a torch archive; None where there are none.
        allowance: the checkpoint's, already charged for these bytes; None for a pickle alone.

    Returns:
        None, bool, int, float, str, bytes, list, tuple, dict, StoredTensor, Global and Record,
        nested, possibly shared or recursive. Sets are lists.

    Raises:
        InputInvalid: it is damaged, too large, or does something that no writer of torch does.
    """
    if len(data) > MAX_NBYTES:
        raise InputInvalid(
            f"{where}: the pickle has {len(data)} bytes, {MAX_NBYTES} is the most that is read."
        )
    if allowance is None:
        allowance = Allowance()
        allowance.read(len(data), where)
    machine = _Machine(data, extents, allowance, where)
    try:
        value = machine.run()
        machine.settle()
        return value
    except PickleRefused as error:
        raise InputInvalid(f"{where}: {error} (at byte {machine.at} of its pickle).") from error
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise InputInvalid(
            f"{where}: the pickle is damaged at byte {machine.at} ({type(error).__name__})."
        ) from error


_SOME = 1 << 12
"""Containers and memo cells created between two charges of the allowance."""


class _Stop(Exception):
    """The STOP opcode was reached."""


class _Machine:
    """The state of one pickle: its bytes, the stack, the stacks below marks, the memo."""

    __slots__ = (
        "allowance", "at", "below", "copied", "data", "extents", "globals", "left", "memo", "stack",
        "where",
    )  # fmt: skip

    def __init__(
        self, data: bytes, extents: Extents | None, allowance: Allowance, where: str
    ) -> None:
        self.data = data
        self.allowance = allowance
        self.where = where
        self.left = _SOME
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.globals: dict[tuple[str, str], GlobalName] = {}
        self.extents = extents
        self.copied = 0

    def run(self) -> Any:
        """Run opcodes until STOP."""
        data = self.data
        steps = _STEPS
        try:
            while True:
                code = data[self.at]
                self.at += 1
                steps[code](self)
        except _Stop:
            return self.stack.pop()

    def settle(self) -> None:
        """Charge the allowance for what was created since the last time."""
        made, self.left = _SOME - self.left, _SOME
        self.allowance.made(CONTAINER * made, self.where)

    def take(self, count: int) -> bytes:
        begin = self.at
        end = begin + count
        if end > len(self.data):
            raise IndexError
        self.at = end
        return self.data[begin:end]

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def since_mark(self) -> list[Any]:
        """Pop everything above the last mark, and the mark."""
        items = self.stack
        self.stack = self.below.pop()
        return items

    def known(self, module: str, name: str) -> GlobalName:
        """One object per name, so that equal globals are identical."""
        found = self.globals.get((module, name))
        if found is None:
            found = self.globals[module, name] = GlobalName(module, name)
        return found


_U1, _U2, _U4, _U8 = (struct.Struct(each) for each in ("<B", "<H", "<I", "<Q"))
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")


def _pushes(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def step(to: _Machine) -> None:
        value = make(to)
        to.stack.append(value)

    return step


# Numbers, texts and the memo are most of a pickle, so their steps make no further calls.


def _number(form: struct.Struct) -> Callable[[_Machine], None]:
    unpack, size = form.unpack_from, form.size

    def step(to: _Machine) -> None:
        to.stack.append(unpack(to.data, to.at)[0])
        to.at += size

    return step


def _text(form: struct.Struct) -> Callable[[_Machine], None]:
    unpack, size = form.unpack_from, form.size

    def step(to: _Machine) -> None:
        begin = to.at + size
        end = begin + unpack(to.data, to.at)[0]
        if end > len(to.data):
            raise IndexError
        to.stack.append(to.data[begin:end].decode("utf-8", "surrogatepass"))
        to.at = end

    return step


def _raw(form: struct.Struct) -> Callable[[_Machine], None]:
    return _pushes(lambda to: to.take(to.number(form)))


def _long(form: struct.Struct) -> Callable[[_Machine], None]:
    def make(to: _Machine) -> int:
        count = to.number(form)
        if count > MAX_INT_NBYTES:
            raise PickleRefused(f"an integer of {count} bytes; {MAX_INT_NBYTES} is the most")
        return int.from_bytes(to.take(count), "little", signed=True)

    return _pushes(make)


def _put(form: struct.Struct) -> Callable[[_Machine], None]:
    unpack, size = form.unpack_from, form.size

    def step(to: _Machine) -> None:
        to.memo[unpack(to.data, to.at)[0]] = to.stack[-1]
        to.at += size

    return step


def _get(form: struct.Struct) -> Callable[[_Machine], None]:
    unpack, size = form.unpack_from, form.size

    def step(to: _Machine) -> None:
        to.stack.append(to.memo[unpack(to.data, to.at)[0]])
        to.at += size

    return step


def _makes(make: Callable[[], Any]) -> Callable[[_Machine], None]:
    """A step that pushes an empty container, and charges for it."""

    def step(to: _Machine) -> None:
        to.left -= 1
        if to.left < 0:
            to.settle()
        to.stack.append(make())

    return step


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    def step(to: _Machine) -> None:
        to.left -= 1
        if to.left < 0:
            to.settle()
        if len(to.stack) < count:
            raise IndexError
        to.stack[-count:] = [tuple(to.stack[-count:])]

    return step


def _stop(to: _Machine) -> None:
    if len(to.stack) != 1 or to.below:
        raise PickleRefused("the pickle ends with something left over")
    raise _Stop


def _mark(to: _Machine) -> None:
    to.left -= 1
    if to.left < 0:
        to.settle()
    to.below.append(to.stack)
    to.stack = []


def _pop(to: _Machine) -> None:
    if to.stack:
        to.stack.pop()
    else:
        to.since_mark()


def _memoize(to: _Machine) -> None:
    to.left -= 1
    if to.left < 0:
        to.settle()
    to.memo[len(to.memo)] = to.stack[-1]


def _proto(to: _Machine) -> None:
    version = to.number(_U1)
    if not 2 <= version <= 5:
        raise PickleRefused(f"pickle protocol {version}; 2 to 5 are read")


def _frame(to: _Machine) -> None:
    if to.number(_U8) > len(to.data) - to.at:
        raise IndexError


def _stack_global(to: _Machine) -> GlobalName:
    name, module = to.stack.pop(), to.stack.pop()
    if not (type(name) is str and type(module) is str):
        raise PickleRefused("a global whose name is no text")
    return to.known(module, name)


def _append(to: _Machine) -> None:
    item = to.stack.pop()
    _listed(to.stack[-1]).append(item)


def _appends(to: _Machine) -> None:
    items = to.since_mark()
    _listed(to.stack[-1]).extend(items)


def _listed(target: Any) -> list[Any]:
    """The list that items are added to."""
    if type(target) is list:
        return target
    if type(target) is Record:
        return target.items
    raise PickleRefused(f"items are added to a {type(target).__name__}")


def _setitem(to: _Machine) -> None:
    value, key = to.stack.pop(), to.stack.pop()
    _set(to.stack[-1], [key, value])


def _setitems(to: _Machine) -> None:
    items = to.since_mark()
    _set(to.stack[-1], items)


def _set(target: Any, items: list[Any]) -> None:
    """Set alternating keys and values."""
    pairs = zip(items[::2], items[1::2], strict=True)
    if type(target) is dict:
        for key, value in pairs:
            _check_key(key)
            target[key] = value
    elif type(target) is Record:
        target.items.extend(pairs)
    else:
        raise PickleRefused(f"keys are set in a {type(target).__name__}")


def _check_key(key: Any) -> None:
    """Refuse keys that hash slowly or can be chosen to collide."""
    kind = type(key)
    if kind in _EASY_KEYS:
        return
    if kind is int and -MAX_KEY_INT < key < MAX_KEY_INT:
        return
    if kind is tuple and len(key) <= MAX_KEY_ITEMS and not any(type(x) is tuple for x in key):
        for each in key:
            _check_key(each)
        return
    raise PickleRefused(f"a {kind.__name__} as the key of a dict")


_EASY_KEYS = frozenset({str, bytes, bool, float, type(None), GlobalName, Record})


def _reduce(to: _Machine) -> None:
    to.left -= 1
    if to.left < 0:
        to.settle()
    args, kind = to.stack.pop(), to.stack.pop()
    to.stack.append(_called(to, kind, args))


def _newobj_ex(to: _Machine) -> None:
    to.left -= 1
    if to.left < 0:
        to.settle()
    named, args, kind = to.stack.pop(), to.stack.pop(), to.stack.pop()
    if type(named) is not dict:
        raise PickleRefused("named arguments that are no dict")
    made = _called(to, kind, args)
    if type(made) is Record and named:
        made.items.append(named)
    to.stack.append(made)


def _arguments(args: Any) -> tuple[Any, ...]:
    if type(args) is not tuple:
        raise PickleRefused(f"a {type(args).__name__} as the arguments of a call")
    return args


def _called(to: _Machine, kind: Any, args: Any) -> Any:
    """The result of a call: data for known functions, a record for all others."""
    if type(kind) is not GlobalName:
        raise PickleRefused(f"a {type(kind).__name__} is called")
    args = _arguments(args)
    known = KNOWN.get((kind.module, kind.name))
    if known is None:
        return Record(kind, args)
    to.copied += sum(len(each) for each in args if type(each) is str)
    if to.copied > len(to.data):
        raise PickleRefused(f"{kind} is called again and again with the same text")
    try:
        return known(args)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise PickleRefused(
            f"{kind} is called with what it does not take ({error!s:.200})"
        ) from error


def _build(to: _Machine) -> None:
    state = to.stack.pop()
    target = to.stack[-1]
    if type(target) is Record:
        target.state = state
    elif type(target) not in (dict, list, StoredTensor):
        # In those three the state is extra attributes (a state dict's `_metadata`), which is
        # dropped.
        raise PickleRefused(f"the state of a {type(target).__name__} is set")


def _persistent(to: _Machine) -> Storage:
    """A storage of a torch archive: ("storage", class, key, device, number of elements)."""
    to.left -= 1
    pid = to.stack.pop()
    if to.extents is None or type(pid) is not tuple or len(pid) != 5 or pid[0] != "storage":
        raise PickleRefused("an object kept outside the pickle that is no storage of this archive")
    _, kind, key, _, count = pid
    if type(kind) is not GlobalName or type(key) is not str or type(count) is not int or count < 0:
        raise PickleRefused("a storage whose description is malformed")
    offset, nbytes = to.extents(key)
    try:
        return Storage(storage_type(kind.module, kind.name), offset, nbytes)
    except LookupError as error:
        raise PickleRefused(f"a storage of the class {kind}, which is not supported") from error


def _unknown(to: _Machine) -> None:
    code = to.data[to.at - 1]
    raise PickleRefused(f"opcode 0x{code:02x}, which no writer of protocol 2 to 5 emits")


# The opcodes and their meaning: CPython, Lib/pickletools.py. Not supported on purpose: protocols 0
# and
# 1 (among them INST and OBJ), extension codes, and out-of-band buffers.
_BY_CODE: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _proto,
    b"\x95": _frame,
    b".": _stop,
    b"(": _mark,
    b"0": _pop,
    b"1": lambda to: to.since_mark().clear(),
    b"2": _pushes(lambda to: to.stack[-1]),
    b"N": _pushes(lambda to: None),
    b"\x88": _pushes(lambda to: True),
    b"\x89": _pushes(lambda to: False),
    b"J": _number(_I4),
    b"K": _number(_U1),
    b"M": _number(_U2),
    b"G": _number(_F8),
    b"\x8a": _long(_U1),
    b"\x8b": _long(_I4),
    b"X": _text(_U4),
    b"\x8c": _text(_U1),
    b"\x8d": _text(_U8),
    b"B": _raw(_U4),
    b"C": _raw(_U1),
    b"\x8e": _raw(_U8),
    b"\x96": _raw(_U8),
    b")": _pushes(lambda to: ()),
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"t": _pushes(lambda to: tuple(to.since_mark())),
    b"]": _makes(list),
    b"\x8f": _makes(list),
    b"\x91": _pushes(lambda to: to.since_mark()),
    b"a": _append,
    b"e": _appends,
    b"\x90": _appends,
    b"}": _makes(dict),
    b"s": _setitem,
    b"u": _setitems,
    b"q": _put(_U1),
    b"r": _put(_U4),
    b"\x94": _memoize,
    b"h": _get(_U1),
    b"j": _get(_U4),
    b"c": _pushes(lambda to: to.known(to.line(), to.line())),
    b"\x93": _pushes(_stack_global),
    b"R": _reduce,
    b"\x81": _reduce,
    b"\x92": _newobj_ex,
    b"b": _build,
    b"Q": _pushes(_persistent),
}
OPCODES = frozenset(code[0] for code in _BY_CODE)
"""The supported opcodes."""

_STEPS = [_BY_CODE.get(bytes([code]), _unknown) for code in range(256)]
