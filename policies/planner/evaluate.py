"""What a path comes to, second by second: the judge of every plan. Plain Python, no planner code.

Semantics. At the start of a slot whose option differs from the one before a transition begins: for
its seconds no token is trained and its joules are drawn evenly (at once when it takes no time);
then the option trains at its speed and draws its power. A transition longer than a slot goes on in
the next. The run ends the moment its work is done; nothing is charged after. While a transition
is under way the larger of both options' embodied shares counts.

Invariant: shares no code with the recursion, so that a mistake there shows here.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from wattmesh.policies.planner.problem import Evaluation, OptionTransition, PlanningProblem, Sla
from wattmesh.telemetry.readings import J_PER_KWH

ROUNDING = 1e-9
"""Relative error of sums; work that is done, and time that has passed, but for this is."""


def evaluate(problem: PlanningProblem, path: tuple[int, ...]) -> Evaluation:
    """Follow `path` (option per slot, at most as many as there are slots)."""
    walk = _walked(problem, path)
    if problem.sla is not None:
        walk.broken += _below(problem.sla, walk.knots)
    return Evaluation(
        grams=walk.operational_g + walk.embodied_g,
        operational_g=walk.operational_g,
        embodied_g=walk.embodied_g,
        energy_j=walk.energy_j,
        tokens=walk.tokens,
        ends_s=walk.ends_s,
        layout_switches=walk.layout_switches,
        clock_changes=walk.clock_changes,
        broken=tuple(walk.broken),
    )


def joules_by_slot(problem: PlanningProblem, path: tuple[int, ...]) -> tuple[float, ...]:
    """Give what a path draws in each slot of the problem."""
    return tuple(_walked(problem, path).joules)


@dataclass(slots=True)
class _Walk:
    """Where the run is and what it has cost.

    Attributes:
        busy_s, busy_w, busy_g_per_s: what is left of a transition, its power, its embodied share.
        free_s: time before which no transition may begin; `dwell_until`: none to another layout.
        knots: (time, tokens so far) wherever the speed changes.
        joules: drawn per slot.
    """

    problem: PlanningProblem
    at: int
    dwell_until: float
    now_s: float = 0.0
    tokens: float = 0.0
    energy_j: float = 0.0
    operational_g: float = 0.0
    embodied_g: float = 0.0
    busy_s: float = 0.0
    busy_w: float = 0.0
    busy_g_per_s: float = 0.0
    free_s: float = 0.0
    ends_s: float | None = None
    layout_switches: int = 0
    clock_changes: int = 0
    knots: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    broken: list[str] = field(default_factory=list)
    joules: list[float] = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing drawn in any slot."""
        self.joules = [0.0] * len(self.problem.seconds)

    def slot(self, slot: int, option: int) -> None:
        """Spend one slot at `option`, going there first."""
        if not self.problem.available(slot, option):
            name = self.problem.options[option].name
            self.broken.append(f"{name} is not available in slot {slot}")
        if option != self.at:
            self._go(slot, option)
        left_s = self.problem.seconds[slot]
        busy_s = min(self.busy_s, left_s)
        if busy_s:
            self._spend_time(slot, busy_s, self.busy_w, self.busy_g_per_s)
            self.busy_s -= busy_s
            self._knot()
        left_s -= busy_s
        here = self.problem.options[option]
        missing = self.problem.tokens * (1 - ROUNDING) - self.tokens
        if here.tokens_per_s and missing <= here.tokens_per_s * left_s:
            left_s = max(0.0, missing / here.tokens_per_s)
            self.ends_s = self.now_s + left_s
        self._spend_time(slot, left_s, here.power_w, here.embodied_g_per_s)
        self.tokens += here.tokens_per_s * left_s
        self._knot()

    def _go(self, slot: int, target: int) -> None:
        old, new = self.problem.options[self.at], self.problem.options[target]
        way = self.problem.way(self.at, target)
        self._note_broken_rules(slot, target, way)
        way = way or OptionTransition(seconds=0.0, energy_j=0.0)
        self.layout_switches += old.layout != new.layout
        self.clock_changes += old.layout == new.layout
        if way.seconds:
            self.busy_w = way.energy_j / way.seconds
        else:
            self._charge_joules(slot, way.energy_j)
        self.busy_s = way.seconds
        self.busy_g_per_s = max(old.embodied_g_per_s, new.embodied_g_per_s)
        self.free_s = self.now_s + way.binds_s
        self.at = target

    def _note_broken_rules(self, slot: int, target: int, way: OptionTransition | None) -> None:
        options, early = self.problem.options, self.now_s * (1 + ROUNDING) + ROUNDING
        names = f"{options[self.at].name} to {options[target].name} in slot {slot}"
        if way is None:
            self.broken.append(f"there is no way from {names}")
        if early < self.free_s:
            self.broken.append(f"{names}: too soon after the change before")
        other = options[self.at].layout != options[target].layout
        if other and early < self.dwell_until and not self._driven_out():
            self.broken.append(f"{names}: the layout may not change yet")

    def _driven_out(self) -> bool:
        """Say whether some slot of the dwell has no available option in the start's layout."""
        problem, begin = self.problem, 0.0
        layout = problem.options[problem.start].layout
        kept = [n for n, option in enumerate(problem.options) if option.layout == layout]
        for slot, seconds in enumerate(problem.seconds):
            if begin >= self.dwell_until:
                return False
            if not any(problem.available(slot, each) for each in kept):
                return True
            begin += seconds
        return False

    def _spend_time(
        self, slot: int, seconds: float, power_w: float, embodied_g_per_s: float
    ) -> None:
        self._charge_joules(slot, power_w * seconds)
        self.embodied_g += embodied_g_per_s * seconds
        self.now_s += seconds

    def _charge_joules(self, slot: int, energy_j: float) -> None:
        self.energy_j += energy_j
        self.joules[slot] += energy_j
        self.operational_g += energy_j * self.problem.g_per_kwh[slot] / J_PER_KWH

    def _knot(self) -> None:
        self.knots.append((self.now_s, self.tokens))


def low_windows(problem: PlanningProblem, path: tuple[int, ...]) -> list[tuple[float, float]]:
    """List the windows of `path` below the service level: (tokens, start), the worst first."""
    if problem.sla is None:
        return []
    return sorted(_low(problem.sla, _walked(problem, path).knots))


def kept_from_s(problem: PlanningProblem, path: tuple[int, ...]) -> float | None:
    """Give from which begin on every window of `path` keeps the service level.

    Tokens of a window are straight in its begin between those looked at, so that the time is exact.

    Returns:
        what the level has when all windows do; None when the last one is below, or there is none.
    """
    sla = problem.sla
    if sla is None:
        return None
    windows = _windows(sla, _walked(problem, path).knots)
    least = _least(sla)
    after: tuple[float, float] | None = None
    for start, tokens in reversed(windows):
        if tokens < least:
            if after is None:
                return None
            share = (least - tokens) / (after[1] - tokens)
            return start + share * (after[0] - start)
        after = (start, tokens)
    return sla.from_s if windows else None


def _walked(problem: PlanningProblem, path: tuple[int, ...]) -> "_Walk":
    """Follow a path to its end or the end of the work."""
    walk = _Walk(problem=problem, at=problem.start, dwell_until=problem.dwell_left_s)
    walk.knots[:0] = problem.sla.before if problem.sla else ()
    for slot, option in enumerate(path):
        walk.slot(slot, option)
        if walk.ends_s is not None:
            break
    return walk


def _low(sla: Sla, knots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """List (tokens, start) of windows below the service level."""
    least = _least(sla)
    return [(tokens, start) for start, tokens in _windows(sla, knots) if tokens < least]


def _windows(sla: Sla, knots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """List (start, tokens) of the windows that count and begin or end at a knot, or begin first.

    Tokens over time are straight between knots, so the worst window is one of these. A window that
    is over before the first slot is nobody's to keep any more.
    """
    end_s = knots[-1][0] * (1 + ROUNDING)
    first_s = max(sla.from_s, knots[0][0])
    times = [at for at, _ in knots]
    starts = {*times, *(at - sla.window_s for at in times), first_s}
    return [
        (start, _by(knots, times, start + sla.window_s) - _by(knots, times, start))
        for start in sorted(starts)
        if start >= first_s and 0 <= start + sla.window_s <= end_s
    ]


def _least(sla: Sla) -> float:
    return sla.window_s * sla.tokens_per_s * (1 - ROUNDING)


def _below(sla: Sla, knots: list[tuple[float, float]]) -> list[str]:
    """Name the worst window below the service level, if any."""
    worst = min(_low(sla, knots), default=None)
    if worst is None:
        return []
    return [
        f"from {worst[1]:.0f} s on the average over {sla.window_s:.0f} s is "
        f"{worst[0] / sla.window_s:.6g} tokens/s, below {sla.tokens_per_s:.6g}"
    ]


def _by(knots: list[tuple[float, float]], times: list[float], at: float) -> float:
    after = bisect_right(times, at)
    if after >= len(knots):
        return knots[-1][1]
    (t0, y0), (t1, y1) = knots[after - 1], knots[after]
    return y0 + (y1 - y0) * (at - t0) / (t1 - t0)
