"""The report of a month: joules and grams by run and line, in every scenario, from the ledger.

Invariant: location-based figures are sums of ledger rows, whole micrograms, and its subjects add up
to the cluster exactly; every other scenario is the same joules, slot by slot, at another price, and
joules without a price stay unpriced. Nothing is netted (docs/reports.md).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from wattmesh.controller.books.accounts import ACTUAL, UNPRICED
from wattmesh.controller.books.budget_plans import CLUSTER
from wattmesh.controller.books.periods import Period
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import RunRow
from wattmesh.controller.journal.sums import TotalRow
from wattmesh.controller.report.closed import from_closing
from wattmesh.controller.report.prices import Contract, Intensities, scenario_of
from wattmesh.controller.report.runs import embodied_ug, sci_g, tokens_between
from wattmesh.controller.report.views import (
    BOUNDARY,
    EMBODIED,
    LOCATION,
    MARKET,
    NOT_COVERED,
    DayFigure,
    MonthReport,
    ReportLine,
    ScenarioTotal,
    SubjectReport,
)
from wattmesh.controller.report.walk import Price, Subject, Walk, subject_of, walked
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.slots import local_day

DAY = timedelta(days=1)
ENERGY = "energy"
PER_GPU_HOUR = "embodied_g_per_gpu_hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
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
class _Month:
    """What was read of a month. `end`: up to when, not beyond now."""

    period: Period
    end: datetime
    site: Reported
    totals: tuple[TotalRow, ...]
    walk: Walk
    runs: Mapping[str, RunRow]

    @property
    def actual(self) -> list[TotalRow]:
        """The sums of grams."""
        return [row for row in self.totals if row.scenario == ACTUAL]

    def energy(self) -> Counter[Subject]:
        """Add joules up by subject."""
        found: Counter[Subject] = Counter()
        for row in self.totals:
            if row.scenario == ENERGY:
                found[subject_of(row.run, row.line)] += row.energy_mj
        return found

    def line(self, subject: Subject, price: Price, amounts: tuple[int, int, int]) -> ReportLine:
        """Make one line; `amounts`: joules, grams, joules without grams."""
        kind, name = subject
        run = self.runs.get(name) if kind == "run" else None
        return ReportLine(
            subject=run.name if run else name,
            kind=kind,
            run=name if kind == "run" else "",
            scenario=price[0],
            signal=price[1],
            energy_mj=amounts[0],
            carbon_ug=amounts[1],
            unpriced_mj=amounts[2],
        )


def report(journal: Journal, period: Period, site: Reported, now: datetime) -> MonthReport:
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
    lines = (*_location(month), *_further(month), *_market(month), *_embodied(month, subjects))
    closed = journal.budgets.closed(period.name, site.timezone)
    facility = [each.facility_mj for each in subjects]
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
        facility_mj=None if site.pue is None else sum(each or 0 for each in facility),
        carbon_ug=sum(each.carbon_ug for each in subjects),
        unpriced_mj=sum(each.unpriced_mj for each in subjects),
        first_carbon_ug=sum(row.first_carbon_ug for row in month.actual),
        closed_carbon_ug=int(closed.figures["carbon_ug"]) if closed else None,
        totals=_totals(month, lines),
        lines=lines,
        subjects=subjects,
        qualities=_qualities(month),
        days=_days(journal, month),
        sci_g=_cluster_sci(subjects),
        sci_boundary=_boundary(month),
        simulated=_simulated(month, subjects),
        limit_g=_limit_g(journal, month),
    )
    gone = month.walk.energy_mj < sum(row.energy_mj for row in month.actual)
    return from_closing(made, closed.figures) if closed and gone else made


def _read(journal: Journal, period: Period, site: Reported, now: datetime) -> _Month:
    """Read everything of a month."""
    end = min(period.end, now)
    further = [
        Intensities(each, journal.carbon.observed(each, period.start - DAY, end))
        for each in site.further
    ]
    slots = journal.by_slot.sums(period.start, end)
    return _Month(
        period=period,
        end=end,
        site=site,
        totals=journal.ledger.between(period.start, end),
        walk=walked(slots, further, site.contracts, site.timezone),
        runs={each.run: each for each in journal.runs.all(now)},
    )


def _subjects(journal: Journal, month: _Month) -> tuple[SubjectReport, ...]:
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
        made = SubjectReport(
            subject=subject[1],
            kind=subject[0],
            run=subject[1] if subject[0] == "run" else "",
            energy_mj=energy[subject],
            facility_mj=None if month.site.pue is None else facility_mj,
            carbon_ug=sum(row.carbon_ug for row in grams),
            unpriced_mj=energy[subject] - priced_mj,
            unobserved_ms=sum(row.unobserved_ms for row in joules),
            upper_mj=sum(row.upper_mj for row in joules),
        )
        run = month.runs.get(made.run)
        found.append(_of_run(journal, month, made, run, held_s) if run else made)
    return tuple(found)


def _of_run(
    journal: Journal,
    month: _Month,
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


def _location(month: _Month) -> list[ReportLine]:
    """Give the location-based lines, those of a fallback in its own signal."""
    places: dict[tuple[Subject, str], list[int]] = {}
    left = month.energy()
    for row in month.actual:
        subject, unpriced = subject_of(row.run, row.line), row.quality == UNPRICED
        amounts = places.setdefault((subject, row.signal), [0, 0, 0])
        amounts[0] += row.energy_mj
        amounts[1] += row.carbon_ug
        amounts[2] += row.energy_mj if unpriced else 0
        left[subject] -= row.energy_mj
    for subject, energy_mj in left.items():
        if energy_mj:  # booked since the accounts looked last
            amounts = places.setdefault((subject, month.site.signal), [0, 0, 0])
            amounts[0] += energy_mj
            amounts[2] += energy_mj
    return [
        month.line(subject, (LOCATION, signal), (amounts[0], amounts[1], amounts[2]))
        for (subject, signal), amounts in sorted(places.items())
    ]


def _further(month: _Month) -> list[ReportLine]:
    """Give every subject in every further signal."""
    lines = []
    for signal in month.site.further:
        price = (scenario_of(signal), str(signal))
        for subject, energy_mj in sorted(month.energy().items()):
            priced_mj = month.walk.energy[price, subject]
            carbon_ug = month.walk.carbon[price, subject]
            lines.append(month.line(subject, price, (energy_mj, carbon_ug, energy_mj - priced_mj)))
    return lines


def _market(month: _Month) -> list[ReportLine]:
    """Give what each contract covers, and what none does; nothing where there is no contract."""
    if not month.site.contracts:
        return []
    lines, left = [], month.energy()
    for (price, subject), energy_mj in sorted(month.walk.energy.items()):
        if price[0] == MARKET:
            carbon_ug = month.walk.carbon[price, subject]
            lines.append(month.line(subject, price, (energy_mj, carbon_ug, 0)))
            left[subject] -= energy_mj
    rest = (MARKET, NOT_COVERED)
    lines += [month.line(each, rest, (mj, 0, mj)) for each, mj in sorted(left.items()) if mj]
    return lines


def _embodied(month: _Month, subjects: Sequence[SubjectReport]) -> list[ReportLine]:
    """Give what making the GPUs emitted, by the hours that runs held them."""
    return [
        month.line(("run", each.run), (EMBODIED, PER_GPU_HOUR), (0, each.embodied_ug, 0))
        for each in subjects
        if each.embodied_ug is not None
    ]


def _totals(month: _Month, lines: Sequence[ReportLine]) -> tuple[ScenarioTotal, ...]:
    """Add the lines up by scenario and signal, in the order they stand in."""
    found: dict[Price, list[int]] = {}
    for line in lines:
        amounts = found.setdefault((line.scenario, line.signal), [0, 0, 0])
        amounts[0] += line.energy_mj
        amounts[1] += line.carbon_ug
        amounts[2] += line.unpriced_mj
    return tuple(
        ScenarioTotal(
            scenario=price[0],
            signal=price[1],
            energy_mj=amounts[0],
            carbon_ug=amounts[1],
            unpriced_mj=amounts[2],
            unpriced_h=month.walk.blind_s.get(price, 0.0) / 3600,
        )
        for price, amounts in found.items()
    )


def _qualities(month: _Month) -> dict[str, float]:
    """Give the share of all joules by the quality of their grams."""
    joules: Counter[str] = Counter()
    for row in month.actual:
        joules[row.quality] += row.energy_mj
    joules[UNPRICED] += month.energy().total() - joules.total()
    whole = joules.total()
    return {quality: mj / whole for quality, mj in sorted(joules.items()) if mj}


def _days(journal: Journal, month: _Month) -> tuple[DayFigure, ...]:
    """Give the days of the month so far, with what the cluster's budget planned for each."""
    plan = next(iter(_plans(journal, month)), None)
    days, at = [], month.period.start
    while at < month.end:
        start, end = local_day(at, month.site.timezone)
        energy_mj, carbon_ug = month.walk.days.get(start, (0, 0))
        until = min(end, month.end)
        planned = None if plan is None else round(plan.by(until) - plan.by(start))
        days.append(
            DayFigure(start=start, energy_mj=energy_mj, carbon_ug=carbon_ug, planned_ug=planned)
        )
        at = end
    return tuple(days)


def _plans(journal: Journal, month: _Month) -> list[Any]:
    """Give the curve of the cluster's newest plan that reaches over the whole month, if any."""
    period = month.period
    plans = journal.budgets.plans(CLUSTER, period.start)
    return [
        each.curve
        for each in reversed(plans)
        if each.curve.start <= period.start and each.curve.end >= period.end
    ]


def _limit_g(journal: Journal, month: _Month) -> float | None:
    """Give the cluster's limit of this very month; None where its budget has other periods."""
    for curve in _plans(journal, month):
        if (curve.start, curve.end) == (month.period.start, month.period.end):
            limit_g: float = curve.limit_ug / 1e6
            return limit_g
    return None


def _cluster_sci(subjects: Sequence[SubjectReport]) -> float | None:
    """Give grams per 10^9 tokens of everything, idle GPUs too, over the tokens of all runs."""
    runs = [each for each in subjects if each.kind == "run"]
    if not runs or any(each.embodied_ug is None or each.tokens is None for each in runs):
        return None
    return sci_g(
        sum(each.carbon_ug for each in subjects),
        sum(each.embodied_ug or 0 for each in runs),
        sum(each.tokens or 0 for each in runs),
        sum(each.unpriced_mj for each in subjects),
    )


def _boundary(month: _Month) -> str:
    """Say what the grams per token are of."""
    priced = {row.signal for row in month.actual if row.quality != UNPRICED}
    pue = "" if month.site.pue is None else f", x PUE {month.site.pue:g}"
    signal = " + ".join(sorted(priced)) or month.site.signal or "(no signal is set)"
    return BOUNDARY.format(pue=pue, signal=signal)


def _simulated(month: _Month, subjects: Sequence[SubjectReport]) -> tuple[str, ...]:
    """Name what is simulated."""
    names = {name for each in subjects for name in each.simulated}
    names |= {"power_w" for row in month.totals if row.signal == "simulated"}
    return tuple(sorted(names))
