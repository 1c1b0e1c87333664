"""What the API tells of a run's expert costs."""

from dataclasses import dataclass, field

from wattmesh.reconfig.wire.experts import ExpertCostScores


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCostLine:
    """What is known of one GPU of a run.

    Attributes:
        joules_per_token: of one expert-token above idle, with its standard deviation `deviation`.
        spans: that were learned from since the last reset.
        unused: why the newest span taught nothing; "" where it did.
    """

    gpu: str
    joules_per_token: float
    deviation: float
    idle_w: float
    spans: int
    simulated: bool
    score: float
    clock_mhz: int | None = None
    limit_w: int | None = None
    unused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCostsView(ExpertCostScores):
    """What a run's GPUs cost its experts: the scores, and with `details=yes` what is behind them.

    Attributes:
        gpus: only with `details=yes`.
    """

    gpus: tuple[GpuCostLine, ...] = field(default=())


NOT_REPORTED = (
    "the run has reported no expert-tokens to this daemon: attach it with expert_costs=, and count "
    "them (docs/experts.md)"
)


def nothing_known(
    run: str, why: str = NOT_REPORTED, gpus: tuple[GpuCostLine, ...] = ()
) -> ExpertCostsView:
    """Say that a run is told nothing, so that it keeps what it has."""
    return ExpertCostsView(
        run=run, version=0, strength=0.0, age_s=0.0, neutral_because=why, gpus=gpus
    )
