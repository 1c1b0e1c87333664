r"""The user's declarations about a source: layout rules, renames, tied names, slots. TOML.

    [[rule]]    match = "attention.wqkv.weight$"  kind = "sub_blocks"  dim = 0  widths = [[...]]
    [[rename]]  match = '^stage1\.layers\.(\d+)\.'  add = 12  to = "layers.{0}."
    [[tied]]    alias = "lm_head.weight"  name = "embed.weight"
    [[slots]]   match = "..."  states = ["momentum_buffer"]
    [[numbered]] names = ["embed.weight", "norm.weight"]  optimizer = "optim."
    [[average]] prefix = "ema."  slot = "ema"

A rename's `add` is added to the number in its first group, so that a pipeline stage's local layer
numbers become global ones.

Invariant: nothing is guessed from names; an undeclared tensor is taken as it is stored.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.named_file import SETTINGS_BYTES, read_named
from wattmesh.reconfig.universal.index import rules
from wattmesh.reconfig.universal.index.rules import Replicate, Rule
from wattmesh.toml_text import read_toml


@dataclass(frozen=True, slots=True)
class Rename:
    """A rename of matching tensor names.

    Attributes:
        match: pattern that is searched for; only the matching part is replaced.
        to: a format string of the groups ("layers.{0}.").
        add: added to the first group, which must then be an integer.
    """

    match: re.Pattern[str]
    to: str
    add: int = 0

    def __call__(self, name: str) -> str:
        """Return the new name; the old one where the pattern does not match."""
        return self.match.sub(self._replacement, name)

    def _replacement(self, found: re.Match[str]) -> str:
        groups = [each or "" for each in found.groups()]
        if self.add:
            groups[0] = str(int(groups[0]) + self.add)
        return self.to.format(*groups)


@dataclass(frozen=True, slots=True)
class Numbered:
    """Names of an optimizer's numbered parameters.

    Attributes:
        names: the source's own, by number from 0 on.
        optimizer: prefix of its keys; None for the only one.
    """

    names: tuple[str, ...]
    optimizer: str | None = None


@dataclass(frozen=True, slots=True)
class Average:
    """Tensors that are averages (EMA) of the model's: `<prefix><name>` is its `slot`."""

    prefix: str
    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """All declarations about one source; the default declares nothing.

    Attributes:
        rules: (pattern, rule): the first match of a renamed name applies to all its states.
        renames: applied one after the other.
        tied: alias -> name, after renaming.
        slots: (pattern, states): parameters that correctly have just these optimizer slots.
        numbered: names of parameters that an optimizer knows by number.
        averages: of the model's tensors, by prefix.
    """

    rules: tuple[tuple[re.Pattern[str], Rule], ...] = ()
    renames: tuple[Rename, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    slots: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = ()
    numbered: tuple[Numbered, ...] = ()
    averages: tuple[Average, ...] = ()

    def name(self, name: str) -> str:
        """Rename a tensor of the source."""
        for rename in self.renames:
            name = rename(name)
        return name

    def rule(self, name: str) -> Rule:
        """The rule of a logical name."""
        return next((rule for match, rule in self.rules if match.search(name)), Replicate())

    def states(self, name: str) -> frozenset[str] | None:
        """The slots declared for a logical name; None when none are."""
        return next((states for match, states in self.slots if match.search(name)), None)

    def numbered_names(self, optimizer: str) -> tuple[str, ...] | None:
        """The names of an optimizer's numbered parameters; None when none are declared."""
        mine = (each.names for each in self.numbered if each.optimizer in (None, optimizer))
        return next(mine, None)

    def check_used(self, names: Iterable[str]) -> None:
        """Refuse declarations that match nothing, because they were meant for another source.

        Args:
            names: every logical name of the source.

        Raises:
            InputInvalid: a pattern or tied name that no tensor has.
        """
        known = set(names)
        patterns = [match for match, _ in (*self.rules, *self.slots)]
        unused = [match.pattern for match in patterns if not any(map(match.search, known))]
        unused += [name for name in self.tied.values() if name not in known]
        if unused:
            raise InputInvalid(f"the declaration {unused[0]!r} matches no tensor of the source.")


def read(path: Path) -> Declared:
    """Read declarations from a TOML file.

    Raises:
        InputInvalid: it cannot be read or is invalid; the message names the table.
    """
    try:
        document = read_toml(read_named(path, SETTINGS_BYTES).decode())
    except (OSError, ValueError) as error:
        raise InputInvalid(f"{path}: cannot be read ({error}).") from error
    return from_document(document, str(path))


def from_document(document: Mapping[str, Any], where: str) -> Declared:
    """Read declarations from parsed TOML.

    Raises:
        InputInvalid: it is invalid; `where` names the file in the message.
    """
    if unknown := sorted(set(document) - _TABLES):
        raise InputInvalid(
            f"{where}: there is no [[{unknown[0]}]]; known are {', '.join(sorted(_TABLES))}."
        )
    try:
        return Declared(
            rules=tuple(_rule(table) for table in document.get("rule", ())),
            renames=tuple(_rename(table) for table in document.get("rename", ())),
            tied={str(each["alias"]): str(each["name"]) for each in document.get("tied", ())},
            slots=tuple(
                (re.compile(each["match"]), frozenset(map(str, each["states"])))
                for each in document.get("slots", ())
            ),
            numbered=tuple(
                Numbered(tuple(map(str, each["names"])), each.get("optimizer"))
                for each in document.get("numbered", ())
            ),
            averages=tuple(
                Average(str(each["prefix"]), str(each["slot"]))
                for each in document.get("average", ())
            ),
        )
    except KeyError as error:
        raise InputInvalid(f"{where}: a table lacks the key {error}.") from error
    except (TypeError, AttributeError, re.error) as error:
        raise InputInvalid(f"{where}: {error}.") from error


_TABLES = frozenset({"rule", "rename", "tied", "slots", "numbered", "average"})


def _rule(table: Mapping[str, Any]) -> tuple[re.Pattern[str], Rule]:
    rest = {key: value for key, value in table.items() if key != "match"}
    return re.compile(table["match"]), rules.from_json(rest)


def _rename(table: Mapping[str, Any]) -> Rename:
    rename = Rename(re.compile(table["match"]), str(table["to"]), int(table.get("add", 0)))
    if rename.add and rename.match.groups < 1:
        raise InputInvalid(f"rename {rename.match.pattern!r}: `add` needs a group, the number.")
    return rename
