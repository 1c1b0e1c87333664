"""The published description says of each field what its docstring says, and of nothing else."""

import inspect
from dataclasses import dataclass, fields

from wattmesh.controller.api import openapi
from wattmesh.controller.api.app import CALLS
from wattmesh.controller.api.field_docs import field_docs
from wattmesh.controller.views import Problem


@dataclass(frozen=True)
class Reading:
    """One reading; None: there is none. `at`: when it was read.

    Attributes:
        low, high: bounds in watts; None
            when unknown; `from`: no field.
        source: who read it. `flags`: of it; `node`: where.
        colour: this is no field.
    """

    at: str
    low: float
    high: float
    source: str
    flags: str
    node: str


def _described() -> dict[str, type]:
    """Give every type that the description names, wherever it is defined."""
    named = openapi.describe(CALLS)["components"]["schemas"].keys()
    found: dict[str, type] = {}
    todo = [kind for call in CALLS for kind in (call.body, call.answer, Problem) if kind]
    while todo:
        kind = todo.pop()
        found[kind.__name__] = kind
        beside = vars(inspect.getmodule(kind)).items()
        todo += [each for name, each in beside if name in named - found.keys()]
    return found


def _strangers(kind: type) -> set[str]:
    """Name what the docstring describes as a field and the type does not have."""
    return field_docs(kind).of.keys() - {each.name for each in fields(kind)}


def test_every_field_gets_its_own_words() -> None:
    """Entries, shared entries and fields within a text are told apart; None is null in JSON."""
    docs = field_docs(Reading)
    bounds = "bounds in watts; null when unknown; `from`: no field."
    assert docs.about == "One reading; null: there is none."
    assert {name: docs.of[name] for name in ("at", "low", "high", "source", "flags", "node")} == {
        "at": "when it was read.",
        "low": bounds,
        "high": bounds,
        "source": "who read it.",
        "flags": "of it",
        "node": "where.",
    }


def test_docstrings_of_answers_name_fields_only() -> None:
    """An entry for a field that was renamed or removed is found, in every type described."""
    kinds = _described()
    assert kinds.keys() == openapi.describe(CALLS)["components"]["schemas"].keys()
    assert {name: _strangers(kind) for name, kind in kinds.items() if _strangers(kind)} == {}


def test_a_stranger_is_found() -> None:
    """Sabotaged twin: the docstring above describes a field that its type does not have."""
    assert _strangers(Reading) == {"colour"}


def test_the_description_says_what_fields_mean() -> None:
    """A client that reads the description learns what a key means, also where it has a type."""
    schemas = openapi.describe(CALLS)["components"]["schemas"]
    assert schemas["CarbonLine"]["properties"]["low"]["description"].startswith("the slot with")
    assert "Attributes" not in str(schemas)
