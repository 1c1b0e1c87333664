"""What the solver is asked and what it answers: plain numbers, frozen, cheap to send to a worker.

A run has work left, slots of time until its deadline, options (operating points, and pausing) and
what going from one to another takes. The plan is one option per slot until the work is done.

Invariant: nothing here knows a clock or a catalogue; time is seconds from the start of the first
slot, and a decision falls on the start of a slot only (slots begin at boundaries).
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite
from operator import mul

from wattmesh.errors import InputInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Something a run can be at.

    Attributes:
        layout: options of one layout differ in their clock only.
        tokens_per_s: 0 for a pause.
        power_w: charged while the run is here, idle GPUs that it holds included.
        embodied_g_per_s: share of the hardware's making, for the GPUs held here.
        bound_w: the most it may draw, which a power cap must leave room for; None: `power_w`.
    """

    name: str
    layout: str
    tokens_per_s: float
    power_w: float
    gpus: int
    embodied_g_per_s: float = 0.0
    bound_w: float | None = None

    @property
    def needs_w(self) -> float:
        """Watts that a power cap must leave room for."""
        return self.power_w if self.bound_w is None else self.bound_w


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTransition:
    """What going from one option to another takes.

    Attributes:
        seconds: without a token, until speed is steady again. `energy_j`: drawn meanwhile.
        dwell_s: least time from its begin until the next transition.
    """

    seconds: float
    energy_j: float
    dwell_s: float = 0.0

    @property
    def binds_s(self) -> float:
        """Least time from its begin until the next transition may begin."""
        return max(self.seconds, self.dwell_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """Least average throughput over every window of this length that ends before the work does.

    Attributes:
        before: what was trained before the first slot: (time, tokens), both <= 0 and counted from
            its start, oldest first; empty: not known.
        from_s: windows that begin earlier do not count, and none does that begins before all that
            is known.
    """

    window_s: float
    tokens_per_s: float
    before: tuple[tuple[float, float], ...] = ()
    from_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a level that has no meaning.

        Raises:
            InputInvalid: says what is wrong.
        """
        past = (*self.before, (0.0, 0.0))
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(past))
        if not (0 < self.window_s < inf and 0 <= self.tokens_per_s < inf):
            raise InputInvalid(f"service level: {self.tokens_per_s} over {self.window_s} s")
        if not rising or not isfinite(self.from_s) or not isfinite(past[0][0] + past[0][1]):
            raise InputInvalid("service level: what was trained before does not rise to now")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """The question.

    Attributes:
        tokens: work left, > 0.
        seconds: length of each slot, > 0; their sum is the time until the deadline.
        g_per_kwh: intensity of each slot, >= 0.
        start: index of the option the run is at.
        transitions: [from][to]; None where there is no way; the diagonal is not read.
        dwell_left_s: no transition to another layout before this, unless the layout the run is in
            is not available.
        power_cap_w: per slot; empty: no limit. An option that needs more is not available in that
            slot.
        sla: None: none.
        budget_g: most operational grams that the rest of the work may emit; None: no limit.
    """

    tokens: float
    seconds: tuple[float, ...]
    g_per_kwh: tuple[float, ...]
    options: tuple[Option, ...]
    start: int
    transitions: tuple[tuple[OptionTransition | None, ...], ...]
    dwell_left_s: float = 0.0
    power_cap_w: tuple[float, ...] = ()
    sla: Sla | None = None
    budget_g: float | None = None

    def __post_init__(self) -> None:
        """Refuse a problem that has no meaning.

        Raises:
            InputInvalid: says what is wrong.
        """
        wrong = self._wrong()
        if wrong:
            raise InputInvalid(f"planning problem: {wrong}")

    def available(self, slot: int, option: int) -> bool:
        """Say whether the cap of `slot` leaves room for `option`."""
        return not self.power_cap_w or self.options[option].needs_w <= self.power_cap_w[slot]

    def way(self, origin: int, target: int) -> OptionTransition | None:
        """Give what going from one option to another takes; None when there is no way."""
        return self.transitions[origin][target]

    def _wrong(self) -> str:
        """Say what is wrong with the numbers; "" when nothing is."""
        count, kinds = len(self.seconds), len(self.options)
        lengths = {name: len(getattr(self, name)) for name in ("g_per_kwh", "power_cap_w")}
        uneven = [name for name, length in lengths.items() if length not in {count, 0}]
        checks = (
            (count and kinds and 0 <= self.start < kinds, f"{count} slots, {kinds} options"),
            (0 < self.tokens < inf, f"{self.tokens} tokens are no work"),
            (not uneven and lengths["g_per_kwh"], f"{count} slots, but {lengths} values per slot"),
            (all(0 < each < inf for each in self.seconds), "a slot has no length"),
            (
                all(0 <= each < inf for each in self.g_per_kwh),
                "an intensity is negative or not a number",
            ),
            (
                [len(row) for row in self.transitions] == [kinds] * kinds,
                f"transitions are not {kinds} x {kinds}",
            ),
        )
        found = next((words for fine, words in checks if not fine), "")
        return found or self._wrong_numbers()

    def _wrong_numbers(self) -> str:
        """Say which option or transition no arithmetic can use; "" when all can."""
        for option in self.options:
            numbers = (
                option.tokens_per_s,
                option.power_w,
                option.embodied_g_per_s,
                option.needs_w,
            )
            if not all(isfinite(each) and each >= 0 for each in numbers):
                return f"option {option.name} has {numbers}"
        for row in self.transitions:
            for way in row:
                taken = (way.seconds, way.energy_j, way.dwell_s) if way else ()
                if not all(isfinite(each) and each >= 0 for each in taken):
                    return f"a transition takes {taken}"
        return ""


def merged(problem: PlanningProblem, *, by: int) -> PlanningProblem:
    """Give a rougher problem with about `by` slots in one: mean intensities, the tighter caps."""
    ranges = [slice(n, n + by) for n in range(0, len(problem.seconds), by)]
    lengths = [problem.seconds[each] for each in ranges]

    return replace(
        problem,
        seconds=tuple(sum(seconds) for seconds in lengths),
        g_per_kwh=tuple(
            sum(map(mul, problem.g_per_kwh[each], seconds)) / sum(seconds)
            for each, seconds in zip(ranges, lengths, strict=True)
        ),
        power_cap_w=tuple(min(problem.power_cap_w[n]) for n in ranges if problem.power_cap_w),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What following a path would come to, second by second.

    Attributes:
        grams: operational, which is what a budget counts, and embodied: what is minimised.
        tokens: trained until the end of the path or of the work.
        ends_s: when the work is done; None when the path leaves some.
        broken: each rule the path breaks, in a sentence; empty for a legal path.
    """

    grams: float
    operational_g: float
    embodied_g: float
    energy_j: float
    tokens: float
    ends_s: float | None
    layout_switches: int
    clock_changes: int
    broken: tuple[str, ...] = ()

    @property
    def legal(self) -> bool:
        """Whether the path does the work and breaks no rule."""
        return self.ends_s is not None and not self.broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: a path, and how far from the best it can be.

    Attributes:
        path: option per slot, until the slot in which the work ends.
        mu_g_per_token: what a token may cost; the price at which the bound was found.
        bound_g: no legal path emits less.
        budget: "" when the budget is kept or there is none, else what is wrong with it.
    """

    path: tuple[int, ...]
    evaluation: Evaluation
    mu_g_per_token: float
    bound_g: float
    budget: str = ""

    @property
    def gap(self) -> float:
        """Most that a better path could save, as a share of the bound."""
        above = self.evaluation.grams - self.bound_g
        if above <= 0:
            return 0.0
        return above / self.bound_g if self.bound_g > 0 else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """There is no legal path that does the work: the reason, as a clause."""

    reason: str
