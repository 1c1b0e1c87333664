"""What a proof or a measurement was made on: devices, libraries, and the job's own code. Pure.

Invariant: a part that one side does not know is never a difference.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from wattmesh.errors import InputInvalid

COMPUTES_WITH = "computes with "
"""Prefix of the capabilities by which a run names the parts of its fingerprint: `computes with
torch: 2.13.0`."""

_LONGEST_SHOWN = 40
_LONGEST = 1000

_WORDS = {
    "gpu_models": "GPUs",
    "vbios": "VBIOS",
    "driver": "driver",
    "torch": "torch",
    "nccl": "NCCL",
    "code_digest": "the job's code",
    "topology": "topology",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be the same for evidence to hold; None: not known.

    Attributes:
        gpu_models: names of the devices, with their numbers.
        vbios, driver: of the devices.
        code_digest: of the job's own source files.
        topology: nodes, and devices of each.
    """

    gpu_models: str | None = None
    vbios: str | None = None
    driver: str | None = None
    torch: str | None = None
    nccl: str | None = None
    code_digest: str | None = None
    topology: str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            InputInvalid: a key that there is not, or a value that is no text of 1 to 1000
                characters.
        """
        names = [each.name for each in fields(cls)]
        for key, value in values.items():
            if key not in names:
                raise InputInvalid(f"fingerprint: {key!r} is none of {', '.join(names)}")
            if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
                raise InputInvalid(f"fingerprint: {key} must be a text of 1 to {_LONGEST} letters")
        return cls(**values)

    def to_dict(self) -> dict[str, str]:
        """Return the parts that are known."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_capabilities(cls, capabilities: Iterable[str]) -> Self:
        """Read what a run says of itself; a capability that is no part is left out."""
        said = (each for each in capabilities if each.startswith(COMPUTES_WITH))
        parts = (each.removeprefix(COMPUTES_WITH).partition(": ") for each in said)
        names = {each.name for each in fields(cls)}
        return cls(**{key: value for key, _, value in parts if key in names and value})

    def to_capabilities(self) -> tuple[str, ...]:
        """Return the parts that are known as a run says them."""
        return tuple(f"{COMPUTES_WITH}{key}: {value}" for key, value in self.to_dict().items())

    @property
    def known(self) -> bool:
        """Whether any part is known."""
        return bool(self.to_dict())

    def with_known(self, other: Self) -> Self:
        """Return this one with what `other` knows beside it; `other` counts where both know."""
        return type(self)(**{**self.to_dict(), **other.to_dict()})

    def differences(self, now: "Fingerprint") -> tuple[str, ...]:
        """List the parts of `now` that are not what they are here, as clauses."""
        mine, other = self.to_dict(), now.to_dict()
        return tuple(
            f"{_WORDS[key]} {_shown(key, mine[key])}, now {_shown(key, other[key])}"
            for key in _WORDS
            if key in mine and key in other and mine[key] != other[key]
        )


def _shown(key: str, value: str) -> str:
    length = 8 if key == "code_digest" else _LONGEST_SHOWN
    return value if len(value) <= length else f"{value[: length - 1]}…"
