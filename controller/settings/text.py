"""The settings written out: the sample file and the list of keys for the manual. Pure.

Invariant: the sample is valid, sets nothing but defaults and one example signal, and names every
key.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from wattmesh.controller.settings.model import Settings

EXAMPLE_NAMES = {"runs": "llama-8b", "budget": "cluster"}
"""What the sample calls the tables that the operator names."""

Form = Literal["one", "named", "list"]
"""One table, tables that the operator names, or a table that may be repeated."""

IN_MANUAL: dict[Form, str] = {"one": "", "named": ".<name>", "list": "[]"}

KINDS = {
    "str": "text",
    "bool": "true | false",
    "int": "whole number",
    "float": "number",
    "Path": "path",
    "AwareDatetime": "time",
    "Mode": "observe | advise | act",
}
"""How the manual calls the types of keys."""

HEADER = """\
# Settings of wattmesh. `wattmesh settings check FILE` names every mistake; SIGHUP reloads.
# A key behind `#` is not set; the line shows its default or an example.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDoc:
    """One key for the manual. `default`: as the file would write it; "" when it must be set."""

    path: str
    kind: str
    default: str
    meaning: str


def keys() -> tuple[KeyDoc, ...]:
    """List every key of the file with its meaning.

    Tables that the operator names stand as `<name>`, those that may be repeated as `[]`.
    """
    return tuple(_keys(Settings, ""))


def sample() -> str:
    """Write a settings file to start from."""
    return "\n".join([HEADER, *_lines(Settings, "", commented=False)]) + "\n"


def _keys(model: type[BaseModel], prefix: str) -> Iterator[KeyDoc]:
    for name, info in model.model_fields.items():
        table, form = _table(info)
        path = f"{prefix}{name}"
        if table is not None:
            yield from _keys(table, f"{path}{IN_MANUAL[form]}.")
        else:
            yield KeyDoc(
                path=path, kind=_kind(info), default=_default(info), meaning=_meaning(info)
            )


def _lines(model: type[BaseModel], prefix: str, *, commented: bool) -> Iterator[str]:
    """Write one table's own keys first, then the tables in it."""
    tables: list[tuple[str, Form, type[BaseModel], bool]] = []
    for name, info in model.model_fields.items():
        table, form = _table(info)
        if table is not None:
            path = f"{prefix}{name}"
            # Tables that the operator names, and optional tables, are examples only; except for
            # the signal, without which nothing could be shown.
            optional = form != "one" or (info.default is None and path != "carbon")
            path += f".{EXAMPLE_NAMES[name]}" if form == "named" else ""
            tables.append((path, form, table, optional or commented))
            continue
        yield from wrap(_meaning(info), 98, initial_indent="# ", subsequent_indent="# ")
        yield _line(name, info, commented=commented)
    for path, form, table, example in tables:
        own = any(_table(info)[0] is None for info in table.model_fields.values())
        if own:
            yield ""
            yield f"# {' '.join((table.__doc__ or '').split())}"
            head = f"[[{path}]]" if form == "list" else f"[{path}]"
            yield f"# {head}" if example else head
        yield from _lines(table, f"{path}.", commented=example)


def _line(name: str, info: FieldInfo, *, commented: bool) -> str:
    """Write one key: a default or a required example is set, the rest is commented out."""
    value = _default(info)
    shown = _example(info) if value in ("", '""') and info.examples else value or '""'
    needed = info.is_required()
    # Defaults that depend on the machine (systemd's folders) are shown, never set.
    live = (needed or info.default_factory is None) and (bool(value) or needed)
    live = live and (needed or shown == value)
    return f"{name} = {shown}" if live and not commented else f"# {name} = {shown}"


def _table(info: FieldInfo) -> tuple[type[BaseModel] | None, Form]:
    """Give the model and the form of a field that is a table; (None, "one") for other fields."""
    kinds = [info.annotation, *get_args(info.annotation)]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if get_origin(info.annotation) is tuple:
                return kind, "list"
            return kind, "named" if str in get_args(info.annotation) else "one"
    return None, "one"


def _kind(info: FieldInfo) -> str:
    leaves = tuple(_leaves(info.annotation))
    if all(isinstance(each, str) for each in leaves):
        return " | ".join(leaves)
    if "tuple" in str(info.annotation):
        return "list"
    if "dict" in str(info.annotation):
        return "table"
    return KINDS[next(each.__name__ for each in leaves if isinstance(each, type))]


def _leaves(kind: Any) -> Iterator[Any]:
    """Unpack unions, literals and annotations down to plain types and allowed words."""
    arms = [each for each in get_args(kind) if each is not type(None)]
    if not arms:
        yield kind
    for arm in arms:
        yield from _leaves(arm)


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True, validated_data={})
    return "" if value is None or value is PydanticUndefined else _toml(value)


def _example(info: FieldInfo) -> str:
    return _toml(info.examples[0]) if info.examples else '""'


def _toml(value: Any) -> str:
    """Write one value as TOML; a time bare, other text quoted."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    text = str(value)
    bare = len(text) == 20 and text[10] == "T" and text.endswith("Z")
    return text if bare else json.dumps(text, ensure_ascii=False)


def _meaning(info: FieldInfo) -> str:
    return " ".join((info.description or "").split())
