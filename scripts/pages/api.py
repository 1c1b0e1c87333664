"""docs/reference/api.md: every call of the HTTP API, and the objects that go in and out."""

from typing import Any

from scripts.pages.markdown import code, page, table
from wattmesh.controller.api.app import CALLS, CallSpec
from wattmesh.controller.api.openapi import describe

INTRODUCTION = """JSON over the daemon's Unix socket; who calls is known by the socket's peer
credentials. *owner*: the uid that first registered the run, or an operator. `GET /v1/openapi.json`
gives the same description for programs. Times are ISO 8601 in UTC, an unknown value is `null`, and
within one version keys are only ever added."""


def _name(kind: type | None) -> str:
    return f"[`{kind.__name__}`](#{kind.__name__.lower()})" if kind else ""


def _queries(call: CallSpec) -> str:
    return "; ".join(f"`{name}`: {meaning}" for name, meaning in call.query)


def _kind(schema: dict[str, Any]) -> str:
    """Write a JSON schema in a word or two."""
    if "anyOf" in schema:
        return " or ".join(_kind(arm) for arm in schema["anyOf"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    return str(schema.get("format") or schema.get("type") or "any")


def _object(name: str, schema: dict[str, Any]) -> str:
    rows = (
        (code(key), _kind(kind), kind.get("description", ""))
        for key, kind in schema.get("properties", {}).items()
    )
    about = schema.get("description", "")
    return f"### {name}\n\n{about}\n\n{table(('key', 'kind', 'meaning'), rows)}"


def render() -> str:
    """Write the page."""
    rows = (
        (
            code(f"{call.method} {call.path}"),
            call.who,
            call.summary,
            _queries(call),
            _name(call.body),
            _name(call.answer),
        )
        for call in CALLS
    )
    head = ("call", "who", "what it is for", "parameters", "sends", "gets")
    schemas = describe(CALLS)["components"]["schemas"]
    objects = (_object(name, schema) for name, schema in sorted(schemas.items()))
    return page("HTTP API", INTRODUCTION, table(head, rows), "## Objects", *objects)
