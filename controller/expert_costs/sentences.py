"""What a run was told of expert costs, as one sentence of the journal and of `why`. Pure."""

from collections.abc import Mapping

from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.policies.experts.costs import TokenCost
from wattmesh.policies.experts.published import PublishedScores
from wattmesh.reconfig.wire.experts import MOST_PAIRS

EXPERT_COSTS = "expert_costs"
"""Kind of these events."""


def told_of(row: RunRow) -> str:
    """Begin every sentence of one run."""
    return f"{row.name} ({row.run}): "


def begins(row: RunRow) -> str:
    """Begin every sentence of what one run is told."""
    return f"{told_of(row)}expert costs, version "


def version_in(detail: str) -> int:
    """Return the version that such a sentence tells; 0: it tells none."""
    word = detail.partition("expert costs, version ")[2].partition(":")[0]
    return int(word) if word.isascii() and word.isdecimal() else 0


def sentence(
    row: RunRow, told: PublishedScores, costs: Mapping[str, TokenCost], why: str = ""
) -> str:
    """Say what a run is told from now on; `why` its lean is another one."""
    said = _told(row, told, costs)
    return f"{said.removesuffix('.')}; of the strength: {why}." if why else said


def takes_lean(moved: float) -> str:
    """Say that experts lean by where they lie now; "" where that moves nothing."""
    if moved <= 0:
        return ""
    return (
        "experts that lie elsewhere by now take the scores of their GPUs, which moves the lean as "
        f"{moved:.3g} of strength does"
    )


def lost_pairs(row: RunRow, count: int) -> str:
    """Say that paired probes were dropped before a daemon heard of them."""
    return (
        f"{told_of(row)}{count} paired probes were dropped unjudged, the oldest first, as more "
        f"than {MOST_PAIRS} of them waited for a daemon that leads."
    )


def keeps_lean(row: RunRow, why: str) -> str:
    """Say that experts do not lean by where they lie now."""
    return f"{told_of(row)}its experts lie elsewhere by now, and keep the lean they had: {why}."


def _told(row: RunRow, told: PublishedScores, costs: Mapping[str, TokenCost]) -> str:
    head = f"{begins(row)}{told.version}"
    if told.neutral_because:
        return f"{head}: no router leans: {told.neutral_because}."
    cheap, dear = (find(told.by_gpu, key=lambda gpu: told.by_gpu[gpu]) for find in (min, max))
    leans = f"{head}: routers may lean with strength {told.strength:g}"
    if cheap not in costs or dear not in costs:
        return f"{leans}, by what was learned in the layout before."
    flag = " (simulated)" if costs[cheap].simulated else ""
    return (
        f"{leans}; a token costs {1000 * costs[cheap].joules_per_token:.3g} mJ on {cheap} and "
        f"{1000 * costs[dear].joules_per_token:.3g} mJ on {dear}{flag}."
    )
