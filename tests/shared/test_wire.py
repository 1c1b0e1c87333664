"""The wire is strict about what it needs and silent about what is new."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.views import as_json
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import ranges
from wattmesh.reconfig.launch.generation import SwitchNote
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import (
    Order,
    Orders,
    Progress,
    Register,
    SwitchMode,
    Transition,
)

RUN = "6d1c9d0e-0000-4000-8000-000000000001"
ORDER = Order(
    switch_id="p",
    epoch=3,
    run=RUN,
    attempt=1,
    point="B",
    layout=Layout(tp=2),
    ranks=(0, 1),
    not_before_step=10,
    valid_until_step=40,
    mode=SwitchMode.RESTART,
)


def through_json(message: Any) -> Any:
    """Send a message through real JSON text."""
    return type(message).from_json(json.loads(json.dumps(message.to_json())))


def test_a_hook_of_before_can_read_the_layouts_of_before() -> None:
    """Also inside another message: fields that layouts got later are told where they are used."""
    told = Orders(order=ORDER, epoch=3).to_json()["order"]["layout"]
    assert told == ORDER.layout.to_dict()
    assert "cp_method" not in told
    ring = replace(ORDER, layout=Layout(cp=2, cp_method="ring", cp_layers="1 2"))
    assert ring.to_json()["layout"]["cp_layers"] == "1 2"
    assert through_json(Orders(order=ring, epoch=3)).order == ring


def test_every_message_survives_json() -> None:
    """Enums, layouts, tuples and nested messages come back as they were."""
    transition = Transition(
        run=RUN,
        incarnation="i",
        attempt=1,
        switch_id="p",
        epoch=3,
        state=SwitchState.LOADED,
        step=20,
        elapsed_s=1.5,
        layout=Layout(pp=2),
        ranks=(0, 1),
        evidence={"probe_before": 2.0},
    )
    note = SwitchNote(
        switch_id="p",
        epoch=1,
        point="B",
        old_layout=Layout(),
        old_ranks=(0,),
        began_s=1.0,
        boot="b",
        evidence={"probe_before": 2.0, "checkpoint": "on disk before the switch"},
    )
    for message in (Orders(order=ORDER, epoch=3), Orders(), transition, note):
        assert through_json(message) == message


def test_a_switch_s_id_is_called_plan_on_the_wire() -> None:
    """Hooks and daemons of before read and write that name; the Python name is not a field."""
    data = Orders(order=ORDER).to_json()["order"]
    assert data["plan"] == "p"
    assert "switch_id" not in data
    renamed = {key: value for key, value in data.items() if key != "plan"} | {"switch_id": "p"}
    with pytest.raises(InputInvalid, match="the field 'plan' is missing"):
        Order.from_json(renamed)
    shown = as_json(ORDER)
    assert {**shown, "layout": None} == {**json.loads(json.dumps(data)), "layout": None}


def test_a_field_from_a_newer_protocol_is_ignored() -> None:
    """A hook lives for weeks; the daemon beside it is upgraded."""
    data = ORDER.to_json() | {"colour": "green"}
    assert Order.from_json(data) == ORDER


def test_a_missing_field_is_named() -> None:
    """The sentence says which message and which field."""
    data = ORDER.to_json()
    del data["layout"]
    with pytest.raises(InputInvalid, match="Order: the field 'layout' is missing"):
        Order.from_json(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "3"),
        ("epoch", True),
        ("ranks", 2),
        ("ranks", [0, "1"]),
        ("layout", [1]),
        ("layout", {"tp": 0}),
        ("mode", "teleport"),
        ("run", None),
    ],
)
def test_a_field_of_the_wrong_type_is_refused(field: str, value: object) -> None:
    """Nothing is guessed from a value of another type."""
    with pytest.raises(InputInvalid):
        Order.from_json(ORDER.to_json() | {field: value})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_hostile_json_ends_in_one_kind_of_error(data: Any) -> None:
    """Whatever arrives, the reader either understands it or says so in one sentence."""
    for kind in (Register, Progress):
        with pytest.raises(InputInvalid):
            kind.from_json(data)


@given(st.text(max_size=90))
def test_any_text_is_taken_for_a_name_that_the_daemon_takes(text: str) -> None:
    """A legal name stays as it is; another one becomes a legal one."""
    name = ranges.as_name(text)
    assert ranges.NAME.fits(name)
    assert name == text or not ranges.NAME.fits(text)


@given(st.text())
def test_a_cleaned_text_is_one_line_that_no_terminal_obeys(text: str) -> None:
    """Whatever is printed or logged can be encoded, and cleaning twice is cleaning once."""
    said = ranges.clean(text)
    said.encode()
    assert len(said) == len(text)
    assert ranges.clean(said) == said
    assert not set(said) & {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e", "\u2066"}
