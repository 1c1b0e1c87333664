"""After every (re)build: do all ranks stand at the same place, with the state that was saved?

Ranks that silently disagree (a stale counter, other data, a lost moment) are the known failure of
live resharding: torch notices none of it. Pure but for reading torch's random state.

Invariant: a generation trains only after every rank's facts are equal and match its record.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from wattmesh.errors import Diverged
from wattmesh.reconfig import group
from wattmesh.reconfig.generation import Generation

_FLOOR = {
    torch.float64: 2.5e-13,
    torch.float32: 1e-6,
    torch.bfloat16: 2e-3,
    torch.float16: 2e-4,
}
"""Relative noise of a probe that is summed in another order, per parameter dtype. A same-layout
reload is bitwise, so its own floor is 0; another layout adds in another order."""

TIMES_FLOOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one rank knows of itself after a rebuild."""

    step: int
    samples: int
    tokens: int
    digest: str
    extra: str
    random: str
    probe: float

    def to_json(self) -> dict[str, Any]:
        """Give the JSON object that ranks exchange; a probe of nan travels as a string."""
        return {**asdict(self), "probe": repr(self.probe)}


def tolerance(dtypes: Iterable[torch.dtype]) -> float:
    """Relative difference that the probe may show, for the coarsest dtype of the parameters."""
    return TIMES_FLOOR * max((_FLOOR.get(each, 1e-6) for each in set(dtypes)), default=1e-6)


def seed_at(seed: int, step: int) -> None:
    """Make torch's random stream a function of the position alone, never of layout or past."""
    text = f"wattmesh {seed} {step}".encode()
    torch.manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1)


def random_hash() -> str:
    """Hash of torch's random state on this rank."""
    return hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()[:16]


def require_one(facts: str, ranks: Sequence[int]) -> None:
    """Compare what every rank holds beside tensors (schedules and the like); a collective call.

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


def disagreement(facts: Sequence[dict[str, Any]], generation: Generation, allowed: float) -> str:
    """Say what keeps this generation from training; "" when nothing does.

    Args:
        facts: every rank's `Facts.to_json`, in group order.
        generation: the record whose position, digest and probe must be met.
        allowed: relative difference of the probe.
    """
    for name in ("step", "samples", "tokens", "digest", "extra", "random"):
        values = [fact[name] for fact in facts]
        if len(set(values)) > 1:
            return f"ranks disagree on {name}: {_by_rank(generation, values)}"
        wanted = getattr(generation, name, "")
        if wanted not in ("", values[0]):
            return f"every rank has {name} {values[0]}, the checkpoint was saved with {wanted}"
    return _probe_problem([float(fact["probe"]) for fact in facts], generation, allowed)


def _probe_problem(probes: list[float], generation: Generation, allowed: float) -> str:
    """Compare every rank's probe with the one before."""
    before = generation.probe
    if before is None:
        before = probes[0]
    for probe in probes:
        # Written so that nan, which compares false with everything, is a problem.
        if not relative(probe, before) <= allowed:
            return (
                f"the probe loss is {_by_rank(generation, probes)} and was {before!r}: the "
                f"difference is above the {allowed:.1e} (relative) that rounding explains"
            )
    return ""


def relative(value: float, reference: float) -> float:
    """Relative difference; nan when either is not a number."""
    if value == reference:
        return 0.0
    return abs(value - reference) / max(abs(reference), math.ulp(1.0))


def _by_rank(generation: Generation, values: Sequence[object]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]!r} on every rank"
    pairs = zip(generation.ranks, values, strict=True)
    return ", ".join(f"rank {rank} {value!r}" for rank, value in pairs)
