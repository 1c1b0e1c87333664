"""The result of one check, and the equivalence class that a point's results prove. Pure.

Invariant: a required check that was not made counts against a point; so does a figure that is NaN.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from wattmesh.reconfig.catalogue import Equivalence


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one check: a figure that must not exceed a limit.

    Attributes:
        check: V1 to V11 (docs/convergence.md).
        name: the measured quantity, in a few words.
        measured: the figure; nan and inf are never ok.
        sentence: the result in words, with the first fault.
    """

    check: str
    name: str
    measured: float
    limit: float
    sentence: str

    @property
    def ok(self) -> bool:
        """Tell whether the figure is within its limit; nan never is."""
        return self.measured <= self.limit

    def __str__(self) -> str:
        """Format as one line."""
        mark = "ok" if self.ok else "NOT OK"
        return f"{self.check} {self.name}: {self.measured:.3g} <= {self.limit:.3g} {mark}"


ALWAYS = frozenset({"V1", "V2", "V3"})
"""Checks that every numerical point needs: state, trajectory and data."""

LIMITS = {"V1": 0.0, "V2": 1e-12, "V3": 0.0, "V4": 0.0, "V5": 1e-12, "V6": 0.0, "V8": 0.05}
"""The loosest limit with which a check counts as a proof."""

WHERE_USED = {"dropout": "V4", "masked_loss": "V5", "experts": "V6"}
"""From a feature of the model to the additional check that it requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """The class of a point, and why it is not a better one."""

    equivalence: Equivalence
    because: str


def needed(features: Collection[str]) -> frozenset[str]:
    """Return the checks that prove T1's assumptions for a model with these features."""
    return ALWAYS | {WHERE_USED[each] for each in features}


def classify(
    verdicts: Iterable[Verdict], *, features: Collection[str] = (), same_layout: bool = False
) -> Classified:
    """Return the best class that a point's results prove.

    * exact: the reference's own layout, state bitwise (V1).
    * numerical: every assumption of T1 that this model touches was checked and holds, V2 in fp64.
    * statistical: the state moves bitwise (V1) and final losses are equivalent over seeds (V8).
    * none: anything else.

    Args:
        verdicts: of this point against the reference; a check may occur more than once.
        features: those of "dropout", "masked_loss" and "experts" that the model has.
        same_layout: whether the point has the reference's layout.
    """
    findings = tuple(verdicts)
    failed, passed = [each for each in findings if not each.ok], _passed(findings)
    missing = sorted(needed(features) - passed - {each.check for each in failed})
    if same_layout and not failed and "V1" in passed:
        return Classified(equivalence=Equivalence.EXACT, because="the reference's own layout")
    if not failed and not missing:
        names = ", ".join(sorted(passed))
        return Classified(equivalence=Equivalence.NUMERICAL, because=f"{names} hold")
    why = "; ".join(each.sentence for each in failed) or f"not checked: {', '.join(missing)}"
    if {"V1", "V8"} <= passed:
        return Classified(equivalence=Equivalence.STATISTICAL, because=f"not numerical: {why}")
    return Classified(equivalence=Equivalence.NONE, because=why)


def _passed(findings: Sequence[Verdict]) -> set[str]:
    """The checks that never failed, with a limit strict enough to prove something."""
    strict = {each.check for each in findings if each.limit <= LIMITS.get(each.check, math.inf)}
    return strict - {each.check for each in findings if not each.ok}
