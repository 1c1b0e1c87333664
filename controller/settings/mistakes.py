"""Mistakes in the settings as sentences: what was written, and what is allowed.

Invariant: no sentence mentions Python or the library that found the mistake.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
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

EXAMPLE_TIME = "2026-12-01T00:00:00Z"

base_folder: ContextVar[Path] = ContextVar("base_folder", default=Path("/"))
"""Folder that relative paths of the file being read count from."""


CREDENTIAL = "credential:"
"""Prefix of a credential that the service manager loads (systemd.exec(5), LoadCredential=)."""

NOWHERE = Path("/run/credentials/nowhere")
"""The folder of credentials in a process that has none; it does not exist."""


def credentials_folder() -> Path:
    """Give the folder in which the service manager put this process's credentials."""
    return Path(os.environ.get("CREDENTIALS_DIRECTORY") or NOWHERE)


def as_path(value: object) -> object:
    """Read a path: `~` is the home folder, a relative one counts from the file's folder.

    `credential:NAME` is a credential that the service manager has loaded for this process.
    """
    if not isinstance(value, str):
        return value
    if not value or "\0" in value:
        raise ValueError(f"{quoted(value)} is not a path")
    if value.startswith(CREDENTIAL):
        name = value.removeprefix(CREDENTIAL)
        if not re.fullmatch("[A-Za-z0-9_.-]{1,255}", name) or name.strip(".") == "":
            raise ValueError(f"{quoted(value)} names no credential; write credential:NAME")
        return credentials_folder() / name
    return base_folder.get() / Path(value).expanduser()


def as_time(value: object) -> object:
    """Read a moment from TOML's own date-time or from text; it must carry a time zone."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{quoted(value)} is not a time; write {EXAMPLE_TIME}") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                f"{value.isoformat()} has no time zone; write {value.isoformat()}Z for UTC"
            )
        return value
    if isinstance(value, date):
        raise ValueError(f"{value.isoformat()} has no hour; write {value.isoformat()}T00:00:00Z")
    raise ValueError(f"{quoted(value)} is not a time; write {EXAMPLE_TIME}")


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
