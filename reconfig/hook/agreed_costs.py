"""What all ranks agreed on of expert costs, and how far their experts' lean has moved by it.

An expert's lean is its score times the strength. Invariant: experts keep the scores that they took,
wherever they are placed and in whatever layout they train, until costs are agreed that have other
scores or a newer `renewal`; and `variation` counts whatever moves a lean.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import ranges
from wattmesh.reconfig.wire.experts import ExpertCostScores

Scores = tuple[float, ...]
"""One for each expert of a layer."""


class AgreedCosts:
    """What all ranks agreed on, as extra state of the checkpoint.

    Attributes:
        costs: None while there are none, or none that this version understands. Read once: for
            thousands of GPUs that takes tens of milliseconds.
        variation: sum of all changes of the lean over the run, as changes of the strength.
        taken: the scores that experts have; None: not known, as the job hands costs on by a
            function of its own, or none were agreed yet.
        since: version of the costs with which the scores came to be as they are.
        where: layout and placement that such a function was last called in while it leaned.
    """

    def __init__(self) -> None:
        """Begin without costs."""
        self._told: dict[str, Any] | None = None
        self.costs: ExpertCostScores | None = None
        self.variation = 0.0
        self.taken: Scores | None = None
        self.since = 0
        self.where = ""

    @property
    def strength(self) -> float:
        """What routers lean by; 0 without costs."""
        return 0.0 if self.costs is None else self.costs.strength

    def agree(self, costs: ExpertCostScores, here: Scores | None = None) -> None:
        """Hold these from now on.

        Args:
            costs: what the leader heard.
            here: by them, the scores of where experts lie now; None: not known.
        """
        before = self.costs
        other = before is None or before.scores != costs.scores or before.renewal != costs.renewal
        # Without a lean, other scores move nothing.
        takes = other or self.strength == 0.0 or self.taken is None
        after = here if takes or here is None else self.taken
        if here is None or (self.taken is None and before is not None):
            self.variation += moved_by_gpu(before, costs)
        else:
            self.variation += moved(self.strength, self.taken, costs.strength, after)
        self.taken, self.costs = after, replace(costs, judged=None)
        self._told = self.costs.to_json()
        if takes and (other or here is not None):
            self.since = costs.version

    def refuses(self, costs: ExpertCostScores) -> str:
        """Say why these are not taken, though they can be used; "" where they are.

        Once quality has stopped a lean, an older version does not bring it back: it is of a journal
        from before the stop.
        """
        held = self.costs
        if held is None or not held.stopped or costs.stopped or costs.strength == 0.0:
            return ""
        if costs.version > held.version:
            return ""
        return (
            f"quality has stopped this run's lean with version {held.version}, and they are "
            f"version {costs.version}, of a journal from before that"
        )

    def keep(self, here: Scores) -> Scores:
        """Give the scores that experts have, in whichever generation.

        They are those of where they lie now (`here`) while they have none, or while nothing leans.
        """
        if self.taken is None or len(self.taken) != len(here) or self.strength == 0.0:
            self.taken = here
        return self.taken

    def pending(self, here: Scores | None) -> float:
        """Return how far the lean would move, if experts took the scores of where they lie now."""
        if here is None or self.taken is None:
            return 0.0
        return moved(self.strength, self.taken, self.strength, here)

    def called_in(self, where: str) -> None:
        """Count what a function of the job's own may have moved, called in a generation.

        In another layout or placement an expert's score may go from one end to the other.
        """
        costs = self.costs
        if costs is None or costs.strength == 0.0:
            return
        if self.where not in ("", where):
            found = costs.scores.values()
            width = max(found, default=0.0) - min(found, default=0.0)
            self.variation += costs.strength * width / ranges.LARGEST_SCORE
        self.where = where

    def state_dict(self) -> dict[str, Any]:
        """Give what the checkpoint keeps."""
        kept: dict[str, Any] = {"costs": self._told}
        if self.variation:
            kept["variation"] = self.variation
        if self.taken is not None:
            kept["taken"] = list(self.taken)
        if self.since:
            kept["since"] = self.since
        if self.where:
            kept["where"] = self.where
        return kept

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back as it was, so that its digest is the one that was saved."""
        told = state_dict.get("costs")
        self._told = told if isinstance(told, dict) else None
        self.costs = None
        with suppress(InputInvalid):
            self.costs = None if self._told is None else ExpertCostScores.from_json(self._told)
        spent = state_dict.get("variation", 0.0)
        self.variation = spent if isinstance(spent, float) else 0.0
        taken, since = state_dict.get("taken"), state_dict.get("since", 0)
        whole = isinstance(taken, list | tuple) and all(isinstance(each, float) for each in taken)
        self.taken = tuple(taken) if whole and taken is not None else None
        self.since = since if isinstance(since, int) else 0
        self.where = str(state_dict.get("where", ""))


def moved(before: float, was: Scores | None, after: float, becomes: Scores | None) -> float:
    """Return how far a lean moved, as the change of strength that may move an expert as far.

    Args:
        before: strength so far.
        was: scores so far; None: all 0.
        after: strength from now on.
        becomes: scores from now on; None: all 0.
    """
    length = max(len(was or ()), len(becomes or ()))
    old, new = ((each or ()) + (0.0,) * (length - len(each or ())) for each in (was, becomes))
    leans = (abs(after * b - before * a) for a, b in zip(old, new, strict=True))
    return max(abs(after - before), max(leans, default=0.0) / ranges.LARGEST_SCORE)


def moved_by_gpu(before: ExpertCostScores | None, after: ExpertCostScores) -> float:
    """Return the same where only the scores of GPUs are known."""
    if before is None:
        return after.strength
    gpus = sorted({*before.scores, *after.scores})
    was, becomes = (tuple(each.scores.get(gpu, 0.0) for gpu in gpus) for each in (before, after))
    return moved(before.strength, was, after.strength, becomes)
