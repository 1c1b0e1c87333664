"""Foreign pickles become plain data; hostile ones become one InputInvalid, and nothing else."""

import contextlib
import copyreg
import os
import pickle
import pickletools
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives import unpickle
from wattmesh.reconfig.universal.archives.rebuild import GlobalName, Record

_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 900), 1 << 900)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=_PLAIN, protocol=st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=200)
def test_plain_data(value: Any, protocol: int) -> None:
    """What the standard library pickles of plain data reads back equal, in every protocol."""
    assert unpickle.load(pickle.dumps(value, protocol), "it") == value


@given(value=st.sets(st.integers(0, 99)), protocol=st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=20)
def test_sets_are_lists(value: set[int], protocol: int) -> None:
    """A set is read as a list; an ordered dict as a dict, without its attributes."""
    ordered = OrderedDict(a=value)
    ordered.hidden = 5  # type: ignore[attr-defined]
    read = unpickle.load(pickle.dumps(ordered, protocol), "it")
    assert type(read) is dict
    assert sorted(read["a"]) == sorted(value)


class Foreign:
    """A class whose every special method says that it ran."""

    ran = False

    def __new__(cls, *_: object) -> "Foreign":
        """Say so."""
        Foreign.ran = True
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Say so."""
        Foreign.ran = True

    def __reduce_ex__(self, protocol: object) -> Any:
        """Be made by a call, then have its state set and items added."""
        return Foreign, (1,), {"field": 2}, iter([3]), iter([("key", 4)])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_foreign_classes_are_records(protocol: int) -> None:
    """A class that we do not know is a record of what would have been done; it is not done."""
    data = pickle.dumps([Foreign()], protocol)
    Foreign.ran = False
    (record,) = unpickle.load(data, "it")
    assert type(record) is Record
    assert record.kind == GlobalName(__name__, "Foreign")
    assert (record.args, record.state, record.items) == ((1,), {"field": 2}, [3, ("key", 4)])
    assert not Foreign.ran


def _system(tmp: str) -> bytes:
    return f"X{struct.pack('<I', len(tmp) + 6).decode('latin-1')}touch {tmp}".encode("latin-1")


def _hostile(touched: str) -> dict[str, bytes]:
    """Pickles that would create the file `touched`, by every way of calling that there is."""
    command = _system(touched)
    text = f"S'touch {touched}'\n".encode()
    stack = b"\x8c\x05posix\x8c\x06system\x93"
    return {
        "global and reduce": b"\x80\x02cposix\nsystem\n" + command + b"\x85R.",
        "stack global": b"\x80\x04" + stack + command + b"\x85R.",
        "newobj": b"\x80\x02cposix\nsystem\n" + command + b"\x85\x81.",
        "newobj_ex": b"\x80\x04" + stack + command + b"\x85}\x92.",
        "inst": b"(" + text + b"iposix\nsystem\n.",
        "obj": b"(cposix\nsystem\n" + text + b"o.",
        "build": b"\x80\x02cwattmesh.errors\nWattmeshError\n}X\x08\x00\x00\x00__init__"
        b"cposix\nsystem\nsb.",
        "eval in a dict": b"\x80\x02}X\x01\x00\x00\x00acbuiltins\neval\n"
        b"X\x03\x00\x00\x001+1\x85Rs.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\ncos\npath\nX\x06\x00\x00\x00system\x86R"
        + command
        + b"\x85R.",
    }


@pytest.mark.parametrize("name", list(_hostile("")))
def test_nothing_runs(name: str, tmp_path: Path) -> None:
    """Whatever a pickle calls is not called: it ends as an inert record, or is refused."""
    touched = tmp_path / "touched"
    with contextlib.suppress(InputInvalid):
        unpickle.load(_hostile(str(touched))[name], "it")
    assert not touched.exists()


def test_these_pickles_are_hostile(tmp_path: Path) -> None:
    """Sabotaged twin: the standard library runs the same pickles."""
    for number, name in enumerate(["global and reduce", "stack global", "inst", "obj"]):
        touched = tmp_path / str(number)
        pickle.loads(_hostile(str(touched))[name])
        assert touched.exists(), name


def _nested(step: bytes, depth: int) -> bytes:
    return b"\x80\x02)" + step * depth + b"."


_BAD: dict[str, bytes] = {
    "nothing": b"",
    "no stop": b"\x80\x02N",
    "left over": b"\x80\x02NN.",
    "an open mark": b"\x80\x02(N.",
    "protocol 0": b"I1\n.",
    "protocol 9": b"\x80\x09N.",
    "a memo that was never filled": b"\x80\x02h\x05.",
    "extension 1": b"\x80\x02\x82\x01.",
    "extension 2": b"\x80\x02\x83\x01\x00.",
    "extension 4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "a buffer kept elsewhere": b"\x80\x05\x97.",
    "a huge integer": b"\x80\x02\x8b\x00\x00\x01\x00" + b"\xff" * 65536 + b".",
    "an integer of negative length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "decimal digits": b"\x80\x02L" + b"9" * 100000 + b"L\n.",
    "bytes that are not there": b"\x80\x04\x8e\x00\x00\x00\x00\xff\x00\x00\x00ab.",
    "a frame that is not there": b"\x80\x04\x95\xff\xff\xff\xff\x00\x00\x00\x00N.",
    "text that is none": b"\x80\x02X\x02\x00\x00\x00\xff\xff.",
    "items in a number": b"\x80\x02K\x01(K\x02e.",
    "items in a class": b"\x80\x02cos\nsystem\n(K\x02K\x03u.",
    "keys in a list": b"\x80\x02](K\x02K\x03u.",
    "a key without a value": b"\x80\x02}(K\x02u.",
    "state of a class": b"\x80\x02cos\nsystem\n}b.",
    "state of a number": b"\x80\x02K\x01}b.",
    "__dict__ of a class": b"\x80\x02cos\nsystem\n}X\x08\x00\x00\x00__dict__}sb.",
    "a number is called": b"\x80\x02K\x01)R.",
    "a record is called": b"\x80\x02cos\nsystem\n)R)R.",
    "called with a list": b"\x80\x02cos\nsystem\n]R.",
    "a list as a key": b"\x80\x02}]Ns.",
    "a key chosen to collide": b"\x80\x02}\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x1fNs.",
    "a global without text": b"\x80\x04K\x01K\x02\x93.",
    "a storage outside an archive": b"\x80\x02X\x07\x00\x00\x00storageQ.",
    "a tensor of nothing": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "a size of text": b"\x80\x02ctorch\nSize\nX\x01\x00\x00\x00a\x85R.",
    "bytes in another codec": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13"
    b"\x86R.",
    "a tuple in a tuple as a key": b"\x80\x02})\x85\x85Ns.",
}


@pytest.mark.parametrize("name", list(_BAD))
def test_bad_pickles_are_refused(name: str) -> None:
    """Everything that no writer emits is one InputInvalid that names the file and the byte."""
    with pytest.raises(InputInvalid, match=r"it: .*byte \d+"):
        unpickle.load(_BAD[name], "it")


def test_registered_extensions_are_refused() -> None:
    """An extension code stays refused where some library registered it and filled its cache."""
    copyreg.add_extension("posix", "system", 77)
    try:
        with pytest.raises(InputInvalid, match="opcode 0x82"):
            unpickle.load(b"\x80\x02\x82\x4dX\x04\x00\x00\x00true\x85R.", "it")
    finally:
        copyreg.remove_extension("posix", "system", 77)


def _doubled(depth: int) -> bytes:
    """A tuple of two of a tuple of two of ...: 2^depth leaves in `depth` bytes, as a key."""
    return b"\x80\x02})" + b"2\x86" * depth + b"Ns."


_BOMBS: dict[str, bytes] = {
    # The standard library's machine asks for 32 GiB here.
    "memo": b"\x80\x02Nr\xff\xff\xff\xff.",
    # It hashes this key for longer than anybody lives.
    "key": _doubled(200),
    "deep tuples": _nested(b"\x85", 300_000),
    "deep lists": b"\x80\x02]" + b"q\x00]h\x00a" * 100_000 + b".",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "marks": b"\x80\x02" + b"(" * 300_000,
    "the same set again and again": b"\x80\x02cbuiltins\nset\nq\x00]q\x01("
    + b"N" * 100_000
    + b"e0("
    + b"h\x00h\x01\x85R" * 20_000
    + b"t.",
    "the same bytes again and again": b"\x80\x02c_codecs\nencode\nq\x00X"
    + struct.pack("<I", 100_000)
    + b"a" * 100_000
    + b"q\x01X\x06\x00\x00\x00latin1q\x020("
    + b"h\x00h\x01h\x02\x86R" * 20_000
    + b"t.",
}

_BOUNDED = """
import resource, sys
from pathlib import Path
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives import unpickle
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        unpickle.load(path.read_bytes(), "it")
    except InputInvalid:
        pass
    print(path.name)
"""


def test_bombs_are_harmless(tmp_path: Path) -> None:
    """Pickles made to take for ever, or all memory, end at once within 1 GiB."""
    for name, data in _BOMBS.items():
        (tmp_path / name).write_bytes(data)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _BOUNDED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, sorted(_BOMBS)), done.stderr[-2000:]


@given(st.lists(st.sampled_from(sorted(unpickle.OPCODES)), max_size=30), st.binary(max_size=30))
@settings(max_examples=300)
def test_any_opcodes(codes: list[int], rest: bytes) -> None:
    """Opcodes in any order give data or an InputInvalid, never another error."""
    mixed = bytes(each for pair in zip(codes, rest, strict=False) for each in pair)
    for data in (bytes(codes) + b".", b"\x80\x02" + mixed + rest + b"."):
        with contextlib.suppress(InputInvalid):
            unpickle.load(data, "it")


def _flip(data: bytes, at: int, bits: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


@given(
    value=_PLAIN,
    at=st.integers(0, 10_000),
    harm=st.sampled_from(
        [lambda data, at: _flip(data, at, 1 + at % 255), lambda data, at: data[: at % len(data)]]
    ),
)
@settings(max_examples=200)
def test_damaged_pickles(value: Any, at: int, harm: Callable[[bytes, int], bytes]) -> None:
    """A flipped or missing byte gives data or an InputInvalid, never another error."""
    with contextlib.suppress(InputInvalid):
        unpickle.load(harm(pickle.dumps(value, 4), at), "it")


def test_every_opcode_of_today_is_known_or_refused() -> None:
    """The machine knows every opcode of protocols 2 to 5 that a pickler emits."""
    old = {"I", "L", "F", "S", "T", "U", "V", "P", "d", "l", "g", "p", "i", "o"}
    left_out = {*old, "\x82", "\x83", "\x84", "\x97", "\x98"}
    known = {each.code for each in pickletools.opcodes}
    assert {chr(code) for code in unpickle.OPCODES} == known - left_out
