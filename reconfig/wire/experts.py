"""What a run and the daemon tell each other of expert costs: counts there, scores back.

Both are calls of their own, beside protocol 2: a run that did not ask for costs says nothing else
than before, and an older daemon answers these two calls with 404, on which the run trains on.
"""

from dataclasses import dataclass, field
from typing import Annotated

from wattmesh.reconfig import ranges
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.wire.messages import Message

STALE_S = 900.0
"""Costs move with clocks and temperature; older ones are of another machine."""

TokensByGpu = Annotated[dict[ranges.Meter, ranges.ExpertTokens], ranges.Many(ranges.MOST_RANKS)]
SecondsByGpu = Annotated[dict[ranges.Meter, ranges.Seconds], ranges.Many(ranges.MOST_RANKS)]
ScoresByGpu = Annotated[dict[ranges.Meter, ranges.CostScore], ranges.Many(ranges.MOST_RANKS)]


MOST_PAIRS = 64
"""Paired probes that wait for a daemon; beyond it the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPair(Message):
    """What leaning cost in one paired probe.

    Attributes:
        step: of the save step that it was told at; of a launch each pair is judged once.
        gap: (loss with the lean - loss without) / loss without: the mean of the ranks.
        strength: that routers leaned by, above 0.
        lean: version of the costs with which experts took the scores that they leaned by.
        generation: of the launch, which other pairs have where layout and placement were the same.
    """

    step: ranges.Steps
    gap: ranges.LossGap
    strength: ranges.LeanStrength
    lean: ranges.CostVersion
    generation: ranges.Serial


WaitingPairs = Annotated[tuple[LossPair, ...], ranges.Many(MOST_PAIRS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTokenReport(Message):
    """What the experts on each GPU have computed in this launch, as all ranks counted at once.

    Attributes:
        seq: rises by one per report of a launch.
        tokens: by GPU: expert-tokens since the launch began. A GPU whose rank does not count is
            left out, never 0.
        busy_s: by GPU: seconds that they took, where the ranks measure them.
        layout: that the ranks train in. `age_s`: seconds since they counted.
        strength: that their routers lean by. `variation`: the sum of all its changes over the run.
            `stopped`: whether quality has stopped it for the rest of the run.
        version: of the costs that they lean by; 0: none, or a hook that does not say.
        pending: how far the lean would move, in the unit of `variation`, if experts took the scores
            of the GPUs that they lie on now; see `ExpertCostScores.renewal`.
        gap: (loss with the lean - loss without) / loss without, of one batch, where the job
            measured it since the report before; None: it did not.
        pairs: of routers that leaned, those that no daemon is known to have judged, oldest first.
        dropped: such pairs of this launch that were dropped, as more than `MOST_PAIRS` waited.
    """

    run: ranges.RunId
    incarnation: ranges.Token
    attempt: ranges.Attempt
    seq: ranges.Serial
    tokens: TokensByGpu
    layout: Layout
    busy_s: SecondsByGpu = field(default_factory=dict)
    age_s: ranges.Seconds = 0.0
    strength: ranges.LeanStrength = 0.0
    variation: ranges.LeanVariation = 0.0
    stopped: bool = False
    version: ranges.CostVersion = 0
    pending: ranges.LeanVariation = 0.0
    gap: ranges.LossGap | None = None
    pairs: WaitingPairs = ()
    dropped: ranges.Serial = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCostScores(Message):
    """What a run's GPUs cost its experts, as scores for its routers.

    Attributes:
        version: rises with every change; 0: nothing is known (yet), so that what a run has stays.
        strength: how far routers may lean; 0: not at all.
        age_s: seconds since the daemon last knew that these hold.
        scores: by GPU: (cost - mean) / deviation within +-2; all exactly 0 where the GPUs are not
            known to differ.
        neutral_because: why they are 0; "" where they are not.
        stopped: whether quality has stopped the lean of this run for good.
        renewal: rises when experts are to take the scores of the GPUs that they lie on by then.
            Until then they keep those they took, wherever they are placed.
        judged: step of the newest paired probe of the run's present launch that is judged for good;
            None: not known.
    """

    run: ranges.RunId
    version: ranges.CostVersion
    strength: ranges.LeanStrength
    age_s: ranges.Seconds
    scores: ScoresByGpu = field(default_factory=dict)
    neutral_because: ranges.Trouble = ""
    stopped: bool = False
    renewal: ranges.CostVersion = 0
    judged: ranges.Steps | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementWish(Message):
    """What a person asks for: the experts of a run, placed anew at its next save step.

    Attributes:
        placement: by layer of experts, the expert in each row of its stacks.
        reason: why; the journal keeps it.
        gpus: for how many ranks of an expert-parallel group it was made; 0: not said.
    """

    placement: Placement
    reason: ranges.Said
    gpus: Annotated[int, ranges.Whole(0, ranges.MOST_RANKS, "as a number of GPUs")] = 0
