"""What to measure next: the point that would save a job most grams if it is as predicted. Pure.

A job needs so many tokens by its deadline; the hours until then have known intensities. With the
points that are known it emits some grams at least (the fluid problem: pauses and changes are free).
A further point can only lower that. How much it does is weighed over the interval of its
prediction, which is never below nothing: expected improvement (Jones, Schonlau and Welch, 1998).
Invariant: no measured point is asked for again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattmesh import quantities
from wattmesh.policies.hull import lower_chain
from wattmesh.telemetry.readings import J_PER_KWH

HOUR_S = 3600.0

NODES = 7
"""Values of a prediction's error that an expectation is summed over (Gauss and Hermite)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCandidate:
    """A point that a job could run at.

    Attributes:
        tokens_per_s, j_per_token: measured or predicted, both above 0.
        spread: standard deviation of the logarithm of its predicted time; 0 when it was measured.
    """

    id: str
    tokens_per_s: float
    j_per_token: float
    spread: float = 0.0

    def slower(self, factor: float) -> "ProfileCandidate":
        """Give the point with steps that take `factor` times as long, at the same watts."""
        return replace(
            self, tokens_per_s=self.tokens_per_s / factor, j_per_token=self.j_per_token * factor
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NextProfile:
    """What measuring a point is worth.

    Attributes:
        expected_g: grams saved on the average over its interval; None: not comparable, because the
            points known so far do not make the deadline.
        if_true_g: grams saved if it is exactly as predicted.
    """

    id: str
    expected_g: float | None
    if_true_g: float | None
    sentence: str


def what_to_profile_next(
    points: Sequence[ProfileCandidate],
    *,
    hours_g_per_kwh: Sequence[float],
    tokens: float,
    measured: Collection[str] = (),
) -> tuple[NextProfile, ...]:
    """Rank the points that were not measured yet, the most worthwhile first.

    Args:
        points: all of them, measured or predicted.
        hours_g_per_kwh: the intensity of each hour until the deadline.
        tokens: that are to be trained until then.
        measured: ids of those that were measured.

    Returns:
        One entry for each point that was not measured. Where the measured ones do not make the
        deadline, the fastest of the others comes first: all of them are compared with it.
    """
    known = [each for each in points if each.id in measured]
    open_ones = [each for each in points if each.id not in measured]
    ranked: list[NextProfile] = []
    now_g = least_grams(known, hours_g_per_kwh, tokens)
    if open_ones and now_g is None:
        first = max(open_ones, key=lambda each: each.tokens_per_s)
        known, open_ones = [*known, first], [each for each in open_ones if each is not first]
        now_g = least_grams(known, hours_g_per_kwh, tokens)
        sentence = _fastest(first, makes_it=now_g is not None)
        ranked = [NextProfile(id=first.id, expected_g=None, if_true_g=None, sentence=sentence)]
    worth = [_saving(each, known, now_g, hours_g_per_kwh, tokens) for each in open_ones]
    worth.sort(key=lambda each: (-(each.expected_g or 0.0), each.id))
    return (*ranked, *worth)


def least_grams(
    points: Sequence[ProfileCandidate], hours_g_per_kwh: Sequence[float], tokens: float
) -> float | None:
    """Give the least grams that `tokens` emit with these points; None: they are too slow."""
    if not points:
        return None
    speeds = [0.0, *(each.tokens_per_s for each in points)]
    watts = [0.0, *(each.tokens_per_s * each.j_per_token for each in points)]
    chain = lower_chain(speeds, watts)  # from a pause on: no tokens, no watts
    speed, power = np.array(speeds)[chain], np.array(watts)[chain]
    each_token_j = np.diff(power) / np.diff(speed)
    hourly = np.asarray(hours_g_per_kwh, dtype=np.float64)
    grams = (hourly[:, None] * each_token_j[None, :] / J_PER_KWH).ravel()
    room = np.broadcast_to(np.diff(speed) * HOUR_S, (len(hourly), len(each_token_j))).ravel()
    order = np.argsort(grams, kind="stable")
    done = np.cumsum(room[order])
    if not len(done) or done[-1] < tokens * (1 - 1e-12):
        return None
    used = np.clip(tokens - (done - room[order]), 0.0, room[order])
    return float((used * grams[order]).sum())


def _saving(
    candidate: ProfileCandidate,
    known: Sequence[ProfileCandidate],
    now_g: float | None,
    hours_g_per_kwh: Sequence[float],
    tokens: float,
) -> NextProfile:
    def saved(factor: float) -> float | None:
        found = least_grams([*known, candidate.slower(factor)], hours_g_per_kwh, tokens)
        return None if found is None or now_g is None else max(0.0, now_g - found)

    if_true = saved(1.0)
    if if_true is None:
        sentence = f"{candidate.id} does not make the deadline, and neither does any other"
        return NextProfile(id=candidate.id, expected_g=None, if_true_g=None, sentence=sentence)
    at, weights = np.polynomial.hermite_e.hermegauss(NODES)
    each = [saved(float(np.exp(candidate.spread * error))) or 0.0 for error in at]
    expected = float(np.dot(weights, each) / weights.sum())
    if expected <= 0:
        sentence = f"{candidate.id} would save nothing beside what is known"
    else:
        sentence = (
            f"{candidate.id} would save {quantities.grams(if_true)} if it is as predicted, and "
            f"{quantities.grams(expected)} on the average over its interval"
        )
    return NextProfile(id=candidate.id, expected_g=expected, if_true_g=if_true, sentence=sentence)


def _fastest(first: ProfileCandidate, makes_it: bool) -> str:
    """Say why the fastest point comes first."""
    if not makes_it:
        return f"{first.id} is predicted to be the fastest, and does not make the deadline either"
    return (
        f"{first.id} is predicted to be the fastest, and no measured point makes the deadline: the "
        "others are compared with it"
    )
