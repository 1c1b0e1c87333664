"""Whether leaning costs more of the loss than it may: a sequential test on paired probes. Pure.

A pair is x = (loss with the lean - loss without) / loss without. The test bets against "its centre
is at most `bound`": after n pairs the evidence is

    E_n = (E_(n-1) + w_n) (1 + tanh(slope (y_n - bound) / s_n)),   E_0 = 0,  w_1 + w_2 + ... = 1,

with y_n = (x_n - a_n x_(n-1)) / (1 - a_n), the pair without what it has of the one before, and s_n,
the noise of that; a_n and s_n are known from the pairs before. Where y scatters alike to both sides
of a centre at or below the bound, the last factor is 1 on average or less, since tanh is odd and
rises. So E_n and the weights still to come are a supermartingale that begins at 1, and by Ville's
inequality the chance that E_n ever reaches 1 / `FALSE_STOP`, in a run of any length, is at most
`FALSE_STOP`. No variance need exist or be known: s_n only decides how fast a true loss is found.
Weights w_n let the betting begin anew at each pair, so that pairs before a change hide nothing.

That is proven of unrelated, symmetric pairs and a_n = 0. As a_n is an estimate, and for pairs that
are related or skewed, the chance is measured (docs/experts.md).

Sources: Ville 1939 (the inequality); Ramdas, Ruf, Larsson and Koolen, "Admissible anytime-valid
sequential inference must rely on nonnegative martingales", 2020 (odd functions, for symmetric
noise); Shin, Ramdas and Rinaldo, "E-detectors", 2023 (beginning anew).

The same bet turned round says when it is known that leaning costs *less* than the bound.
"""

import math
from dataclasses import dataclass, replace

MOST_GAP = 0.005
"""Most that leaning may cost: half a percent of the loss."""

FALSE_STOP = 0.03
"""Chance, over a whole run, to stop a lean that costs no more than the bound."""

FALSE_PROOF = 0.05
"""Chance to hold a lean for proven that costs the bound or more, at one strength."""

SLOPES = (0.25, 1.0)
"""Of the bets, whose evidence is averaged: the best ones for losses of so many deviations."""

CATASTROPHE = 1.0
"""A single pair that costs the whole loss once more, or is no number, ends it."""

BAD_BOUNDS, BAD_NOISES, BAD_IN_A_ROW = 4.0, 8.0, 4
"""So many pairs in a row end it, that each cost more than so many bounds and so many deviations of
the noise: the test itself at most doubles its evidence with a pair."""

FEW, MANY = 2.0, 50.0
"""The noise is an average of that many differences: at first (the bound stands for them), and at
most."""

UNRELATED, REMEMBERED = 10.0, 100.0
"""Pairs that are taken to be unrelated before the first; and pairs whose relation is averaged."""

MOST_RELATED = 0.9

LEAST_NOISE_SHARE = 0.01
"""Of the bound: pairs without noise are taken to scatter so much."""

WIDEST = 4.0
"""Deviations that a single difference counts as at most, in the noise."""

MOST_EVIDENCE = 1e9

OF_NORMAL = math.sqrt(math.pi) / 2
"""Standard deviation over the mean difference of two, of normal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEvidence:
    """What the pairs of a run say so far.

    Attributes:
        pairs: that were judged: of routers that leaned.
        noise: one standard deviation of a pair, as a share of the loss; None before the first.
        last: pair. `own`: that pair without what it had of the one before. `average`: of the newest
            ones, to be said.
        moved: difference of the two newest pairs. `along`, `square`: averages of its product with
            the one before, and of its square.
        bad: pairs in a row that cost far too much.
        dearer: by slope, evidence that leaning costs more than the bound.
        cheaper: by slope, evidence that it costs less, of the `alike` pairs since the lean is what
            it is; that lean's strength is `at`.
        proven: the largest strength that is known to cost less than the bound.
        stop: why the lean must end for good; "" where it need not.
    """

    pairs: int = 0
    noise: float | None = None
    last: float | None = None
    own: float = 0.0
    average: float = 0.0
    moved: float | None = None
    along: float = 0.0
    square: float = 0.0
    bad: int = 0
    dearer: tuple[float, ...] = (0.0,) * len(SLOPES)
    cheaper: tuple[float, ...] = (0.0,) * len(SLOPES)
    alike: int = 0
    at: float = 0.0
    proven: float = 0.0
    stop: str = ""

    @property
    def in_doubt(self) -> bool:
        """Whether evidence against the lean is mounting: more than before the first pair."""
        return _mean(self.dearer) >= 1.0


def begun_anew(known: PairedEvidence) -> PairedEvidence:
    """Forget what was proven, as the same strength is another lean now; not what speaks against."""
    return replace(known, cheaper=(0.0,) * len(SLOPES), alike=0, proven=0.0)


def judged(
    known: PairedEvidence,
    gap: float,
    strength: float,
    *,
    steady: bool = True,
    bound: float = MOST_GAP,
) -> PairedEvidence:
    """Judge one more pair.

    Args:
        known: what the pairs before said.
        gap: of the pair, as a share of the loss; one that is no number counts as a catastrophe.
        strength: that the routers leaned by, above 0.
        steady: whether that is certain: the pair proves nothing of a strength that it may not have.
        bound: most that leaning may cost, as a share of the loss; above 0.
    """
    if known.stop:
        return known
    if not gap < CATASTROPHE:
        return replace(known, pairs=known.pairs + 1, stop=_catastrophe(gap))
    noise = bound if known.noise is None else known.noise
    own = _own(known, gap, noise)
    far = (own - bound) / noise
    bad = known.bad + 1 if gap > max(BAD_BOUNDS * bound, BAD_NOISES * noise) else 0
    pairs = known.pairs + 1
    dearer = _bets(known.dearer, pairs, far)
    weight = max(1 / pairs, 0.1)
    newer = replace(
        _related(known, gap, noise),
        pairs=pairs,
        noise=_noise(known, own, noise, bound),
        last=gap,
        own=own,
        average=known.average + weight * (max(gap, -CATASTROPHE) - known.average),
        bad=bad,
        dearer=dearer,
    )
    if steady:
        newer = _proving(newer, strength, far)
    if bad >= BAD_IN_A_ROW or _mean(dearer) >= 1 / FALSE_STOP:
        newer = replace(newer, stop=_too_dear(newer, bound))
    return newer


def start_weight(pair: int) -> float:
    """Return the weight of bets that begin with a pair, the first one being 1; all sum to 1."""
    return math.log(2) * (1 / math.log(pair + 1) - 1 / math.log(pair + 2))


def _bets(before: tuple[float, ...], pair: int, far: float) -> tuple[float, ...]:
    """Bet that a pair is far above the bound, by so many deviations."""
    weight = start_weight(pair)
    return tuple(
        min(MOST_EVIDENCE, (each + weight) * (1.0 + math.tanh(slope * far)))
        for each, slope in zip(before, SLOPES, strict=True)
    )


def _proving(known: PairedEvidence, strength: float, far: float) -> PairedEvidence:
    """Bet that the lean costs less than the bound."""
    if strength != known.at:
        known = replace(known, at=strength, cheaper=(0.0,) * len(SLOPES), alike=0)
    cheaper = _bets(known.cheaper, known.alike + 1, -far)
    proven = _mean(cheaper) >= 1 / FALSE_PROOF
    return replace(
        known,
        cheaper=cheaper,
        alike=known.alike + 1,
        proven=max(known.proven, strength) if proven else known.proven,
    )


def _own(known: PairedEvidence, gap: float, noise: float) -> float:
    """Take from a pair what it has of the one before.

    Differences tell how far pairs are related, wherever their centre is: of unrelated pairs, the
    product of two neighbouring differences is minus half of a square on average.
    """
    if known.last is None:
        return gap
    prior = 2.0 * noise * noise * UNRELATED
    related = 1.0 + 2.0 * (known.along - prior / 2) / (known.square + prior)
    related = max(0.0, min(MOST_RELATED, related))
    return (gap - related * known.last) / (1.0 - related)


def _related(known: PairedEvidence, gap: float, noise: float) -> PairedEvidence:
    """Add the newest difference to what tells how far pairs are related."""
    if known.last is None:
        return known
    most = WIDEST * noise
    moved = max(-most, min(most, gap - known.last))
    if known.moved is None:
        return replace(known, moved=moved)
    stays = 1.0 - 1.0 / REMEMBERED
    along = stays * known.along + moved * known.moved
    return replace(known, moved=moved, along=along, square=stays * known.square + moved * moved)


def _noise(known: PairedEvidence, own: float, noise: float, bound: float) -> float:
    """Average the differences of neighbouring pairs: a loss that stays does not look like noise."""
    if known.last is None:
        return noise
    difference = OF_NORMAL * min(abs(own - known.own), WIDEST * noise)
    noise += (difference - noise) / min(known.pairs + FEW, MANY)
    return max(noise, LEAST_NOISE_SHARE * bound)


def _mean(evidence: tuple[float, ...]) -> float:
    return math.fsum(evidence) / len(evidence)


def _catastrophe(gap: float) -> str:
    costs = f"costs {gap:.0%} of the loss" if abs(gap) < 1e3 else "ends in a loss beyond all bounds"
    return f"a single paired probe says that leaning {costs}"


def _too_dear(known: PairedEvidence, bound: float) -> str:
    noise = known.noise or 0.0
    if known.average <= bound:
        return (
            f"the newest paired probes say that leaning costs more than {bound:.2%} of the loss: "
            f"{known.last or 0.0:.2%} the last one ({known.pairs} pairs, which scatter by "
            f"{noise:.2%})"
        )
    return (
        f"the paired probes say that leaning costs {known.average:.2%} of the loss, more than "
        f"{bound:.2%} ({known.pairs} pairs, which scatter by {noise:.2%})"
    )
