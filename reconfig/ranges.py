"""Ranges of the numbers, texts and lists on the wire, each with its unit.

The types in `reconfig.wire.messages` refer to them; decoding checks them, and the API's reference
lists them. A `Sentence` is cut to its length and never refused, so that no report is lost because
its reason is long.

Invariant: every number is finite and fits the journal's columns on every database; no text has a
character that a database, a screen or JSON cannot represent.
"""

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any

from wattmesh.errors import InputInvalid

SHOWN = 40
"""Characters of a wrong value that a message repeats."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer of `unit` in [lowest, highest]."""

    lowest: int
    highest: int
    unit: str

    def read(self, value: int, where: str) -> int:
        """Check a number and return it.

        Raises:
            InputInvalid: it is out of range.
        """
        if not self.lowest <= value <= self.highest:
            raise InputInvalid(
                f"{where}: {shown(value)} is out of range; send {self.lowest} to {self.highest} "
                f"{self.unit}"
            )
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The range in JSON Schema."""
        return {"minimum": self.lowest, "maximum": self.highest, "description": self.unit}


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number of `unit` in [lowest, highest]."""

    lowest: float
    highest: float
    unit: str

    def read(self, value: float, where: str) -> float:
        """Check a number and return it.

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
        """The range in JSON Schema."""
        return {"minimum": self.lowest, "maximum": self.highest, "description": self.unit}


@dataclass(frozen=True, slots=True)
class Word:
    """A text of a fixed alphabet. `what`: its description for messages."""

    pattern: str
    longest: int
    what: str

    def fits(self, value: str) -> bool:
        """Tell whether a text has the form."""
        return len(value) <= self.longest and re.fullmatch(self.pattern, value) is not None

    def read(self, value: str, where: str) -> str:
        """Check a text and return it.

        Raises:
            InputInvalid: it is too long or has another form.
        """
        if not self.fits(value):
            raise InputInvalid(f"{where}: {shown(value)} cannot be taken; send {self.what}")
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The form in JSON Schema."""
        return {"pattern": f"^{self.pattern}$", "maxLength": self.longest}


@dataclass(frozen=True, slots=True)
class Sentence:
    """Free text: cut to `longest` characters, on one line, without control characters."""

    longest: int

    def read(self, value: str, where: str) -> str:
        """Return the kept part."""
        return clean(value[: self.longest])

    @property
    def described(self) -> dict[str, Any]:
        """The form in JSON Schema."""
        return {"description": f"the first {self.longest} characters are kept"}


@dataclass(frozen=True, slots=True)
class Many:
    """At most `most` entries."""

    most: int

    def read(self, value: Any, where: str) -> Any:
        """Check a list or object and return it.

        Raises:
            InputInvalid: it has too many entries.
        """
        if len(value) > self.most:
            raise InputInvalid(
                f"{where}: {len(value)} entries are too many; send at most {self.most}"
            )
        return value

    @property
    def described(self) -> dict[str, Any]:
        """The length in JSON Schema."""
        return {"maxItems": self.most}


@dataclass(frozen=True, slots=True)
class Moment:
    """An ISO 8601 time with a zone, of the year `first` or later."""

    first: int

    def read(self, value: str, where: str) -> str:
        """Check a text and return it.

        Raises:
            InputInvalid: it is no time, has no zone, or is too old.
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
        """The form in JSON Schema."""
        return {"format": "date-time", "description": f"of the year {self.first} or later"}


_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d(:?\d\d)?)$")


@dataclass(frozen=True, slots=True)
class Open:
    """An object with any values: numbers, texts, and lists and objects of these.

    Attributes:
        names: most entries of the object itself.
        values: most values in it, at any depth.
        deepest: deepest nesting, itself included.
        longest: characters that are kept of a text.
    """

    names: int
    values: int
    deepest: int
    longest: int

    def read(self, value: Any, where: str) -> Any:
        """Check an object and return it; a number that is not finite becomes None.

        Raises:
            InputInvalid: too many values, too deep, an integer beyond 64 bits, or a bad name.
        """
        Many(self.names).read(value, where)
        taken, held = self._taken(value, where, 1)
        if held > self.values:
            raise InputInvalid(
                f"{where}: it holds {held} values in all; send at most {self.values}"
            )
        return taken

    def _taken(self, value: Any, where: str, depth: int) -> tuple[Any, int]:
        """Return the kept part of one value, and the number of values in it."""
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
        """The bounds in JSON Schema."""
        return {
            "maxItems": self.names,
            "description": (
                f"at most {self.values} values in all, {self.deepest} deep; the first "
                f"{self.longest} characters of a text are kept"
            ),
        }


Range = Whole | Real | Word | Sentence | Many | Moment | Open

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that move, hide or reorder text: C0, C1, bidi controls, lone surrogates,
line and paragraph separators, and unassigned ones (unicode.org/reports/tr44)."""


def clean(text: str) -> str:
    """Return a text that is safe to print or log: one line, without control sequences.

    Everything that is printed or logged passes through it. Tabs and line ends become blanks; any
    other control character (C0, C1), format character (bidi, zero width) or lone surrogate becomes
    the replacement character, which shows that something was there.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_plain(each) for each in text)


def clean_lines(text: str) -> str:
    """Return a text of several lines, each one cleaned."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _plain(character: str) -> str:
    if character in "\t\n\r\x0b\x0c":
        return " "
    return "\ufffd" if unicodedata.category(character) in _HIDDEN else character


def as_name(text: str) -> str:
    """Derive a legal name from a text: illegal characters become `-`."""
    if NAME.fits(text):
        return text
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:56]
    return plain if NAME.fits(plain) else f"run-{plain}"


def shown(value: object) -> str:
    """Format a wrong value for a message: short and clean."""
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to format integers of more than 4300 digits.
        return "a number of thousands of digits"
    text = clean(text)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


INT4 = 2**31 - 1
"""The highest value of a 32-bit column."""

NEVER = INT4
"""Save interval of a run that never saves, in steps; longer intervals are sent as this."""

MOST_STEPS = 10**15
MOST_TOKENS = 10**18
MOST_RANKS = 2**17
"""Of one run. The largest existing jobs have some 100,000."""

MOST_METERS = 512
"""Most devices of one node within a day: GPUs, and meters of processors and memory."""

HIGHEST_W = 100_000
"""Above the power of anything with one meter."""

FIRST_YEAR = 2020
"""Earliest legal year of a time."""

MOST_COUNTED = 2**60
"""The highest counter value in any unit; the sum of two fits in 64 bits."""

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

ExpertTokens = Annotated[int, Whole(0, MOST_COUNTED, "expert-tokens")]
LARGEST_SCORE = 2.0
CostScore = Annotated[float, Real(-LARGEST_SCORE, LARGEST_SCORE, "deviations from the mean cost")]
LeanStrength = Annotated[float, Real(0.0, 8.0, "as a strength")]
LeanVariation = Annotated[float, Real(0.0, 1e9, "as a sum of changes")]
LossGap = Annotated[float, Real(-1e6, 1e6, "of the loss")]
CostVersion = Annotated[int, Whole(0, 2**53 - 1, "as a rising number")]
