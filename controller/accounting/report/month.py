"""The report of a month: joules and grams by run and line, in every scenario, from the ledger.

Invariant: location-based figures are sums of ledger rows in whole micrograms, and the subjects add
up to the cluster exactly; two signals are never added; every other scenario is the same joules,
slot by slot, at another price, and joules without a price stay unpriced. Nothing is netted
(docs/reports.md).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wattmesh.controller.accounting.accounts import ACTUAL, UNPRICED
from wattmesh.controller.accounting.budgets.budget_plans import CLUSTER
from wattmesh.controller.accounting.budgets.periods import Period
from wattmesh.controller.accounting.report.closed import closed_carbon, from_closing
from wattmesh.controller.accounting.report.lines import lines_of, totals_of
from wattmesh.controller.accounting.report.prices import Contract, Intensities
from wattmesh.controller.accounting.report.reopening import reopenings
from wattmesh.controller.accounting.report.runs import embodied_ug, sci_g, tokens_between
from wattmesh.controller.accounting.report.views import (
    BOUNDARY,
    DayFigure,
    MonthReport,
    SignalCarbon,
    SubjectReport,
)
from wattmesh.controller.accounting.report.walk import (
    Day,
    ReportTotals,
    Subject,
    subject_of,
    walked,
)
from wattmesh.controller.journal.energy.budgets import ClosedRow, PlanRow
from wattmesh.controller.journal.energy.sums import TotalRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import flags_of, merged_quality
from wattmesh.telemetry.slots import local_day

DAY = timedelta(days=1)
ENERGY = "energy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What the settings say of reports.

    Attributes:
        signal: the accounting signal; "" for none. `further`: signals of report lines.
        pue: of the facility; None within the boundary `it`.
    """

    timezone: str
    signal: str
    further: tuple[Signal, ...] = ()
    contracts: tuple[Contract, ...] = ()
    pue: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """What was read of a month. `end`: its end, or now while it runs."""

    period: Period
    end: datetime
    site: ReportSettings
    totals: tuple[TotalRow, ...]
    walk: ReportTotals
    runs: Mapping[str, RunRow]

    @property
    def actual(self) -> list[TotalRow]:
        """The sums of grams."""
        return [row for row in self.totals if row.scenario == ACTUAL]

    @property
    def joules(self) -> list[TotalRow]:
        """The sums of joules."""
        return [row for row in self.totals if row.scenario == ENERGY]

    def energy(self) -> Counter[Subject]:
        """Add joules up by subject."""
        found: Counter[Subject] = Counter()
        for row in self.joules:
            found[subject_of(row.run, row.line)] += row.energy_mj
        return found

    def name(self, subject: Subject) -> str:
        """Give what a subject is called."""
        run = self.runs.get(subject[1]) if subject[0] == "run" else None
        return run.name if run else subject[1]


def report(journal: Journal, period: Period, site: ReportSettings, now: datetime) -> MonthReport:
    """Report a month.

    Args:
        journal: the ledger, the intensities of every signal, plans and closed months.
        period: a month in the site's time zone; its slots lie within it.
        site: what the settings say.
        now: a running month is reported up to here.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    month = _read(journal, period, site, now)
    subjects = _subjects(journal, month)
    lines = lines_of(month, subjects)
    closed = journal.budgets.closed(period.name, site.timezone)
    carbon = _closed(_carbon(month.actual), closed)
    first_ug = None if len(carbon) > 1 else sum(each.first_carbon_ug or 0 for each in carbon)
    plan = _plan(journal, month)
    made = MonthReport(
        at=now,
        month=period.name,
        timezone=site.timezone,
        start=period.start,
        end=period.end,
        running=now < period.end,
        closed_at=closed.closed_at if closed else None,
        boundary="it" if site.pue is None else "facility",
        pue=site.pue,
        signal=site.signal,
        energy_mj=sum(each.energy_mj for each in subjects),
        facility_mj=(None if site.pue is None else sum(each.facility_mj or 0 for each in subjects)),
        carbon_ug=_only(carbon),
        unpriced_mj=sum(each.unpriced_mj for each in subjects),
        first_carbon_ug=first_ug,
        closed_carbon_ug=carbon[0].closed_carbon_ug if len(carbon) == 1 else None,
        totals=totals_of(month, lines),
        lines=lines,
        subjects=subjects,
        qualities=_joule_shares_by_quality(month),
        days=_days(month, plan),
        sci_g=_cluster_sci(subjects),
        sci_boundary=_sci_boundary(month),
        simulated=_simulated(month, subjects),
        limit_g=_limit_g(month, plan),
        limit_signal=plan.signal or site.signal if plan else "",
        carbon=carbon,
        flags=_flags(month.totals),
        reopened=reopenings(journal, period.start, period.end),
    )
    gone = month.walk.energy_mj < sum(row.energy_mj for row in month.actual)
    return from_closing(made, closed.figures) if closed and gone else made


def _read(journal: Journal, period: Period, site: ReportSettings, now: datetime) -> Month:
    end = min(period.end, now)
    further = [
        Intensities(each, journal.carbon.observed(each, period.start - DAY, end))
        for each in site.further
    ]
    slots = journal.by_slot.sums(period.start, end)
    return Month(
        period=period,
        end=end,
        site=site,
        totals=journal.ledger.between(period.start, end),
        walk=walked(slots, further, site.contracts, site.timezone),
        runs={each.run: each for each in journal.runs.all(now)},
    )


def _carbon(rows: Sequence[TotalRow]) -> tuple[SignalCarbon, ...]:
    priced = [row for row in rows if row.quality != UNPRICED]
    found = []
    for signal in sorted({row.signal for row in priced}):
        mine = [row for row in priced if row.signal == signal]
        found.append(
            SignalCarbon(
                signal=signal,
                carbon_ug=sum(row.carbon_ug for row in mine),
                upper_ug=sum(row.upper_ug for row in mine),
                first_carbon_ug=sum(row.first_carbon_ug for row in mine),
                flags=_flags(mine),
            )
        )
    return tuple(found)


def _only(carbon: Sequence[SignalCarbon]) -> int | None:
    """Give the grams of the only signal; None if there are several, which are never added."""
    return None if len(carbon) > 1 else sum(each.carbon_ug for each in carbon)


def _closed(carbon: Sequence[SignalCarbon], closed: ClosedRow | None) -> tuple[SignalCarbon, ...]:
    """Add to each signal's grams those it had when the month was closed."""
    known = closed_carbon(closed.figures) if closed else {}
    return tuple(
        replace(each, closed_carbon_ug=known.get(each.signal, 0 if closed else None))
        for each in carbon
    )


def _flags(rows: Sequence[TotalRow]) -> tuple[str, ...]:
    told = (row for row in rows if row.scenario in (ACTUAL, ENERGY))
    return flags_of(*(word for row in told for word in row.qualities))


def _subjects(journal: Journal, month: Month) -> tuple[SubjectReport, ...]:
    """Add up runs and lines, location-based."""
    held_s = journal.by_slot.gpu_s(month.period.start, month.end)
    energy = month.energy()
    found = []
    for subject in sorted(energy):
        rows = [row for row in month.totals if subject_of(row.run, row.line) == subject]
        grams = [row for row in rows if row.scenario == ACTUAL]
        priced_mj = sum(row.energy_mj for row in grams if row.quality != UNPRICED)
        joules = [row for row in rows if row.scenario == ENERGY]
        facility_mj = (month.walk.facility[subject] + 500) // 1000
        carbon = _carbon(grams)
        made = SubjectReport(
            subject=subject[1],
            kind=subject[0],
            run=subject[1] if subject[0] == "run" else "",
            energy_mj=energy[subject],
            facility_mj=None if month.site.pue is None else facility_mj,
            carbon_ug=_only(carbon),
            unpriced_mj=energy[subject] - priced_mj,
            unobserved_ms=sum(row.unobserved_ms for row in joules),
            upper_mj=sum(row.upper_mj for row in joules),
            carbon=carbon,
            flags=_flags(rows),
        )
        run = month.runs.get(made.run)
        found.append(_of_run(journal, month, made, run, held_s) if run else made)
    return tuple(found)


def _of_run(
    journal: Journal,
    month: Month,
    made: SubjectReport,
    run: RunRow,
    held_s: Mapping[str, float],
) -> SubjectReport:
    """Add what only runs have: hardware, tokens, grams per token."""
    gpu_s = held_s.get(run.run, 0.0)
    embodied = embodied_ug(run, gpu_s)
    tokens = tokens_between(journal, run, month.period.start, month.end)
    return replace(
        made,
        subject=run.name,
        gpu_hours=gpu_s / 3600,
        embodied_ug=embodied,
        tokens=tokens,
        sci_g=sci_g(made.carbon_ug, embodied, tokens, made.unpriced_mj),
        simulated=run.catalogue.simulated if run.catalogue else (),
    )


def _joule_shares_by_quality(month: Month) -> dict[str, float]:
    joules: Counter[str] = Counter()
    for row in month.actual:
        quality = row.quality if row.quality == UNPRICED else merged_quality(row.qualities)
        joules[quality] += row.energy_mj
    joules[UNPRICED] += month.energy().total() - joules.total()
    whole = joules.total()
    return {quality: mj / whole for quality, mj in sorted(joules.items()) if mj}


def _days(month: Month, plan: PlanRow | None) -> tuple[DayFigure, ...]:
    """Give the days of the month so far, with what the cluster's budget planned for each."""
    days, at = [], month.period.start
    while at < month.end:
        start, end = local_day(at, month.site.timezone)
        until = min(end, month.end)
        planned = None if plan is None else round(plan.curve.by(until) - plan.curve.by(start))
        days.append(_day(start, month.walk.days.get(start, Day()), planned))
        at = end
    return tuple(days)


def _day(start: datetime, day: Day, planned: int | None) -> DayFigure:
    carbon = tuple(
        SignalCarbon(signal=signal, carbon_ug=carbon_ug, flags=flags_of(*day.words[signal]))
        for signal, carbon_ug in sorted(day.carbon.items())
    )
    words = {word for each in day.words.values() for word in each}
    return DayFigure(
        start=start,
        energy_mj=day.energy_mj,
        carbon_ug=_only(carbon),
        planned_ug=planned,
        carbon=carbon,
        flags=flags_of(*words, *day.energy_words),
    )


def _plan(journal: Journal, month: Month) -> PlanRow | None:
    """Give the cluster's newest plan that covers the whole month; None without one."""
    period = month.period
    for each in reversed(journal.budgets.plans(CLUSTER, period.start)):
        if each.curve.start <= period.start and each.curve.end >= period.end:
            return each
    return None


def _limit_g(month: Month, plan: PlanRow | None) -> float | None:
    """Give the cluster's limit for exactly this month; None where its budget has other periods."""
    period = month.period
    if plan is None or (plan.curve.start, plan.curve.end) != (period.start, period.end):
        return None
    return plan.curve.limit_ug / 1e6


def _cluster_sci(subjects: Sequence[SubjectReport]) -> float | None:
    """Give grams of all subjects, idle GPUs included, per 10^9 tokens of all runs."""
    runs = [each for each in subjects if each.kind == "run"]
    if not runs or any(each.embodied_ug is None or each.tokens is None for each in runs):
        return None
    carbon: Counter[str] = Counter()
    for each in subjects:
        carbon.update({of.signal: of.carbon_ug for of in each.carbon})
    return sci_g(
        None if len(carbon) > 1 else carbon.total(),
        sum(each.embodied_ug or 0 for each in runs),
        sum(each.tokens or 0 for each in runs),
        sum(each.unpriced_mj for each in subjects),
    )


def _sci_boundary(month: Month) -> str:
    priced = {row.signal for row in month.actual if row.quality != UNPRICED}
    pue = "" if month.site.pue is None else f", x PUE {month.site.pue:g}"
    signal = " or ".join(sorted(priced)) or month.site.signal or "(no signal is set)"
    return BOUNDARY.format(pue=pue, signal=signal)


def _simulated(month: Month, subjects: Sequence[SubjectReport]) -> tuple[str, ...]:
    names = {name for each in subjects for name in each.simulated}
    if "simulated" in flags_of(*(row.energy_quality for row in month.joules)):
        names.add("power_w")
    return tuple(sorted(names))
