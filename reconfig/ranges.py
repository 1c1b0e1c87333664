"""What the numbers, texts and lists of the wire may be, each with its unit: the one table.

Types of `wattmesh.reconfig.wire` name these; whoever reads a message checks them, and the
published description of the API tells them. What a person wrote (`Sentence`) is cut to its length,
never refused: no report is lost because its reason is long.

Invariant: every number is finite and fits the journal's columns on every database; no text has a
character that a database, a screen or JSON cannot bear.
"""

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any

from wattmesh.errors import InputInvalid

SHOWN = 40
"""Characters of a wrong value that a sentence repeats."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of `unit` in [lowest, highest]."""

    lowest: int
    highest: int
    unit: str

    def read(self, value: int, where: str) -> int:
        """Give the number back.

        Raises:
            InputInvalid: out of range.
        """
        if not self.lowest <= value <= self.highest:
            raise InputInvalid(
                f"{where}: {shown(value)} is out of range; send {self.lowest} to {self.highest} "
                f"{self.unit}"
            )
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The range as JSON Schema has it."""
        return {"minimum": self.lowest, "maximum": self.highest, "description": self.unit}


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number of `unit` in [lowest, highest]."""

    lowest: float
    highest: float
    unit: str

    def read(self, value: float, where: str) -> float:
        """Give the number back.

        Raises:
            InputInvalid: not finite, or out of range.
        """
        if not (isfinite(value) and self.lowest <= value <= self.highest):
            raise InputInvalid(
                f"{where}: {shown(value)} is out of range; send {self.lowest:g} to "
                f"{self.highest:g} {self.unit}, or null where that is not known"
            )
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The range as JSON Schema has it."""
        return {"minimum": self.lowest, "maximum": self.highest, "description": self.unit}


@dataclass(frozen=True, slots=True)
class Word:
    """A text of a fixed alphabet. `what`: which, for a person."""

    pattern: str
    longest: int
    what: str

    def fits(self, value: str) -> bool:
        """Say whether a text is one."""
        return len(value) <= self.longest and re.fullmatch(self.pattern, value) is not None

    def read(self, value: str, where: str) -> str:
        """Give the text back.

        Raises:
            InputInvalid: too long, or another alphabet.
        """
        if not self.fits(value):
            raise InputInvalid(f"{where}: {shown(value)} cannot be taken; send {self.what}")
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The alphabet as JSON Schema has it."""
        return {"pattern": f"^{self.pattern}$", "maxLength": self.longest}


@dataclass(frozen=True, slots=True)
class Sentence:
    """What somebody says: kept to `longest` characters, on one line, without control characters."""

    longest: int

    def read(self, value: str, where: str) -> str:
        """Give what is kept of it."""
        return clean(value[: self.longest])

    @property
    def described(self) -> dict[str, Any]:
        """What is said of it in JSON Schema."""
        return {"description": f"the first {self.longest} characters are kept"}


@dataclass(frozen=True, slots=True)
class Many:
    """At most `most` entries."""

    most: int

    def read(self, value: Any, where: str) -> Any:
        """Give the list or object back.

        Raises:
            InputInvalid: too many.
        """
        if len(value) > self.most:
            raise InputInvalid(
                f"{where}: {len(value)} entries are too many; send at most {self.most}"
            )
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The length as JSON Schema has it."""
        return {"maxItems": self.most}


@dataclass(frozen=True, slots=True)
class Moment:
    """A time with its zone, as ISO 8601 writes it, of the year `first` or later."""

    first: int

    def read(self, value: str, where: str) -> str:
        """Give the text back.

        Raises:
            InputInvalid: no time, no zone, or too long ago.
        """
        try:
            moment = datetime.fromisoformat(value).astimezone(UTC) if "T" in value else None
        except (ValueError, OverflowError):
            moment = None
        if moment is None or moment.year < self.first or not _ZONE.search(value):
            raise InputInvalid(
                f"{where}: {shown(value)} is no time with its zone of {self.first} or later; see "
                "that the sender's clock is right"
            )
        return value

    @property
    def described(self) -> dict[str, Any]:
        """What is said of it in JSON Schema."""
        return {"format": "date-time", "description": f"of the year {self.first} or later"}


_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d(:?\d\d)?)$")


@dataclass(frozen=True, slots=True)
class Open:
    """An object whose values are not foretold: numbers, texts, and lists and objects of these.

    Attributes:
        names: entries of the object itself. `values`: all that it holds, however deep.
        deepest: lists and objects in each other, itself included.
        longest: characters that are kept of a text.
    """

    names: int
    values: int
    deepest: int
    longest: int

    def read(self, value: Any, where: str) -> Any:
        """Give the object back; a number that is not finite is not known.

        Raises:
            InputInvalid: too many, too deep, a number of more than 64 bits, or an odd name.
        """
        Many(self.names).read(value, where)
        taken, held = self._taken(value, where, 1)
        if held > self.values:
            raise InputInvalid(
                f"{where}: it holds {held} values in all; send at most {self.values}"
            )
        return taken

    def _taken(self, value: Any, where: str, depth: int) -> tuple[Any, int]:
        """Give what is kept of one value, and how many it holds."""
        if isinstance(value, dict | list | tuple):
            if depth > self.deepest:
                raise InputInvalid(
                    f"{where}: lists and objects lie more than {self.deepest} deep in each other; "
                    "send them flat"
                )
            names = value if isinstance(value, dict) else range(len(value))
            found = {
                PRINTABLE.read(str(name), f"{where}, a name"): self._taken(
                    value[name], where, depth + 1
                )
                for name in names
            }
            held = len(found) + sum(inner for _, inner in found.values())
            kept = {name: each for name, (each, _) in found.items()}
            return (kept if isinstance(value, dict) else list(kept.values())), held
        if isinstance(value, str):
            return Sentence(self.longest).read(value, where), 0
        if isinstance(value, float):
            return (value if isfinite(value) else None), 0
        if value is None or isinstance(value, bool):
            return value, 0
        if isinstance(value, int):
            return Whole(-(2**63), 2**63 - 1, "of any unit").read(value, where), 0
        raise InputInvalid(f"{where}: {shown(value)} is no number, text, list or object")

    @property
    def described(self) -> dict[str, Any]:
        """The bounds as JSON Schema has them."""
        return {
            "maxItems": self.names,
            "description": (
                f"at most {self.values} values in all, {self.deepest} deep; the first "
                f"{self.longest} characters of a text are kept"
            ),
        }


Range = Whole | Real | Word | Sentence | Many | Moment | Open

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that move, hide or turn text around: C0, C1, bidi controls, lone halves
of surrogates, line and paragraph separators, and what no font knows (unicode.org/reports/tr44)."""


def clean(text: str) -> str:
    """Give a text that may be printed or logged: one line, nothing that a terminal obeys.

    The one function for it. Tabs and line ends become blanks; any other control character (C0,
    C1), format character (bidi, zero width) and lone surrogate becomes the replacement character,
    so that it is seen that something stood there.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_plain(each) for each in text)


def clean_lines(text: str) -> str:
    """Give a text of several lines that may be printed: each one cleaned."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _plain(character: str) -> str:
    """Give what stands for one character."""
    if character in "\t\n\r\x0b\x0c":
        return " "
    return "\ufffd" if unicodedata.category(character) in _HIDDEN else character


def as_name(text: str) -> str:
    """Give the name that a text is taken for: what no name may have becomes `-`."""
    if NAME.fits(text):
        return text
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:56]
    return plain if NAME.fits(plain) else f"run-{plain}"


def shown(value: object) -> str:
    """Give a wrong value as a sentence repeats it: short, and clean."""
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write whole numbers of more than 4300 digits.
        return "a number of thousands of digits"
    text = clean(text)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


INT4 = 2**31 - 1
"""The highest that a 32-bit column holds."""

NEVER = INT4
"""Steps between two saves of a run that never saves; a longer interval is sent as this."""

MOST_STEPS = 10**15
MOST_TOKENS = 10**18
MOST_RANKS = 2**17
"""Of one run. The largest jobs there are have some 100,000."""

MOST_METERS = 512
"""Devices of one node that are told of within a day: GPUs, and meters of processors and memory."""

HIGHEST_W = 100_000
"""More than anything draws that one meter reads."""

FIRST_YEAR = 2020
"""No reading is older."""

MOST_COUNTED = 2**60
"""The most that a counter shows, of any unit: two still add up in 64 bits."""

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
UUID = Word(
    _UUID,
    36,
    "a UUID in small letters, as `wattmesh.attach` makes it and keeps it beside the checkpoints",
)
NAME = Word(
    f"(?!{_UUID}$)[A-Za-z0-9_.-]{{1,64}}",
    64,
    "a name of 1 to 64 letters, digits, `_`, `.` or `-` that is no UUID",
)
TOKEN = Word("[A-Za-z0-9_.-]{0,64}", 64, "up to 64 letters, digits, `_`, `.` or `-`")
DEVICE = Word("[A-Za-z0-9_.:/-]{0,64}", 64, "a device's UUID of up to 64 characters, or nothing")
DIGEST = Word("[A-Za-z0-9_.:+/=-]{0,128}", 128, "a digest of up to 128 characters")
PRINTABLE = Word(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*", 255, "one line of up to 255 characters")
LOWER = Word("[a-z_]{0,32}", 32, "a phase of up to 32 letters a-z")

NODE = Word("[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", 253, "a host name of up to 253 letters")
METER = Word("[A-Za-z0-9_.:/-]{1,64}", 64, "a device's name of 1 to 64 characters")
QUALITY = Word("[a-z+]{0,32}", 32, "words such as measured+simulated")

RunId = Annotated[str, UUID]
Name = Annotated[str, NAME]
Token = Annotated[str, TOKEN]
Label = Annotated[str, PRINTABLE]
Digest = Annotated[str, DIGEST]
Device = Annotated[str, DEVICE]
Phase = Annotated[str, LOWER]
Said = Annotated[str, Sentence(4000)]
Trouble = Annotated[str, Sentence(500)]

Attempt = Annotated[int, Whole(0, INT4, "launches")]
Serial = Annotated[int, Whole(0, INT4, "as a rising number")]
Epoch = Annotated[int, Whole(0, INT4, "as an epoch")]
Steps = Annotated[int, Whole(0, MOST_STEPS, "steps")]
LaterStep = Annotated[int, Whole(0, 2 * MOST_STEPS, "steps")]
Every = Annotated[int, Whole(0, NEVER, "steps")]
Samples = Annotated[int, Whole(0, MOST_TOKENS, "samples")]
Tokens = Annotated[int, Whole(0, MOST_TOKENS, "tokens")]
WorldSize = Annotated[int, Whole(1, MOST_RANKS, "ranks")]
Rank = Annotated[int, Whole(0, MOST_RANKS - 1, "as a rank")]
Pid = Annotated[int, Whole(0, INT4, "as a process id")]
Rate = Annotated[float, Real(0.0, 1e15, "tokens per second")]
Loss = Annotated[float, Real(-1e300, 1e300, "of loss")]
Share = Annotated[float, Real(-1e9, 1e9, "as a share")]
Seconds = Annotated[float, Real(0.0, 1e9, "seconds")]

Meter = Annotated[str, METER]
Quality = Annotated[str, QUALITY]
At = Annotated[str, Moment(FIRST_YEAR)]
Watts = Annotated[float, Real(0.0, HIGHEST_W, "watts")]
Joules = Annotated[float, Real(0.0, 1e15, "joules")]
Megahertz = Annotated[int, Whole(0, 100_000, "MHz")]
Celsius = Annotated[float, Real(-100.0, 1000.0, "degrees Celsius")]
Portion = Annotated[float, Real(0.0, 1.0, "as a share of 1")]
DeliverEvery = Annotated[float, Real(0.0, 300.0, "seconds")]
KeepHours = Annotated[float, Real(0.0, 720.0, "hours")]
Rows = Annotated[int, Whole(0, INT4, "rows")]
