"""What the automatic policy says: clauses that follow "staying at A: " or "switching ... to B: ".

Numbers come first, in the units people read. The price mu is shown as the intensity at which the
current point and the next one cost the same, which can be compared with a curve of the grid.

Invariant: a clause is one line without a period at its end.
"""

from datetime import datetime

from wattmesh.policies.guard import Guard
from wattmesh.policies.hull import Hull, Vertex
from wattmesh.policies.menu import why_not
from wattmesh.policies.planner.constraints import too_slow
from wattmesh.policies.reason_text import clause, moment
from wattmesh.policies.rules.gate import SwitchGain
from wattmesh.policies.rules.outlook import Outlook
from wattmesh.policies.run_context import RunContext
from wattmesh.quantities import duration, figures, grams, intensity
from wattmesh.reconfig.catalogue import OperatingPoint


def no_choice(context: RunContext, hull: Hull) -> str:
    """Say why there is no other point to choose."""
    run = context.run
    here = run.current.id if run.current else ""
    for dominated in hull.dominated:
        if dominated.point.id != here:
            return clause(dominated.reason)
    for point in run.catalogue.points if run.catalogue else ():
        if point.id != here:
            why = why_not(point, run, context.seen.policy) or too_slow(context, point)
            return f"there is no other point to choose: {why}"
    return "its catalogue has no other point"


def no_slack(guard: Guard, current: OperatingPoint) -> str:
    """Say that time is too short for any change."""
    rest, left = duration(guard.finish_s(current)), duration(guard.time_left_s)
    return f"the rest takes {rest} and the deadline is in {left}, which leaves no room for a switch"


def at_target(context: RunContext, view: Outlook) -> str:
    """Say where the grid stands against mu, and when the plan changes next."""
    now = context.seen.now
    low, high = _thresholds(view)
    at = f"the grid is at {intensity(view.now_g_per_kwh)}"
    for slot in view.running[1:]:
        if low is not None and slot.g_per_kwh < low:
            return f"{at} and falls below mu = {intensity(low)} {_when(view, slot.start, now)}"
        if high is not None and slot.g_per_kwh > high:
            return f"{at} and rises above mu = {intensity(high)} {_when(view, slot.start, now)}"
    end = f"until the work is done, by {moment(view.running[-1].end, now)}"
    if low is not None and high is not None:
        return f"{at} and stays between mu = {intensity(low)} and {intensity(high)} {end}"
    if low is not None:
        return f"{at} and stays above mu = {intensity(low)} {end}"
    if high is not None:
        return f"{at} and stays below mu = {intensity(high)} {end}"
    return f"{at} and no other point is better at any intensity {end}"


def barred(guard: Guard, view: Outlook, target: Vertex) -> str:
    """Say that the guard does not let the run go where the plan would like it."""
    if not guard.returns_from(target.point):
        return (
            f"{target.point.id} gives GPUs back, and nobody measured how long it takes until they "
            "are there again (switch.reacquire_s), so the way back cannot be counted on"
        )
    late = duration(-guard.slack_after_s(view.current, target.point))
    fails = "if switches fail on the way"
    if target.point.layout == view.current.layout:
        fails = "from there"
    return (
        f"{target.point.id} is better at {intensity(view.now_g_per_kwh)}, but {fails} the run "
        f"could end {late} after its deadline"
    )


def limited(view: Outlook, target: Vertex, why: str) -> str:
    """Say that another point is better, but that the run changed too often for it."""
    return f"{target.point.id} is better at {intensity(view.now_g_per_kwh)}, but {why}"


def too_small(context: RunContext, target: Vertex, made: SwitchGain) -> str:
    """Say that a switch does not pay."""
    until = moment(made.until, context.seen.now)
    if made.saved_g <= 0:
        return f"{target.point.id} is better just now, but kept until {until} it would save nothing"
    factor = figures(context.seen.policy.gain_factor)
    return (
        f"a switch to {target.point.id} now costs {grams(made.cost_g)} to save "
        f"{grams(made.saved_g)} by {until}, and it must save {factor} times its cost"
    )


def switch(
    context: RunContext, guard: Guard, view: Outlook, target: Vertex, made: SwitchGain
) -> tuple[str, str]:
    """Give the kind of a switch and why it is made.

    "carbon" when only the course of the grid speaks for it; "energy" or "pace" when it were right
    on a grid that never changes too, for fewer joules per token or for the deadline.
    """
    now = context.seen.now
    after = guard.slack_after_s(view.current, target.point)
    act = "change" if target.point.layout == view.current.layout else "switch"
    tail = (
        f"saves {grams(made.saved_g)} by {moment(made.until, now)}, the {act} costs "
        f"{grams(made.cost_g)}, "
        f"deadline slack {duration(guard.slack_s(view.current))} to at least {duration(after)}"
    )
    kind, why = _motive(view, target)
    return kind, f"{why}; {tail}"


def _motive(view: Outlook, target: Vertex) -> tuple[str, str]:
    """Give the kind of a switch and the fact that speaks for it."""
    name, flip = target.point.id, view.flip(target)
    faster = target.tokens_per_s > view.here.tokens_per_s
    if flip is not None and not view.better_when_flat(target):
        side = "below" if faster else "above"
        at = intensity(view.now_g_per_kwh)
        return "carbon", f"the grid at {at} is {side} mu = {intensity(flip)}"
    here = view.here.power_w / view.here.tokens_per_s
    fewer = 1.0 - target.power_w / target.tokens_per_s / here
    if fewer > 0:
        return "energy", (
            f"{name} needs {figures(100 * fewer, 2)} % fewer joules per token, on a grid that "
            "never changes too"
        )
    return "pace", f"the plan needs the speed of {name} to be done by the deadline"


def _thresholds(view: Outlook) -> tuple[float | None, float | None]:
    """Give the intensities below and above which another vertex is better than staying."""
    low: float | None = None
    high: float | None = None
    for vertex in view.hull.vertices:
        flip = view.flip(vertex)
        if flip is None:
            continue
        if vertex.tokens_per_s > view.here.tokens_per_s:
            low = flip if low is None else max(low, flip)
        else:
            high = flip if high is None else min(high, flip)
    return low, high


def _when(view: Outlook, at: datetime, now: datetime) -> str:
    """Say when, and that the value is assumed where the forecast does not reach."""
    if at < view.horizon.reach:
        return f"at {moment(at, now)}"
    reach = moment(view.horizon.reach, now)
    return (
        f"at {moment(at, now)}, if the grid after the forecast's end at {reach} takes "
        f"{view.horizon.extended}"
    )
