"""The emitter of pickles, against Python's own reader and the restricted one of torch."""

import collections
import io
import math
import pickle
import pickletools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives import pickled
from wattmesh.reconfig.universal.archives.pickled import (
    Build,
    Global,
    New,
    Pairs,
    PersistentId,
    Reduce,
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.text(), st.integers()), inner)
    ),
    max_leaves=30,
)


@dataclass
class Note:
    """A class that pickles name."""

    text: str = "unset"


@given(plain)
@settings(max_examples=150, deadline=None)
def test_plain_data_comes_back_equal(value: object) -> None:
    """Python's own reader gets the value that was written, with the types it had."""
    found = pickle.loads(pickled.dumps(value))
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "value", [0, 255, 256, -1, 1 << 31, -(1 << 31), -(1 << 31) - 1, 127, 128, 1 << 63, -(1 << 63)]
)
def test_integers_at_the_borders_of_opcodes(value: int) -> None:
    """Integers at every border between opcodes come back equal."""
    assert pickle.loads(pickled.dumps([value])) == [value]


def test_floats_keep_their_bits() -> None:
    """Infinities, NaN and negative zero come back as they were."""
    nan, infinite, zero = pickle.loads(pickled.dumps([math.nan, -math.inf, -0.0]))
    assert math.isnan(nan)
    assert infinite == -math.inf
    assert math.copysign(1, zero) == -1


def test_markers_name_what_the_reader_calls() -> None:
    """A reader finds the globals, calls the functions and fills the objects."""
    note = Build(New(Global(__name__, "Note")), {"text": "hello"})
    table = Reduce(Global("collections", "OrderedDict"), ([("a", 1)],))
    found = pickle.loads(pickled.dumps({"note": note, "table": table}))
    assert found == {"note": Note("hello"), "table": collections.OrderedDict(a=1)}


def test_keys_that_are_markers() -> None:
    """A dict may be given as pairs, so that its keys may be anything the reader can hash."""
    key = Reduce(Global("builtins", "complex"), (1.0, 2.0))
    assert pickle.loads(pickled.dumps(Pairs([(key, "value"), ((1, 2), {})]))) == {
        1 + 2j: "value",
        (1, 2): {},
    }


def test_persistent_ids_reach_the_reader() -> None:
    """A persistent id is handed to the reader's own function, as storages of torch are."""

    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return ("seen", pid)

    data = pickled.dumps([PersistentId(("storage", 3))])
    assert Reader(io.BytesIO(data)).load() == [("seen", ("storage", 3))]


def test_writing_imports_nothing() -> None:
    """A module that does not exist can be named; only a reader would notice."""
    data = pickled.dumps(Reduce(Global("no_such_module_at_all", "f")))
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(data)


def test_what_repeats_is_written_once() -> None:
    """Strings and globals that repeat take five bytes at most, also beyond 256 different ones."""
    many = [f"parameter.number.{n:06d}" for n in range(400)]
    data = pickled.dumps([many, many])
    assert len(data) < len(pickled.dumps(many)) + 5 * len(many) + 20
    assert pickle.loads(data) == [many, many]


def test_only_opcodes_of_protocol_2() -> None:
    """The restricted reader of torch refuses newer opcodes, so none is written."""
    value = {"a": [1, 1 << 40, b"x", 2.5, (1, 2, 3, 4), Global("torch", "float32")]}
    assert all(code.proto <= 2 for code, _, _ in pickletools.genops(pickled.dumps(value)))


class Number(int):
    """Looks like an integer, but its class would be lost."""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": [1, {2}]}, r"value\['a'\]\[1\] is a set"),
        (Number(3), "value is a Number"),
        (Global("os\nsystem", "x"), "no global"),
        (Global("", "x"), "no global"),
        (1 << 2100, "255 is the most"),
    ],
)
def test_what_cannot_be_written_is_named(value: object, told: str) -> None:
    """Sabotaged twin: values without an exact pickle are refused with the path to them."""
    with pytest.raises(InputInvalid, match=told):
        pickled.dumps(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    """Data must be a tree."""
    loop: list[object] = []
    loop.append([loop])
    with pytest.raises(InputInvalid, match=r"value\[0\]\[0\] contains itself"):
        pickled.dumps(loop)
