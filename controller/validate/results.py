"""What validation has proven so far, in a file that survives a kill.

    validation.json   in the validation's folder, written after every launch

Invariant: the file belongs to one job file, by its digest; another is refused, never mixed in.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattmesh import durable
from wattmesh.controller.profile.kept import read_kept
from wattmesh.reconfig.catalogue import Equivalence

RESULTS = "validation.json"
VERSION = 3
"""Of what launches leave for the checks; 2: what a step made; 3: of an interval's last step too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check of a point: a figure, and its limit."""

    check: str
    name: str
    measured: float
    limit: float
    ok: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointProof:
    """What was found of one point.

    Attributes:
        equivalence: the class that is proven. because: why it is not a better one.
        next_step: what to do where it is not proven; "".
        tolerance: by how much its losses may differ from the reference's; None: not known.
        at: when, ISO 8601.
        random: whether random numbers may be all that makes it fail, so that seeds could tell.
    """

    id: str
    layout: str
    equivalence: str
    because: str
    checks: tuple[CheckRow, ...] = ()
    next_step: str = ""
    tolerance: float | None = None
    at: str = ""
    random: bool = False

    @property
    def proven(self) -> bool:
        """Whether the point may be called validated."""
        held = bool(self.checks) and all(each.ok for each in self.checks)
        return held and self.equivalence != "none"

    def check(self, now: datetime) -> None:
        """See that a validation may have written it until `now`.

        Raises:
            ValueError: it is damaged.
        """
        Equivalence(self.equivalence)
        at = datetime.fromisoformat(self.at) if self.at else now
        if at.tzinfo is None or at > now:
            raise ValueError(f"point {self.id} is dated {self.at}, which is no time before now")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One switch between two points that are not the reference: V1, by their ids."""

    origin: str
    target: str
    ok: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationProgress:
    """All that was found.

    Attributes:
        digest: of the job file.
        finished: launches that ended well, by the names of their folders.
        lost: why a control gave no noise, by its name.
        fingerprint: of the reference's launch.
        pairs: switches between points. seconds: how long each launch took, by its folder.
        looks: by point, the numbers of seeds over which it was judged, in order.
        version: `VERSION` when it began.
    """

    digest: str
    points: tuple[PointProof, ...] = ()
    finished: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    fingerprint: dict[str, str] = field(default_factory=dict)
    pairs: tuple[PairRow, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    looks: dict[str, list[int]] = field(default_factory=dict)
    version: int = VERSION

    def point(self, point_id: str) -> PointProof | None:
        """Return what was found of a point; None before."""
        return next((each for each in self.points if each.id == point_id), None)

    def with_point(self, proof: PointProof) -> "ValidationProgress":
        """Add a proof, in place of an earlier one of that point."""
        others = tuple(each for each in self.points if each.id != proof.id)
        return replace(self, points=(*others, proof))

    def save(self, folder: Path) -> None:
        """Write the file durably."""
        durable.write_text(folder / RESULTS, json.dumps(asdict(self), indent=1) + "\n")


def load(folder: Path, digest: str) -> ValidationProgress:
    """Read what an earlier validation left in `folder`; a new one where there is nothing.

    Raises:
        InputInvalid: the folder holds something else, or the validation of another job file.
    """
    found = read_kept(folder / RESULTS, "validation", digest, ValidationProgress, _check)
    return found if found is not None else ValidationProgress(digest=digest)


def _check(data: dict[str, Any], found: ValidationProgress) -> None:
    """See that a validation of this version may have written it until now.

    Raises:
        ValueError: it is another version's, or damaged.
    """
    if data.get("version", 1) != VERSION:
        raise ValueError("it was begun by another version, which checks otherwise")
    for each in found.points:
        each.check(datetime.now(UTC))
