"""The outer loop of live runs' strengths: what their counts and the newest turn of the cycle say.

Invariant: a run is the authority on what it leans by: each step goes from what it reported, so a
daemon that restarts spends nothing of its variation twice.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.loop_facts import NewestTurn
from wattmesh.policies.decision import CarbonView
from wattmesh.policies.experts.live_spans import HeardPair, RunCount
from wattmesh.policies.experts.quality import PairedEvidence, begun_anew, judged
from wattmesh.policies.experts.strength import (
    RunStrength,
    StrengthFacts,
    StrengthLimits,
    StrengthStep,
    next_strength,
)

HOURS_AHEAD_S = 24 * 3600.0
"""The present slot is compared with the mean of so much that lies ahead of it."""

OLDEST_TURN_S = 900.0
"""An older turn of the cycle says nothing of the grid now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPairs:
    """Up to which step the pairs of a launch are judged, and of which lean the newest one was."""

    launch: str = ""
    step: int = -1
    generation: int = 0
    lean: int = 0

    def has(self, launch: str, step: int) -> bool:
        """Return whether a pair is among them: each is judged once, however often it is heard."""
        return launch == self.launch and step <= self.step


@dataclass(slots=True)
class StrengthLoop:
    """One run's: what its paired probes say, the count before, and the pairs that are judged."""

    quality: PairedEvidence = field(default_factory=PairedEvidence)
    before: RunCount | None = None
    judged: JudgedPairs = field(default_factory=JudgedPairs)

    def step(
        self,
        count: RunCount,
        row: RunRow,
        limits: StrengthLimits,
        *,
        price: float | None,
        differ: bool,
        untaken: bool = False,
    ) -> StrengthStep:
        """Decide the strength after a count.

        Args:
            count: what the run says.
            row: the run.
            limits: of it.
            price: see `price_of`.
            differ: see `StrengthFacts`.
            untaken: see `StrengthFacts`.
        """
        before, self.before = self.before, replace(count, pairs=())
        if before and (before.launch, before.layout) != (count.launch, count.layout):
            self.other_lean()  # other experts may be on the cheap GPUs
        self._judge(before, count, limits)
        return next_strength(
            leans_by(count),
            StrengthFacts(
                too_dear=self.quality.stop,
                in_doubt=self.quality.in_doubt,
                proven=self.quality.proven,
                fresh=count.gap is not None,
                largest_load=_largest_load(before, count),
                price=price,
                trained=trained(row),
                differ=differ,
                untaken=untaken,
            ),
            limits,
        )

    def other_lean(self) -> None:
        """Forget what was proven: at other scores, in another layout or launch."""
        self.quality = begun_anew(self.quality)

    def _judge(self, before: RunCount | None, count: RunCount, limits: StrengthLimits) -> None:
        """Judge the pairs of a count that were not judged yet, each with what it leaned by.

        A launch that does not say what it leaned by has one pair a count, measured before its ranks
        agreed on another strength. Of a run that does not lean a pair only shows that it is
        measured.
        """
        if count.version != 0:
            for pair in count.pairs:
                if not self.judged.has(count.launch, pair.step):
                    self._judge_one(count.launch, pair, limits)
            return
        same = before is not None and before.launch == count.launch
        leaned = before.strength if before is not None and same else count.strength
        if count.gap is None or leaned <= 0:
            return
        # Two losses that are one number are those of routers that do not lean at all.
        steady = same and leaned == count.strength and count.gap != 0.0
        self.quality = judged(self.quality, count.gap, leaned, steady=steady, bound=limits.gap)

    def _judge_one(self, launch: str, pair: HeardPair, limits: StrengthLimits) -> None:
        last = self.judged
        self.judged = newest_of(launch, (pair,))
        here = (launch, pair.generation, pair.lean)
        if last.launch and (last.launch, last.generation, last.lean) != here:
            self.other_lean()
        if pair.strength > 0:
            steady = pair.gap != 0.0
            self.quality = judged(
                self.quality, pair.gap, pair.strength, steady=steady, bound=limits.gap
            )


def newest_of(launch: str, pairs: Sequence[HeardPair]) -> JudgedPairs:
    """Take pairs for judged; none: of no launch."""
    if not pairs:
        return JudgedPairs()
    newest = pairs[-1]
    return JudgedPairs(
        launch=launch, step=newest.step, generation=newest.generation, lean=newest.lean
    )


def leans_by(count: RunCount) -> RunStrength:
    """Return what a run says that it leans by."""
    return RunStrength(strength=count.strength, variation=count.variation, stopped=count.stopped)


def trained(row: RunRow) -> float | None:
    """Return the share of a run's tokens that is done; None: not known."""
    return row.tokens / row.tokens_total if row.tokens_total > 0 else None


def price_of(turn: NewestTurn | None, monotonic_s: float) -> float | None:
    """Return the grid's intensity now over the mean of the hours ahead; None: not known."""
    if turn is None or monotonic_s - turn.monotonic_s > OLDEST_TURN_S:
        return None
    observation = turn.report.observation
    return None if observation is None else _price(observation.carbon)


def _price(carbon: CarbonView) -> float | None:
    if carbon.trouble or len(carbon.slots) < 2:
        return None
    first = carbon.slots[0]
    near = [
        each for each in carbon.slots if (each.start - first.start).total_seconds() < HOURS_AHEAD_S
    ]
    spans_s = [(each.end - each.start).total_seconds() for each in near]
    grams = math.fsum(each.g_per_kwh * s for each, s in zip(near, spans_s, strict=True))
    mean = grams / math.fsum(spans_s)
    return first.g_per_kwh / mean if mean > 0 else None


def _largest_load(before: RunCount | None, count: RunCount) -> float | None:
    """Return the largest load of a GPU over the mean since the count before; None: not known."""
    if before is None or (before.launch, before.layout) != (count.launch, count.layout):
        return None
    tokens: Mapping[str, int] = count.tokens
    if tokens.keys() != before.tokens.keys() or not tokens:
        return None
    added = [tokens[gpu] - before.tokens[gpu] for gpu in tokens]
    mean = math.fsum(added) / len(added)
    return max(added) / mean if mean > 0 and min(added) >= 0 else None
