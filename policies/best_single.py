"""The best single point: what a careful person chooses once, at submission. Pure.

It splits a saving in two: what choosing this point at submission would have saved, and what
following the grid saved beyond that. Only the second part may be called carbon-aware. The point is
chosen when a run registers, from what was known then: later knowledge flatters neither part.
"""

from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint


def best_single(
    catalogue: Catalogue, baseline: str, *, tokens: int, world_size: int, seconds: float | None
) -> str:
    """Choose the point of the fewest joules per token that alone does all the work in time.

    Args:
        catalogue: the run's points; only validated ones count, and the baseline.
        baseline: the submitted point; chosen where no other is better.
        tokens: of the whole work.
        world_size: GPUs the run holds.
        seconds: until the deadline; None: there is none, and then no point slower than the
            baseline counts.
    """
    submitted = catalogue.point(baseline)
    longest_s = tokens / submitted.tokens_per_s
    limit_s = longest_s if seconds is None else max(seconds, longest_s)

    def joules(point: OperatingPoint) -> float:
        return catalogue.held_power_w(point, max(world_size, point.gpus)) / point.tokens_per_s

    able = [
        point
        for point in catalogue.points
        if point.id == baseline
        or (point.evidence is Evidence.VALIDATED and tokens / point.tokens_per_s <= limit_s)
    ]
    return min(able, key=lambda each: (joules(each), each.id != baseline)).id
