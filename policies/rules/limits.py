"""The operator's limits on how often a run may change: dwell, clock dwell, switches a day. Pure.

Invariant: a change of the clock is held by the clock's dwell alone; a change of the layout, sleep
included, by the dwell and by the limit a day.
"""

from wattmesh.policies.run_context import RunContext
from wattmesh.quantities import duration
from wattmesh.reconfig.catalogue import OperatingPoint


def too_often(context: RunContext, target: OperatingPoint | None) -> tuple[str, str] | None:
    """Say which limit forbids a change now; None when none does.

    Args:
        context: the run.
        target: the point to go to; None: to sleep.

    Returns:
        The kind of the hold, and why as a clause.
    """
    run, policy = context.run, context.seen.policy
    if target is not None and target.layout == run.layout:
        return _too_soon(
            "clock_dwell", "change of the clock", run.since_clock_s, policy.clock_dwell_s
        )
    dwell = _too_soon("dwell", "switch", run.since_switch_s, policy.dwell_s)
    if dwell is None and run.switches_today >= policy.max_switches_per_day:
        return "day_limit", (
            f"it switched {run.switches_today} times in the last 24 h and "
            f"policy.max_switches_per_day is {policy.max_switches_per_day}"
        )
    return dwell


def _too_soon(
    kind: str, what: str, since_s: float | None, least_s: float
) -> tuple[str, str] | None:
    if since_s is None or since_s >= least_s:
        return None
    return kind, (
        f"the last {what} was {duration(since_s)} ago and policy.{kind}_s is {duration(least_s)}"
    )
