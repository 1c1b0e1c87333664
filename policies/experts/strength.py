"""How far routers may lean now: the outer loop of a run's strength. Pure.

It follows the carbon price below the operator's clamp, slowly, and only with proof that quality
holds (`quality.py`). Invariants: the strength is within [0, clamp]; no change but a way down that
quality or the operator asks for is larger than the slew limit; it rises no further than that above
what was proven; over a run the changes sum to no more than `variation`, the last way back to 0
included; from `freeze_at` on only quality and the operator move it, and scores stay, too; and once
quality has stopped it, it is 0 for the rest of the run.

What is bounded is the lean of an expert, its score times the strength, in changes of the strength
that may move one as far. So experts that are placed elsewhere keep the scores that they took, and
take others only where `why_lean_stays` has nothing against it.
"""

from dataclasses import dataclass

from wattmesh.policies.experts.quality import MOST_GAP
from wattmesh.policies.experts.tilt import LOAD_CAP

SLEW = 0.05
"""Most that a period adds or takes (docs/experts.md)."""

ROUND_TRIPS = 2.0
"""Ways up to the clamp and back that a run has."""

DEADBAND = 0.25
"""Of the slew limit: a smaller change is none, so that noise of the price moves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrengthLimits:
    """What the strength may do over a run.

    Attributes:
        most: the operator's clamp.
        freeze_at: share of the run's tokens from which on it stays: before its learning rate
            decays.
        slew: per period, which is one count at a save step.
        gap: most that leaning may cost, as a share of the loss.
        load_cap: largest load over the mean at which it still rises.
    """

    most: float
    freeze_at: float
    slew: float = SLEW
    gap: float = MOST_GAP
    load_cap: float = LOAD_CAP

    @property
    def variation(self) -> float:
        """Most that all changes of a run may sum to."""
        return 2.0 * ROUND_TRIPS * self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStrength:
    """What a run leans by, as it says itself: `variation` is the sum of all changes so far."""

    strength: float
    variation: float
    stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StrengthFacts:
    """What is known in a period; None: not known.

    Attributes:
        too_dear: why the paired probes end the lean; "" while they do not.
        in_doubt: whether they begin to speak against it.
        proven: the largest strength that they have shown to cost less than it may.
        fresh: whether the run took a paired probe in this period.
        largest_load: of a GPU over the mean, in this period.
        price: grid intensity now over the mean of the hours ahead.
        trained: share of the run's tokens that is done.
        differ: whether the GPUs are known to differ, so that anything leans at all.
        untaken: whether the run has not taken yet what it was told last, so that nobody knows what
            it has spent once it does.
    """

    too_dear: str
    in_doubt: bool
    proven: float
    fresh: bool
    largest_load: float | None
    price: float | None
    trained: float | None
    differ: bool
    untaken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StrengthStep:
    """What the strength is from now on, and why; `why` is "" where nothing changes."""

    strength: float
    stopped: bool
    why: str


def scores_stay(
    now: RunStrength, trained: float | None, limits: StrengthLimits, to: float = 0.0
) -> bool:
    """Return whether a run's scores stay as they are: lean is their product with the strength.

    So they move no router while its learning rate decays, nor beyond `variation`: other scores may
    cost both strengths (from one end of their range to the other), and the way back to 0 once.

    Args:
        now: what the run leans by.
        trained: share of its tokens that is done; None: not known.
        limits: of the run.
        to: the strength that it is told together with other scores.
    """
    if now.strength <= 0:
        return False
    moved = now.strength + max(now.strength, to)
    spent = now.variation + moved + max(now.strength, to)
    return _is_late(trained, limits) or spent > limits.variation


def why_lean_stays(
    now: RunStrength,
    pending: float,
    trained: float | None,
    limits: StrengthLimits,
    to: float = 0.0,
) -> str:
    """Say why experts that lie elsewhere now keep the lean that they had; "" where they need not.

    Args:
        now: what the run leans by.
        pending: how far its lean would move, if they took the scores of the GPUs that they lie on.
        trained: share of its tokens that is done; None: not known.
        limits: of the run.
        to: the strength that it is told at the same time.
    """
    if trained is None:
        return "nobody knows how near the end of the run is, as it has no tokens_total"
    if _is_late(trained, limits):
        return f"from {limits.freeze_at:.0%} of the run's tokens on nothing moves it"
    most = now.variation + pending + abs(to - now.strength) + max(now.strength, to)
    if most > limits.variation:
        return (
            f"other scores move it by {pending:.3g}, and {now.variation:.3g} of "
            f"{limits.variation:.3g} of all changes are spent"
        )
    return ""


def _is_late(trained: float | None, limits: StrengthLimits) -> bool:
    """Return whether the learning rate may decay by now."""
    return trained is None or trained >= limits.freeze_at


def next_strength(now: RunStrength, facts: StrengthFacts, limits: StrengthLimits) -> StrengthStep:
    """Decide the strength of the next period."""
    if now.stopped:
        why = "" if now.strength == 0 else "it was stopped for quality, and stays at 0"
        return StrengthStep(strength=0.0, stopped=True, why=why)
    if facts.too_dear:
        goes = "it goes back to 0 and stays there" if now.strength > 0 else "it stays at 0"
        return StrengthStep(strength=0.0, stopped=True, why=f"{facts.too_dear}: {goes}")
    if now.strength > limits.most:
        return StrengthStep(strength=limits.most, stopped=False, why=allowed(limits.most))
    return _followed(now, facts, limits)


def allowed(most: float) -> str:
    """Say that the settings allow no more."""
    return f"the settings allow {most:g}"


def _followed(now: RunStrength, facts: StrengthFacts, limits: StrengthLimits) -> StrengthStep:
    stays = StrengthStep(strength=now.strength, stopped=False, why="")
    if facts.price is None or not facts.differ or facts.untaken:
        return stays
    if _is_late(facts.trained, limits):
        return stays
    wanted = limits.most * min(1.0, max(0.0, facts.price))
    move = max(-limits.slew, min(limits.slew, wanted - now.strength))
    if move > 0:
        most = min(_room(now, limits), max(0.0, facts.proven + limits.slew - now.strength))
        move = min(move, most) if _may_rise(facts, limits) else 0.0
    if abs(move) < DEADBAND * limits.slew and wanted != 0.0:
        return stays
    strength = min(limits.most, max(0.0, now.strength + move))
    if strength == now.strength:
        return stays
    verb = "rises" if strength > now.strength else "falls"
    return StrengthStep(
        strength=strength,
        stopped=False,
        why=f"it {verb} from {now.strength:g}, as the grid is at {facts.price:.0%} of the mean of "
        f"the hours ahead; {now.variation + abs(strength - now.strength):.3g} of "
        f"{limits.variation:.3g} of all changes are spent",
    )


def _may_rise(facts: StrengthFacts, limits: StrengthLimits) -> bool:
    """Return whether quality and loads are known to hold."""
    if not facts.fresh or facts.in_doubt:
        return False
    return facts.largest_load is not None and facts.largest_load < limits.load_cap


def _room(now: RunStrength, limits: StrengthLimits) -> float:
    """Return how far it may rise, with the way back to 0 still to be spent."""
    return max(0.0, (limits.variation - now.variation - now.strength) / 2.0)
