"""Where each budget of the settings stands in its running period: spent, burning, on course.

Slots end at the borders of periods, so each lies in one period. Invariant: grams that are not known
are not in `spent_g`; their joules are listed beside it. A budget alerts; it never stops a run or
moves a deadline: deadline > SLA > budget > grams.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wattmesh.controller.accounting.budgets.budget_plans import (
    BudgetPlans,
    Limit,
    runs_of,
    spent_by_signal,
)
from wattmesh.controller.journal.energy.budgets import PlanRow
from wattmesh.controller.journal.energy.sums import TotalRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.policies.accounting.budget import (
    MOST_DAYS,
    Alert,
    BudgetCourse,
    Curve,
    Spending,
    budget_course,
)
from wattmesh.quantities import grams
from wattmesh.telemetry.readings import flags_of

UG = 1_000_000
ACTUAL = "actual"
LOOK_BACK = timedelta(days=MOST_DAYS)
"""How far back windows and the band reach, into earlier periods that have a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalGrams:
    """Grams in one signal.

    Attributes:
        carbon_g: grams of the joules that were read. `upper_g`: most grams of the unobserved time,
            beyond those.
        flags: estimated, provisional, simulated: those that any of it is.
    """

    signal: str
    carbon_g: float
    upper_g: float
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnLine:
    """How fast a budget was spent in the last `hours`.

    Attributes:
        ratio: grams spent over grams planned; None when that is not known.
    """

    hours: float
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodLine:
    """One budget in its present period.

    Attributes:
        name: of the budget: `cluster`, or the name of a run. `period`: e.g. `2026-11`, from `start`
            to `end`.
        spent_g: grams of its priced slots, from joules that were read. `unpriced_j`: joules that
            have no grams (yet).
        expected_g: grams that the plan allows until now. `burn`: `spent_g` and `upper_g` together
            over that; None while it is 0.
        on_course_g: grams at the end of the period at the rate of the last days; None when it is
            too early to say.
        low_g, high_g: the 80 % band of `on_course_g`; None before three whole days.
        residual_g: the limit less `spent_g` and `upper_g`. `exhausted_at`: when the limit is, or
            was, used up; None when that is not in this period, or not known.
        restated_g: how much revised intensities changed the grams that were first reported.
        urgency: "" | slow | fast | exhausted. `alert`: one sentence with what to do, or "".
        burns: the ratio in each of the windows that alerts look at.
        plan: what the plan was made from, and when. `planned_at`: None while it is not frozen yet.
        signal: the signal of `spent_g`, of the plan and of all other grams here. `others`: grams of
            this period that were accounted in other signals; they are never added.
        unobserved_s: time of GPUs that nobody measured. `upper_g`: most grams of that time beyond
            `spent_g`, and for a run's budget also those of its GPUs that were booked to nobody;
            alerts count both. `unbounded_j`: those of its joules that have no grams yet.
        flags: estimated, provisional, simulated: those that any of its joules or grams is.
    """

    name: str
    period: str
    start: datetime
    end: datetime
    limit_g: float
    spent_g: float
    unpriced_j: float
    expected_g: float
    burn: float | None
    on_course_g: float | None
    restated_g: float
    alert: str
    urgency: str = ""
    low_g: float | None = None
    high_g: float | None = None
    residual_g: float = 0.0
    exhausted_at: datetime | None = None
    burns: tuple[BurnLine, ...] = ()
    plan: str = ""
    planned_at: datetime | None = None
    signal: str = ""
    others: tuple[SignalGrams, ...] = ()
    unobserved_s: float = 0.0
    upper_g: float = 0.0
    unbounded_j: float = 0.0
    flags: tuple[str, ...] = ()


def spending(
    journal: Journal,
    limits: Mapping[str, Limit],
    timezone: str,
    now: datetime,
    *,
    signal: str = "",
    bounds: Mapping[str, float] | None = None,
) -> tuple[PeriodLine, ...]:
    """Give the state of every budget.

    Args:
        journal: the ledger, and the plans.
        limits: budgets by name.
        timezone: of the site.
        now: in the periods that are shown.
        signal: the accounting signal, for plans that are not stored yet.
        bounds: by run, a lower bound on the grams it must still spend.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    plans = BudgetPlans(journal, limits, timezone, signal)
    runs = journal.runs.all(now)
    totals = journal.ledger.totals() if limits else ()
    lines = []
    for name in sorted(limits):
        newest = plans.newest(name, now)
        row = newest or plans.fresh(name, now, "not kept yet")
        names = runs_of(runs, name, min(row.curve.start, now - LOOK_BACK))
        mine = [each for each in runs if names is None or each.run in names]
        least_g = _least_g(mine, bounds or {}, row.curve.end)
        flags = _flags(totals, names)
        line = _line(journal, row, names, now, least_g=least_g, signal=signal)
        others = tuple(
            replace(each, flags=flags_of(*flags.get(each.signal, ()))) for each in line.others
        )
        frozen_at = row.made_at if newest is not None else None
        known = flags_of(*flags.get(signal, ()), *(("estimated",) if line.upper_g else ()))
        lines.append(replace(line, flags=known, others=others, planned_at=frozen_at))
    return tuple(lines)


def _flags(totals: Sequence[TotalRow], runs: Collection[str] | None) -> dict[str, set[str]]:
    """Give by signal the qualities of the grams of these runs; None: of everything."""
    found: dict[str, set[str]] = {}
    for each in totals:
        if each.scenario == ACTUAL and (runs is None or each.run in runs):
            found.setdefault(each.signal, set()).update(each.qualities)
    return found


def _line(
    journal: Journal,
    row: PlanRow,
    runs: Sequence[str] | None,
    now: datetime,
    *,
    least_g: float,
    signal: str,
) -> PeriodLine:
    """Add up one budget in the accounting signal; `runs` None: of everything.

    Unmeasured energy counts at its upper bound, in everything but `spent_g`.
    """
    curve, since = row.curve, row.curve.start
    by_signal = spent_by_signal(journal, runs, min(since, now - LOOK_BACK), now)
    spent = by_signal.get(signal, ())
    at_most = [each.at_most() for each in spent]
    found = budget_course(curve, _before(journal, row), at_most, now, least_ug=least_g * UG)
    booked = [each for each in spent if each.start >= since]
    expected_g, spent_g = found.expected_ug / UG, sum(each.carbon_ug for each in booked) / UG
    upper_g = sum(each.upper_ug for each in booked) / UG
    return PeriodLine(
        name=row.name,
        period=row.period,
        start=since,
        end=curve.end,
        limit_g=curve.limit_ug / UG,
        spent_g=spent_g,
        unpriced_j=sum(each.unpriced_mj for each in booked) / 1000,
        expected_g=expected_g,
        burn=(spent_g + upper_g) / expected_g if expected_g else None,
        on_course_g=_grams(found.on_course_ug),
        restated_g=sum(each.restated_ug for each in booked) / UG,
        alert=_alert(row, found, upper_g),
        urgency=found.alert.value,
        low_g=_grams(found.low_ug),
        high_g=_grams(found.high_ug),
        residual_g=found.residual_ug / UG,
        exhausted_at=found.exhausted_at,
        burns=tuple(
            BurnLine(hours=each.window / timedelta(hours=1), ratio=each.ratio)
            for each in found.burns
        ),
        plan=row.why,
        signal=signal,
        others=_grams_in_other_signals(by_signal, signal, since),
        unobserved_s=sum(
            journal.by_slot.unobserved_s(since, now, run)
            for run in ([None] if runs is None else runs)
        ),
        upper_g=upper_g,
        unbounded_j=sum(each.unbounded_mj for each in booked) / 1000,
    )


def _grams_in_other_signals(
    by_signal: Mapping[str, Sequence[Spending]], signal: str, since: datetime
) -> tuple[SignalGrams, ...]:
    found = []
    for name, spent in sorted(by_signal.items()):
        booked = [each for each in spent if each.start >= since]
        if name != signal and any(each.carbon_ug or each.upper_ug for each in booked):
            carbon_g = sum(each.carbon_ug for each in booked) / UG
            upper_g = sum(each.upper_ug for each in booked) / UG
            found.append(SignalGrams(signal=name, carbon_g=carbon_g, upper_g=upper_g))
    return tuple(found)


def _before(journal: Journal, row: PlanRow) -> tuple[Curve, ...]:
    """Give the newest plan of each earlier period that windows reach into."""
    start = row.curve.start
    plans = journal.budgets.plans(row.name, start - LOOK_BACK)
    newest = {each.curve.start: each.curve for each in plans if each.curve.end <= start}
    return tuple(curve for _, curve in sorted(newest.items()))


def _least_g(runs: Sequence[RunRow], bounds: Mapping[str, float], end: datetime) -> float:
    """Give the least grams that runs due by the period's end will still spend in it."""
    return sum(
        bounds.get(run.run, 0.0)
        for run in runs
        if run.deadline is not None and run.deadline <= end and run.state != "finished"
    )


def _grams(carbon_ug: float | None) -> float | None:
    return None if carbon_ug is None else carbon_ug / UG


def _alert(row: PlanRow, found: BudgetCourse, upper_g: float) -> str:
    """Say what is wrong, and what to do; "" while the budget is on course."""
    name, limit_g = row.name, row.curve.limit_ug / UG
    dark = f", {grams(upper_g)} of it at most emitted unobserved" if upper_g else ""
    if found.alert is Alert.EXHAUSTED:
        return (
            f"budget {name}: {grams(found.spent_ug / UG)} of {grams(limit_g)} are spent{dark} "
            f"before the end of {row.period}; a budget stops no run: postpone one, or raise "
            f"budget.{name}.grams"
        )
    if found.alert is not Alert.NONE:
        at = found.exhausted_at
        used_up = f", used up by {at:%Y-%m-%d %H:%M} UTC" if at else ""
        return (
            f"budget {name} burns too fast ({_burns(found)} of the plan's rate): on course for "
            f"{grams((found.on_course_ug or 0) / UG)} of {grams(limit_g)} by the end of "
            f"{row.period}{used_up}{dark}; postpone a run, move a deadline, or raise "
            f"budget.{name}.grams"
        )
    if found.unkeepable:
        return (
            f"budget {name}: even the cheapest plans that keep the deadlines end above "
            f"{grams(limit_g)}{dark} in {row.period}; move a deadline, or raise budget.{name}.grams"
        )
    return ""


def _burns(found: BudgetCourse) -> str:
    """Write the burns of the windows: 6 h 2.9x, 24 h 2.6x."""
    hours = ((each.window / timedelta(hours=1), each.ratio) for each in found.burns)
    return ", ".join(
        f"{span / 24:.0f} d {ratio:.2g}x" if span > 24 else f"{span:.0f} h {ratio:.2g}x"
        for span, ratio in hours
        if ratio is not None
    )
