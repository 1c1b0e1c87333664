"""Reads a parsed TOML table strictly and collects every mistake.

Invariant: a `Table` never raises on bad content; it records (key path, what is allowed) and returns
a placeholder, so that the rest of the file is checked too. The caller raises once, at the end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=StrEnum)

_REQUIRED: Any = object()
_LARGEST = 1e30
_SHOWN = 60


@dataclass(slots=True)
class Table:
    """One table of a file, with its key path and the shared list of mistakes."""

    values: Mapping[str, Any]
    path: str
    mistakes: list[tuple[str, str]]
    _seen: set[str] = field(default_factory=set)

    def note(self, key: str, allowed: str) -> None:
        """Record one mistake."""
        self.mistakes.append((self.where(key), allowed))

    def where(self, key: str) -> str:
        """Return the full path of `key`."""
        return f"{self.path}.{key}" if self.path else key

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Read a string of one line that is not blank."""
        value = self._get(key, default)
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value
        if value is not default:
            self.note(key, f"{_shortened(value)} must be a text of one line")
        return default if isinstance(default, str) else ""

    def number(self, key: str, default: float = _REQUIRED, *, above: float | None = None) -> float:
        """Read a finite number >= 0, or > `above` where that is given."""
        value = self._get(key, default)
        if value is default:
            return 1.0 if default is _REQUIRED else default
        limit = "at least 0" if above is None else f"above {above:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.note(key, f"{_shortened(value)} must be a number {limit}")
        elif not (math.isfinite(value) and (value >= 0 if above is None else value > above)):
            self.note(key, f"{value} must be {limit} and finite")
        elif value > _LARGEST:
            self.note(key, f"{_shortened(value)} is beyond any real value ({_LARGEST:g})")
        else:
            return float(value)
        return 1.0

    def whole(self, key: str, default: int = _REQUIRED, *, least: int = 0) -> int:
        """Read an integer >= `least`; 2.0e11 counts as one."""
        value = self._get(key, default)
        if value is default:
            return max(least, 1) if default is _REQUIRED else default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.note(key, f"{_shortened(value)} must be a whole number, at least {least}")
        elif not least <= value < 1 << 63:
            self.note(key, f"{_shortened(value)} must be at least {least} and below 2^63")
        else:
            return value
        return max(least, 1)

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self._get(key, default)
        if isinstance(value, bool):
            return value
        self.note(key, f"{_shortened(value)} must be true or false")
        return default

    def choice(self, key: str, kind: type[Choice], default: Choice) -> Choice:
        """Read a member of an enum."""
        value = self._get(key, default)
        if isinstance(value, str) and value in tuple(kind):
            return kind(value)
        self.note(key, f"{_shortened(value)} is not one of {', '.join(kind)}")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of strings; empty when absent."""
        value = self._get(key, [])
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        self.note(key, f"{_shortened(value)} must be a list of texts")
        return ()

    def words(self, key: str, names: Sequence[str], allowed: Sequence[str]) -> dict[str, str]:
        """Read a table from some of `names` to one of the `allowed` words; empty when absent."""
        inner = self.table(key, required=False)
        found = {}
        for name in names:
            if name in inner.values:
                word = inner.text(name)
                if word in allowed:
                    found[name] = word
                elif word:
                    inner.note(name, f"{_shortened(word)} is not one of {', '.join(allowed)}")
        inner.finish()
        return found

    def table(self, key: str, *, required: bool = True) -> "Table":
        """Read a sub-table; empty when absent or not a table."""
        value = self._get(key, _REQUIRED if required else {})
        if not isinstance(value, Mapping):
            if value is not _REQUIRED:
                self.note(key, f"{_shortened(value)} must be a table")
            value = {}
        return Table(value, self.where(key), self.mistakes)

    def tables(self, key: str) -> "list[Table]":
        """Read a list of at least one table (`[[key]]`)."""
        value = self._get(key, _REQUIRED)
        if not isinstance(value, list) or not value:
            if value is not _REQUIRED:
                self.note(key, f"must be given as [[{key}]], once or more")
            return []
        found = []
        for index, each in enumerate(value):
            path = f"{self.where(key)}[{index}]"
            if isinstance(each, Mapping):
                found.append(Table(each, path, self.mistakes))
            else:
                self.mistakes.append((path, f"{_shortened(each)} must be a table"))
        return found

    def finish(self, also: Sequence[str] = ()) -> None:
        """Record every key that was not read; `also`: legal keys that are not used here."""
        legal = self._seen.union(also)
        for key in self.values:
            if key not in legal:
                self.note(key, f"is not known here; allowed: {', '.join(sorted(legal))}")

    def _get(self, key: str, default: Any) -> Any:
        """The raw value, or the default; records a required key that is missing."""
        self._seen.add(key)
        if key not in self.values and default is _REQUIRED:
            self.note(key, "is missing")
        return self.values.get(key, default)


def _shortened(value: object) -> str:
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
