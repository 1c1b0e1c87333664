"""Reads what a dataclass's docstring says of each field, for the published description. Pure.

It reads the entries below `Attributes:` (`name: text`, `one, other: text`), and fields that follow
another within a text (``. `name`: text``). Invariant: the words are those of the docstring; None
becomes null, as JSON has it.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

HEADING = "\n\nAttributes:\n"
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ", re.MULTILINE)
_WITHIN = re.compile(r"(?<=[.;])\s+(`\w+`(?:, `\w+`)*): ")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDocs:
    """What a docstring says. `about`: of the whole object. `of`: of each field by its name."""

    about: str
    of: dict[str, str]


def field_docs(kind: type) -> FieldDocs:
    """Read the docstring of a dataclass; a name below `Attributes:` need not be a field."""
    about, _, entries = inspect.cleandoc(kind.__doc__ or "").partition(HEADING)
    known = {each.name for each in fields(kind)}
    (_, said), *inline = _split_by_fields("", about, known)
    found = dict(inline)
    words = _ENTRY.split(entries)[1:]
    for names, text in zip(words[::2], words[1::2], strict=True):
        for name, part in _split_by_fields(names, text, known):
            found.update(dict.fromkeys(name.split(", "), part))
    return FieldDocs(about=_plain(said), of={name: _plain(text) for name, text in found.items()})


def _split_by_fields(names: str, text: str, known: set[str]) -> Iterator[tuple[str, str]]:
    """Split a text where it goes on with other fields: (names, what is said of them)."""
    begin = 0
    for at in _WITHIN.finditer(text):
        others = at[1].replace("`", "")
        if known.issuperset(others.split(", ")):
            yield names, text[begin : at.start()]
            names, begin = others, at.end()
    yield names, text[begin:]


def _plain(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split())).rstrip(";")
