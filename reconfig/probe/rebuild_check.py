"""Checks after every (re)build that all ranks agree, and have the saved state.

Ranks that silently disagree (a stale counter, other data, a lost moment) are the typical failure of
live resharding, and torch does not notice it.

Invariant: a generation trains only after every rank's facts are equal and match its record.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattmesh.errors import Diverged
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.probe.noise import Tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One rank's state after a rebuild.

    Attributes:
        random: hash of the checkpoint's random streams; "" without one.
        damage: state of this rank that differs from the saved one; "" for none.
        dtypes: of its parameters.
    """

    step: int
    samples: int
    tokens: int
    digest: str
    extra: str
    random: str
    probe: float
    damage: str = ""
    dtypes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object for the other ranks.

        The probe is a string, because it may be nan.
        """
        return {**asdict(self), "probe": repr(self.probe)}


def require_one(facts: str, ranks: Sequence[int]) -> None:
    """Compare every rank's state besides tensors (schedules and the like). A collective call.

    Raises:
        Diverged: on every rank, when one holds something else.
    """
    hashes = group.gather(hashlib.sha256(facts.encode()).hexdigest())
    others = [rank for rank, each in zip(ranks, hashes, strict=True) if each != hashes[0]]
    if others:
        raise Diverged(
            f"ranks {others} hold another position or extra state (schedules, counters) than rank "
            f"{ranks[0]}: what was trained since the last checkpoint is not one run and was not "
            "saved."
        )


def disagreement(facts: Sequence[dict[str, Any]], generation: Generation) -> str:
    """Say why this generation must not train, apart from the probe; "" when it may.

    Args:
        facts: every rank's `Facts.to_json`, in group order.
        generation: the record whose position and digest must be met.
    """
    for rank, fact in zip(generation.ranks, facts, strict=True):
        if fact["damage"]:
            return f"rank {rank} was given damage: {fact['damage']}"
    for name in ("step", "samples", "tokens", "digest", "extra", "random"):
        values = [fact[name] for fact in facts]
        if len(set(values)) > 1:
            return f"ranks disagree on {name}: {_by_rank(generation, values)}"
        wanted = getattr(generation, name, "")
        if wanted not in ("", values[0]):
            return f"every rank has {name} {values[0]}, the checkpoint was saved with {wanted}"
    return ""


def probe_difference(facts: Sequence[dict[str, Any]], generation: Generation) -> float:
    """Return the largest relative difference of any rank's probe to the one before.

    nan counts as infinite. Without an earlier probe, ranks are compared with each other.
    """
    probes = [float(fact["probe"]) for fact in facts]
    before = _before(probes, generation)
    found = [relative(each, before) for each in probes]
    return math.inf if any(math.isnan(each) for each in found) else max(found)


def probe_problem(
    facts: Sequence[dict[str, Any]], generation: Generation, allowed: Tolerance
) -> str:
    """Say why this generation must not train because of the probe; "" when it may."""
    if probe_difference(facts, generation) <= allowed.relative:
        return ""
    probes = [float(fact["probe"]) for fact in facts]
    return (
        f"the probe loss is {_by_rank(generation, probes)} and was "
        f"{_before(probes, generation)!r}: the difference is above the {allowed.relative:.1e} "
        f"(relative) that is explained by {allowed.reason}"
    )


def _before(probes: Sequence[float], generation: Generation) -> float:
    return probes[0] if generation.probe is None else generation.probe


def relative(value: float, reference: float) -> float:
    """Return the relative difference; nan when either is nan."""
    if value == reference:
        return 0.0
    return abs(value - reference) / max(abs(reference), math.ulp(1.0))


def _by_rank(generation: Generation, values: Sequence[object]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]!r} on every rank"
    pairs = zip(generation.ranks, values, strict=True)
    return ", ".join(f"rank {rank} {value!r}" for rank, value in pairs)
