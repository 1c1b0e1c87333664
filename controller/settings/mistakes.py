"""Mistakes in the settings as sentences: what was written, and what is allowed.

Invariant: no sentence mentions Python or the library that found the mistake.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

type_words = {
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
}

GONE = {
    "policy.caution": "plans take every hour at its forecast",
}
"""Settings that earlier versions had, and a clause that says what holds instead."""

Mistake = tuple[str, str]
"""(key path, what is wrong and what is allowed)."""


def quoted(value: object) -> str:
    """Show a value as the file has it: text in quotes, true, 5, a table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}..."'
    return str(value)


def dotted(place: Iterable[int | str]) -> str:
    """Write a place in the file as people do: `carbon.accounting.zone`, `budget.x[0]`."""
    path = ""
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def as_mistakes(error: ValidationError, root: type[BaseModel]) -> list[Mistake]:
    """Turn pydantic's findings into sentences."""
    return [(dotted(each["loc"]), sentence(each, root)) for each in error.errors()]


def sentence(found: ErrorDetails, root: type[BaseModel]) -> str:
    """Say one finding in one sentence."""
    kind, value, limits = found["type"], found["input"], found.get("ctx", {})
    special: dict[str, Callable[[], str]] = {
        "missing": lambda: f"is missing{_meaning(found['loc'], root)}",
        "extra_forbidden": lambda: _unknown(found["loc"], root),
        "value_error": lambda: str(limits["error"]),
        "literal_error": lambda: f"{quoted(value)} is not one of {_choices(limits)}",
        "enum": lambda: f"{quoted(value)} is not one of {_choices(limits)}",
        "greater_than": lambda: f"{quoted(value)} must be above {_number(limits['gt'])}",
        "greater_than_equal": lambda: f"{quoted(value)} must be at least {_number(limits['ge'])}",
        "less_than": lambda: f"{quoted(value)} must be below {_number(limits['lt'])}",
        "less_than_equal": lambda: f"{quoted(value)} must be at most {_number(limits['le'])}",
    }
    if kind in special:
        return special[kind]()
    words = type_words.get(kind)
    return f"{quoted(value)} is not {words}" if words else f"{quoted(value)}: {found['msg']}"


def _number(value: object) -> str:
    """Write a limit without a needless `.0`."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _choices(limits: dict[str, Any]) -> str:
    """List what is allowed without the library's quotes."""
    return str(limits["expected"]).replace("'", "").replace(" or ", ", ")


def _meaning(place: tuple[int | str, ...], root: type[BaseModel]) -> str:
    model = table_at(root, place[:-1])
    known = model.model_fields.get(str(place[-1])) if model else None
    return f": {' '.join(known.description.split())}" if known and known.description else ""


def _unknown(place: tuple[int | str, ...], root: type[BaseModel]) -> str:
    """Say that a setting is gone, or name the known key that was probably meant."""
    if (gone := GONE.get(dotted(place))) is not None:
        return f"is gone: {gone}; delete this line"
    model = table_at(root, place[:-1])
    known = sorted(model.model_fields) if model else []
    near = get_close_matches(str(place[-1]), known, n=1)
    if near:
        return f"is not a setting; did you mean {dotted((*place[:-1], near[0]))}?"
    return f"is not a setting; allowed here: {', '.join(known)}"


def table_at(root: type[BaseModel], place: Iterable[int | str]) -> type[BaseModel] | None:
    """Find the model of the table at `place`; None where there is none."""
    kind: Any = root
    for part in place:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            known = kind.model_fields.get(str(part))
            kind = known.annotation if known else None
        else:
            # A table of tables (`runs.<name>`): the name chooses nothing.
            kind = next(iter(get_args(kind)[1:]), None)
        kind = _optional(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _optional(kind: Any) -> Any:
    """Give the X of `X | None`."""
    arms = [each for each in get_args(kind) if each is not type(None)]
    return arms[0] if type(None) in get_args(kind) else kind
