"""V9 to V11: a routing bias towards cheap experts lowers their cost, within the bounds of T5. Pure.

A gate is biased by the experts' costs: g_i ~ exp(logit_i - strength * cost_i). Theorem T5
(docs/convergence.md) bounds the effect on energy, on the layer's output and on convergence; these
checks hold a gate to it, on logits recorded from a frozen router.

Shape suffixes: T tokens, E experts.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.equivalence.verdict import Verdict

Floats = NDArray[np.floating[Any]]
Gate = Callable[[Floats, Floats, float], Floats]
"""(logits_TE, costs_E, strength) -> probabilities_TE: the checked function."""

ROUNDING = 1e-12


def tilted_softmax(logits_TE: Floats, costs_E: Floats, strength: float) -> Floats:
    """The gate of T5: a softmax of logits minus `strength` times costs."""
    tilted_TE = logits_TE - strength * costs_E
    shifted_TE = np.exp(tilted_TE - tilted_TE.max(axis=-1, keepdims=True))
    probabilities_TE: Floats = shifted_TE / shifted_TE.sum(axis=-1, keepdims=True)
    return probabilities_TE


def energy_falls(
    gate: Gate, logits_TE: Floats, costs_E: Floats, strengths: Sequence[float]
) -> Verdict:
    """V9: every token's expected cost falls, or stays, as the strength rises (T5 i)."""
    rising = sorted(strengths)
    means = [gate(logits_TE, costs_E, each) @ costs_E for each in rising]
    steps = np.diff(means, axis=0)
    worst = float(np.max(steps)) if steps.size else math.inf
    return Verdict(
        check="V9",
        name="largest rise of cost",
        measured=worst,
        limit=ROUNDING,
        sentence=(
            f"over {len(rising)} strengths a token's expected cost rises by {worst:.2e} at most"
        ),
    )


def shift_is_bounded(
    gate: Gate, logits_TE: Floats, costs_E: Floats, strengths: Sequence[float]
) -> Verdict:
    """V10: no token's choice moves further than T5 (ii) allows, as a share of that bound.

    The distance is total variation; the bound tanh(strength * (max cost - min cost) / 4).
    """
    straight_TE = gate(logits_TE, costs_E, 0.0)
    spread = float(np.ptp(costs_E))
    shares = {0.0: 0.0}
    for strength in strengths:
        moved = float(np.max(np.abs(gate(logits_TE, costs_E, strength) - straight_TE).sum(-1))) / 2
        bound = math.tanh(abs(strength) * spread / 4)
        share = moved / bound if bound > 0 else (0.0 if moved <= ROUNDING else math.inf)
        shares[strength] = share if math.isfinite(share) else math.inf
    at = max(shares, key=lambda each: shares[each])
    return Verdict(
        check="V10",
        name="shift over its bound",
        measured=shares[at],
        limit=1 + 1e-9,
        sentence=f"choices move by {shares[at]:.3f} of what is allowed, most at strength {at:g}",
    )


def strength_settles(
    strengths: Sequence[float], *, limit: float, frozen_from: int | None = None
) -> Verdict:
    """V11: total variation of the strength per step is small, and it stops before the decay.

    Args:
        strengths: as recorded, one per step.
        limit: of V / K (T5 iv).
        frozen_from: the step from which the learning rate decays; the strength must not change
            any more from there on.
    """
    moves = [abs(b - a) for a, b in itertools.pairwise(strengths)]
    rate = math.fsum(moves) / len(strengths) if len(strengths) > 1 else math.inf
    late = frozen_from is not None and any(move > 0 for move in moves[frozen_from:])
    told = f"; it still moves after step {frozen_from}, where the decay begins" if late else ""
    return Verdict(
        check="V11",
        name="variation per step",
        measured=math.inf if late else rate,
        limit=limit,
        sentence=f"the strength varies by {rate:.2e} per step over {len(strengths)} steps{told}",
    )
