"""Is a switch worth it: what it saves until the plan changes again, against what it costs. Pure.

At the solution's price a second at point k costs `intensity * power(k) - mu * tokens_per_s(k)`: the
grams it emits less the grams that its tokens would cost elsewhere. That tells when which point is
better, and so how long to keep the target. What it saves over that time a price for the next token
cannot tell. So both ways are followed until then, at the current point and at the target, and the
least grams of the rest are solved for each.

Invariant: at constant intensity and at the solution's price no switch between the points of the
solution saves anything, so none is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.policies.horizon import between
from wattmesh.policies.hull import Hull
from wattmesh.policies.rules.price import PriceSolution, fill
from wattmesh.policies.shared_grid import SharedSteps
from wattmesh.telemetry.readings import J_PER_KWH

EQUAL = 1e-9
"""Relative difference under which two points are worth the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPower:
    """Where a run is or could be: speed, and watts charged while it is there."""

    tokens_per_s: float
    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEstimate:
    """What a switch takes: seconds without a token, joules; it begins after `wait_s` at most."""

    seconds: float
    energy_j: float
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchGain:
    """What acting now saves against staying, until when the target is to be kept, and the cost."""

    saved_g: float
    until: datetime
    cost_g: float


def better_g_per_s(
    g_per_kwh: float, mu_g_per_token: float, current: SpeedPower, target: SpeedPower
) -> float:
    """Give what each second at `target` instead of `current` saves; 0 when they are equal.

    Differences below rounding count as equal, so that two points the plan does not tell apart are
    not told apart here.
    """
    emits = g_per_kwh / J_PER_KWH * (current.power_w - target.power_w)
    trains = mu_g_per_token * (current.tokens_per_s - target.tokens_per_s)
    better = emits - trains
    return better if abs(better) > EQUAL * (abs(emits) + abs(trains)) else 0.0


def flip_g_per_kwh(mu_g_per_token: float, one: SpeedPower, other: SpeedPower) -> float | None:
    """Give the intensity at which two places are worth the same; None when there is none.

    Below it the faster place is better, above it the slower.
    """
    watts = one.power_w - other.power_w
    tokens_per_s = one.tokens_per_s - other.tokens_per_s
    if watts * tokens_per_s <= 0:
        return None
    return mu_g_per_token * tokens_per_s / watts * J_PER_KWH


def switch_gain(
    hull: Hull,
    solution: PriceSolution,
    current: SpeedPower,
    target: SpeedPower,
    *,
    switch: SwitchEstimate,
    keep_s: float,
    shared: SharedSteps | None = None,
) -> SwitchGain:
    """Give what the target saves when ordered now and kept as long as it is the better one.

    It is kept for `keep_s` at least. Saving starts when the switch is over at the latest. `shared`:
    what other fills over these slots have worked out.
    """
    slots, mu = solution.running(), solution.mu_g_per_token
    start = slots[0].start + timedelta(seconds=switch.wait_s + switch.seconds)
    saved_g, until = _worth_keeping(solution, current, target, start=start, keep_s=keep_s)
    ways = ([(slots[0].start, current)], [(slots[0].start, current), (start, target)])
    stay_g, go_g = (_way_g(hull, solution, until, way, shared) for way in ways)
    if stay_g is not None and go_g is not None:
        saved_g = stay_g - go_g
    elif go_g is None and target.tokens_per_s < current.tokens_per_s:
        saved_g = 0.0
    cost_g = switch_cost_g(slots[0].g_per_kwh, mu, current, switch)
    return SwitchGain(saved_g=saved_g, until=until, cost_g=cost_g)


def _worth_keeping(
    solution: PriceSolution,
    current: SpeedPower,
    target: SpeedPower,
    *,
    start: datetime,
    keep_s: float,
) -> tuple[float, datetime]:
    """Give what the target saves at the solution's price, and until when to keep it.

    A short spell in which the current point were better is stayed through where going on pays for
    it.
    """
    total, slots = 0.0, solution.running()
    best: tuple[float, datetime] | None = None
    least = slots[0].start + timedelta(seconds=keep_s)
    for slot in slots:
        counted_s = max(0.0, (slot.end - max(slot.start, start)).total_seconds())
        total += counted_s * better_g_per_s(
            slot.g_per_kwh, solution.mu_g_per_token, current, target
        )
        if slot.end >= least and (best is None or total > best[0]):
            best = (total, slot.end)
    return best or (total, slots[-1].end)


def _way_g(
    hull: Hull,
    solution: PriceSolution,
    until: datetime,
    places: Sequence[tuple[datetime, SpeedPower]],
    shared: SharedSteps | None,
) -> float | None:
    """Give the grams at `places`, each from its time on, until `until`, and of the rest.

    None when the rest does not fit any more.
    """
    tokens, grams = solution.tokens, 0.0
    ends = [*(since for since, _ in places[1:]), until]
    for (since, place), end in zip(places, ends, strict=True):
        for slot in between(solution.slots, since, min(end, until)):
            length_s = (slot.end - slot.start).total_seconds()
            seconds = min(length_s, tokens / place.tokens_per_s)
            grams += slot.g_per_kwh / J_PER_KWH * place.power_w * seconds
            tokens -= place.tokens_per_s * seconds
            if seconds < length_s:
                return grams
    if tokens <= 0:
        return grams
    rest = fill(hull, between(solution.slots, until, solution.slots[-1].end), tokens, shared)
    return grams + rest.bound_g if rest else None


def switch_cost_g(
    g_per_kwh: float, mu_g_per_token: float, current: SpeedPower, switch: SwitchEstimate
) -> float:
    """Give the grams a switch costs against staying as long at the current point.

    Its energy less what the current point would have drawn, and the tokens not trained at the
    price of the plan; never less than the grams of the energy itself.
    """
    intensity = g_per_kwh / J_PER_KWH
    saved_j = current.power_w * switch.seconds
    lost_g = mu_g_per_token * current.tokens_per_s * switch.seconds
    return max(intensity * switch.energy_j, intensity * (switch.energy_j - saved_j) + lost_g)
