"""Read the settings file, check it as a whole, and name every mistake at once.

Invariant: a `Settings` that `load` returned has been checked against itself and against the files
it names; no caller need check it again.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattmesh.controller.settings.checks import cross_check
from wattmesh.controller.settings.mistakes import Mistake, as_mistakes
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.settings.paths_and_times import base_folder
from wattmesh.controller.settings.secrets import of_others
from wattmesh.errors import SettingsInvalid
from wattmesh.named_file import SETTINGS_BYTES, read_named
from wattmesh.toml_text import NotToml, read_toml

__all__ = ["Settings", "load", "parse"]

Place = tuple[int | str, ...]
"""Path of a key in the file, from the outermost table inwards."""


def load(path: Path, *, by_a_person: bool = False) -> Settings:
    """Read and check a settings file.

    Args:
        path: the file.
        by_a_person: who is not the service: secrets that only the service may read are in order.

    Raises:
        SettingsInvalid: it cannot be read, or has mistakes; all of them are named.
    """
    token = of_others.set(by_a_person)
    try:
        return parse(_read(path), where=path)
    finally:
        of_others.reset(token)


def parse(text: str, *, where: Path) -> Settings:
    """Check the text of a settings file; relative paths in it count from `where`'s folder.

    Raises:
        SettingsInvalid: every mistake, with its key path and what is allowed.
    """
    try:
        raw = read_toml(text)
    except NotToml as error:
        raise SettingsInvalid(str(where), [("file", f"is not TOML: {error}")]) from error
    token = base_folder.set(where.absolute().parent)
    try:
        settings, mistakes = _validate(raw)
    finally:
        base_folder.reset(token)
    if mistakes:
        raise SettingsInvalid(str(where), mistakes)
    return settings


def _read(path: Path) -> str:
    """Read the file, or say how to get one."""
    try:
        return read_named(path, SETTINGS_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        then = "`wattmesh settings sample` prints one to start from"
        if isinstance(error, PermissionError):
            then = "run this as root, or as the daemon's user"
        hint = f"cannot be read ({why}); {then}"
        raise SettingsInvalid(str(path), [("file", hint)]) from error


def _validate(raw: dict[str, Any]) -> tuple[Settings, list[Mistake]]:
    """Check the types, then what only several keys together can show; give all mistakes.

    Keys with a mistake are removed and the rest is checked again, so that no mistake hides
    another.
    """
    mistakes: list[Mistake] = []
    while True:
        try:
            settings = Settings(**raw)
        except ValidationError as error:
            mistakes += _new(as_mistakes(error, Settings), mistakes)
            raw = _without(raw, [tuple(each["loc"]) for each in error.errors()])
        else:
            return settings, mistakes + _new(list(cross_check(settings)), mistakes)


def _new(found: list[Mistake], known: list[Mistake]) -> list[Mistake]:
    """Leave out mistakes that only follow from one that was named before."""
    named = [key for key, _ in known]
    return [
        (key, text)
        for key, text in found
        if not any(each == key or each.startswith(f"{key}.") for each in named)
    ]


def _without(raw: Mapping[str, Any], places: Iterable[Place]) -> dict[str, Any]:
    """Copy `raw` without the keys at `places`; where a key is missing, without its table."""
    copy = deepcopy(dict(raw))
    for place in places:
        _remove(copy, place)
    return copy


def _remove(table: dict[str, Any], place: Place) -> None:
    """Remove the deepest existing key on the way to `place`."""
    first, rest = place[0], place[1:]
    inner = table.get(str(first))
    if rest and isinstance(inner, dict) and str(rest[0]) in inner:
        _remove(inner, rest)
    else:
        table.pop(str(first), None)
