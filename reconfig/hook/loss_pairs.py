"""Paired probes of a launch: what they mean on all ranks, and which wait for a daemon. Pure.

Invariant: a pair waits until a daemon says that it is judged for good, so one that is down, stands
by or is killed loses none; at most `MOST_PAIRS` wait, the oldest are dropped, and are counted.
"""

import math
from collections.abc import Sequence
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.wire.experts import MOST_PAIRS, ExpertTokenReport, LossPair

MOST_GAP = 1e6
"""A relative difference beyond it, or a loss with the lean that is no number, counts as this."""

CATASTROPHE = 1.0
"""A pair that costs the whole loss once more ends a lean (policies/experts/quality)."""


def gap_of(leaning: float, plain: float) -> float | None:
    """Return what leaning costs of the loss; None where even without it there is none."""
    if not math.isfinite(plain) or plain == 0.0:
        return None
    gap = (leaning - plain) / abs(plain)
    return max(-MOST_GAP, min(MOST_GAP, gap)) if math.isfinite(gap) else MOST_GAP


def gap_of_ranks(gaps: Sequence[float | None]) -> float | None:
    """Return the mean of what ranks measured; None where none did.

    One that ends a lean is not averaged away, and one number on all ranks stays that number.
    """
    found = [each for each in gaps if each is not None]
    if not found:
        return None
    worst = max(found)
    if worst >= CATASTROPHE or worst == min(found):
        return worst
    return math.fsum(found) / len(found)


def waiting(left: Any, heard: Any, newest: LossPair | None) -> tuple[tuple[LossPair, ...], int]:
    """Give the pairs that wait from now on, oldest first, and how many of the launch were dropped.

    Args:
        left: what the leader left for the daemon's client at the save step before; None: nothing.
        heard: what that client heard last; None: nothing.
        newest: the pair of this save step, if one was measured while routers leaned.
    """
    try:
        before = ExpertTokenReport.from_json(left["report"])
    except (InputInvalid, TypeError, KeyError):
        before = None
    judged = heard.get("judged") if isinstance(heard, dict) else None
    done = judged if isinstance(judged, int) else -1
    pairs = [each for each in (before.pairs if before else ()) if each.step > done]
    if newest is not None:
        pairs.append(newest)
    kept = tuple(pairs[-MOST_PAIRS:])
    return kept, (before.dropped if before else 0) + len(pairs) - len(kept)
