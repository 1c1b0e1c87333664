"""The published description of the API (OpenAPI 3.1), made from the table of routes. Pure.

Invariant: what is described is what is served; schemas and ranges come from the types that are read
and written, never from a second list.
"""

import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, get_type_hints

import wattmesh
from wattmesh.controller.api.field_docs import FieldDocs, field_docs
from wattmesh.controller.views import Problem
from wattmesh.reconfig.ranges import Range
from wattmesh.reconfig.wire.messages import json_name

PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}


class Described(Protocol):
    """What a call must say of itself."""

    @property
    def method(self) -> str:
        """GET or POST."""
        ...

    @property
    def path(self) -> str:
        """Its address."""
        ...

    @property
    def summary(self) -> str:
        """What it is for."""
        ...

    @property
    def who(self) -> str:
        """Who may call it."""
        ...

    @property
    def body(self) -> type | None:
        """What is sent."""
        ...

    @property
    def answer(self) -> type | None:
        """What comes back."""
        ...

    @property
    def query(self) -> tuple[tuple[str, str], ...]:
        """Its parameters."""
        ...


def describe(calls: Iterable[Described]) -> dict[str, Any]:
    """Write the whole description."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "wattmesh",
            "version": wattmesh.__version__,
            "description": (
                "Unix socket; the caller is known by its peer credentials. Agents of other nodes: "
                "TCP with TLS and a token."
            ),
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(call: Described, schemas: dict[str, Any]) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", call.path)
    ]
    in_query = [
        {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
        for name, meaning in call.query
    ]
    operation: dict[str, Any] = {
        "summary": call.summary,
        "description": f"Who may call it: {call.who}.",
        "parameters": in_path + in_query,
        "responses": {
            "200": _content("done", _schema_reference(call.answer, schemas)),
            "default": _content("not done, and why", _schema_reference(Problem, schemas)),
        },
    }
    if call.method == "POST":
        operation["requestBody"] = _content("", _schema_reference(call.body, schemas)) | {
            "required": True
        }
    return operation


def _content(meaning: str, schema: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"content": {"application/json": {"schema": schema}}}
    return content | ({"description": meaning} if meaning else {})


def _schema_reference(kind: type | None, schemas: dict[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {"type": "object"}
    if kind.__name__ not in schemas:
        schemas[kind.__name__] = {}
        hints, docs = get_type_hints(kind, include_extras=True), field_docs(kind)
        needed = [
            json_name(each.name)
            for each in fields(kind)
            if each.default is MISSING and each.default_factory is MISSING
        ]
        schemas[kind.__name__] = {
            "type": "object",
            "description": docs.about,
            "properties": {
                json_name(each.name): _schema(hints[each.name], schemas) | _meaning(docs, each.name)
                for each in fields(kind)
            },
            "required": needed,
        }
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _meaning(docs: FieldDocs, name: str) -> dict[str, str]:
    return {"description": docs.of[name]} if name in docs.of else {}


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    origin, arms = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _within(_schema(arms[0], schemas), arms[1])
    if origin in (Union, types.UnionType):
        known = [_schema(arm, schemas) for arm in arms if arm is not type(None)]
        return {"anyOf": [*known, {"type": "null"}]}
    if origin in (tuple, dict, Mapping):
        return _container_schema(origin, arms, schemas)
    if is_dataclass(kind):
        return _schema_reference(kind if isinstance(kind, type) else type(kind), schemas)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [each.value for each in kind]}
    return PLAIN.get(kind, {})


def _container_schema(
    origin: Any, arms: tuple[Any, ...], schemas: dict[str, Any]
) -> dict[str, Any]:
    if origin is tuple:
        return {"type": "array", "items": _schema(arms[0], schemas)}
    if arms[-1] is Any:
        return {"type": "object"}
    return {"type": "object", "additionalProperties": _schema(arms[1], schemas)}


def _within(schema: dict[str, Any], limit: Range) -> dict[str, Any]:
    described = dict(limit.described)
    if schema.get("type") == "object":
        described["maxProperties"] = described.pop("maxItems")
    return {**schema, **described}
