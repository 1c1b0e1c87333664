"""What bounds a lean: each expert's score times the strength, wherever experts are placed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.builders import messages
from tests.experts.test_strength import GOOD
from wattmesh.policies.experts.strength import (
    RunStrength,
    StrengthLimits,
    next_strength,
    scores_stay,
    why_lean_stays,
)
from wattmesh.reconfig.hook.agreed_costs import AgreedCosts, Scores
from wattmesh.reconfig.wire.experts import ExpertCostScores

GPUS = ("a", "b", "c", "d")
LIMITS = StrengthLimits(most=0.2, freeze_at=0.8)
PERIODS = 60


def by_place(costs: ExpertCostScores, holders: np.ndarray) -> Scores:
    """The score of each expert's GPU."""
    return tuple(costs.scores[GPUS[at]] for at in holders)


@dataclass(kw_only=True)
class Leaning:
    """A run under the rules, whose experts are placed elsewhere now and then; what each leans by.

    Attributes:
        why: says why experts keep what they have, `settled` why a run is told no other scores.
        places: whether experts take the scores of where they lie in each generation.
    """

    seed: int
    why: Callable[..., str] = why_lean_stays
    settled: Callable[..., bool] = scores_stay
    places: bool = False
    leans: list[tuple[float, Scores]] = field(default_factory=list)
    variation: float = 0.0
    taken: int = 0

    def run(self) -> "Leaning":
        """Train to the end."""
        draw = np.random.default_rng(self.seed)
        agreed = AgreedCosts()
        costs = ExpertCostScores(run=messages.RUN, version=1, strength=0.0, age_s=0.0)
        costs = replace(costs, scores=dict(zip(GPUS, (-1.0, -1.0, 1.0, 1.0), strict=True)))
        holders = np.arange(8) % 4
        for period in range(PERIODS):
            if draw.random() < 0.4:
                holders = draw.permutation(holders)
                if agreed.costs is not None:
                    here = by_place(agreed.costs, holders)
                    agreed.taken = here if self.places else agreed.keep(here)
            agreed.agree(costs, by_place(costs, holders))
            self.leans.append((period / PERIODS, lean_of(agreed)))
            costs = self.told(draw, agreed, holders, period / PERIODS)
        self.variation = agreed.variation
        return self

    def told(
        self, draw: np.random.Generator, agreed: AgreedCosts, holders: np.ndarray, trained: float
    ) -> ExpertCostScores:
        """Decide as the daemon does after a count."""
        costs = agreed.costs
        assert costs is not None
        now = RunStrength(strength=costs.strength, variation=agreed.variation, stopped=False)
        facts = replace(GOOD, price=float(draw.uniform(0, 1.2)), trained=trained)
        step = next_strength(now, facts, LIMITS)
        newer = replace(costs, version=costs.version + 1, strength=step.strength)
        if draw.random() < 0.1 and not self.settled(now, trained, LIMITS, step.strength):
            scores = [float(each) for each in draw.uniform(-2, 2, 4)]
            return replace(newer, scores=dict(zip(GPUS, scores, strict=True)))
        pending = agreed.pending(by_place(costs, holders))
        if pending <= 0 or step.strength <= 0:
            return newer
        if self.why(now, pending, trained, LIMITS, step.strength):
            return newer
        self.taken += 1
        return replace(newer, renewal=costs.renewal + 1)


def lean_of(agreed: AgreedCosts) -> Scores:
    """What each expert leans by."""
    return tuple(agreed.strength * each for each in agreed.taken or ())


def broken(runs: list[Leaning]) -> set[str]:
    """Name the bounds that runs break, each judged anew from what their experts leaned by."""
    found = set()
    for each in runs:
        before: Scores = (0.0,) * 8
        spent = 0.0
        for trained, lean in each.leans:
            move = max(abs(a - b) for a, b in zip(before, lean, strict=True))
            spent, before = spent + move / 2, lean
            if move > 1e-12 and trained > LIMITS.freeze_at + 1 / PERIODS:
                found.add("frozen")
        if spent + max(map(abs, before)) / 2 > LIMITS.variation + 1e-9:
            found.add("variation")
        if spent > each.variation + 1e-9:
            found.add("counted")
    return found


def test_no_expert_leans_further_than_its_run_may_wherever_it_is_placed() -> None:
    """Sum of all moves, the way back to 0, the freeze; and experts do take scores on the way."""
    runs = [Leaning(seed=seed).run() for seed in range(16)]
    assert broken(runs) == set()
    assert sum(each.taken for each in runs) >= 16


@pytest.mark.parametrize(
    ("twin", "bounds"),
    [
        ({"places": True}, {"frozen", "variation", "counted"}),
        ({"why": lambda *_: ""}, {"frozen", "variation"}),
        ({"settled": lambda *_: False}, {"frozen", "variation"}),
    ],
)
def test_a_run_whose_experts_lean_by_where_they_lie_at_once_breaks_the_bounds(
    twin: dict[str, Callable[..., object]], bounds: set[str]
) -> None:
    """As it was: placed, and leaning otherwise in the next step. So the check can fail."""
    runs = [Leaning(seed=seed, **twin).run() for seed in range(8)]  # type: ignore[arg-type]
    assert broken(runs) == bounds


def test_why_experts_keep_their_lean_is_one_sentence() -> None:
    """Late, unknown, spent; and nothing where there is room."""
    now = RunStrength(strength=0.1, variation=0.3, stopped=False)
    assert why_lean_stays(now, 0.1, 0.5, LIMITS, 0.1) == ""
    assert why_lean_stays(now, 0.1, 0.8, LIMITS, 0.1) == (
        "from 80% of the run's tokens on nothing moves it"
    )
    assert "as it has no tokens_total" in why_lean_stays(now, 0.1, None, LIMITS, 0.1)
    spent = replace(now, variation=0.65)
    assert why_lean_stays(spent, 0.1, 0.5, LIMITS, 0.1) == (
        "other scores move it by 0.1, and 0.65 of 0.8 of all changes are spent"
    )
    assert why_lean_stays(spent, 0.05, 0.5, LIMITS, 0.1) == ""


COSTS = ExpertCostScores(
    run=messages.RUN, version=7, strength=0.1, age_s=0.0, scores={"a": -1.0, "b": 1.0}
)


def test_the_checkpoint_keeps_what_experts_took_and_old_ones_are_read() -> None:
    """Bit for bit; one of before takes where its experts lie, and counts nothing for it."""
    agreed = AgreedCosts()
    agreed.agree(COSTS, (-1.0, 1.0))
    kept = agreed.state_dict()
    assert kept["taken"] == [-1.0, 1.0]
    again = AgreedCosts()
    again.load_state_dict(kept)
    assert again.state_dict() == kept
    assert again.keep((1.0, -1.0)) == (-1.0, 1.0)
    assert again.pending((1.0, -1.0)) == pytest.approx(0.1)
    old = AgreedCosts()
    old.load_state_dict({"costs": COSTS.to_json(), "variation": 0.1})
    assert old.pending((1.0, -1.0)) == 0.0
    assert old.keep((1.0, -1.0)) == (1.0, -1.0)
    assert old.variation == 0.1


@pytest.mark.parametrize("spoilt", [{"taken": ["x"]}, {"taken": 5}, {"since": "x"}, {"where": 3}])
def test_a_spoilt_state_is_read_as_none(spoilt: dict[str, object]) -> None:
    """What is no score is not leaned by."""
    agreed = AgreedCosts()
    agreed.load_state_dict({"costs": COSTS.to_json(), **spoilt})
    assert (agreed.taken, agreed.since) == (None, 0)


def test_another_strength_scales_the_lean_that_experts_have() -> None:
    """Placed elsewhere meanwhile, they do not go over to their new GPUs' scores by it."""
    agreed = AgreedCosts()
    agreed.agree(COSTS, (-1.0, 1.0))
    agreed.agree(replace(COSTS, version=8, strength=0.15), (1.0, -1.0))
    assert lean_of(agreed) == pytest.approx((-0.15, 0.15))
    assert agreed.variation == pytest.approx(0.15)
    assert agreed.since == 7
    agreed.agree(replace(COSTS, version=9, strength=0.15, renewal=1), (1.0, -1.0))
    assert lean_of(agreed) == pytest.approx((0.15, -0.15))
    assert agreed.variation == pytest.approx(0.30)
    assert agreed.since == 9


def test_a_function_of_the_jobs_own_is_counted_at_its_worst() -> None:
    """In another layout or placement an expert may go from one end of the scores to the other."""
    agreed = AgreedCosts()
    agreed.agree(COSTS)
    spent = []
    for where in ("dp2 x", "dp2 x", "dp1 x", "dp1 y"):
        agreed.called_in(where)
        spent.append(agreed.variation)
    assert spent == pytest.approx([0.1, 0.1, 0.2, 0.3])


def test_only_a_newer_version_leans_again_after_a_stop() -> None:
    """Of an operator who begins anew; an older one without a lean, or stopped as well, is taken."""
    agreed = AgreedCosts()
    assert agreed.refuses(COSTS) == ""
    agreed.agree(replace(COSTS, strength=0.0, stopped=True))
    for version, strength, stopped, taken in (
        (6, 0.1, False, False),
        (7, 0.1, False, False),
        (8, 0.1, False, True),
        (6, 0.0, False, True),
        (6, 0.1, True, True),
    ):
        told = replace(COSTS, version=version, strength=strength, stopped=stopped)
        assert (agreed.refuses(told) == "") is taken
    assert "stopped this run's lean with version 7, and they are version 6" in agreed.refuses(
        replace(COSTS, version=6)
    )
