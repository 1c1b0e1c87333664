"""Plain values come back as they were, or are refused by name."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.state.plain import decode, encode

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
    ),
    max_leaves=12,
)


@given(value=VALUES)
def test_plain_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    """Tuples stay tuples and integer keys stay integers, through JSON text."""
    text = json.dumps(encode(value, "state", {}))
    back = decode(json.loads(text), {})
    assert back == value
    assert repr(back) == repr(value)


def test_tensors_travel_beside_the_text() -> None:
    """A tensor inside a state is kept as it is."""
    tensors: dict[str, torch.Tensor] = {}
    value = {"ema": [torch.arange(3)], "n": 1}
    encoded = json.loads(json.dumps(encode(value, "extra", tensors)))
    assert list(tensors) == ["extra.ema[0]"]
    assert torch.equal(decode(encoded, tensors)["ema"][0], torch.arange(3))


@pytest.mark.parametrize("value", [b"", b"\x80\x04x"])
def test_bytes_that_only_their_owner_understands_travel_too(value: bytes) -> None:
    """They are carried as they are, and never unpickled."""
    tensors: dict[str, torch.Tensor] = {}
    encoded = json.loads(json.dumps(encode({"loader": value}, "extra", tensors)))
    assert decode(encoded, tensors) == {"loader": value}


@pytest.mark.parametrize("value", [object(), {1, 2}, bytearray(b"x"), print, 1 + 2j])
def test_what_cannot_come_back_is_refused_by_name(value: Any) -> None:
    """The message names the path and the type."""
    with pytest.raises(InputInvalid, match=rf"schedule.deep\[0\] is a {type(value).__name__}"):
        encode({"deep": [value]}, "schedule", {})
