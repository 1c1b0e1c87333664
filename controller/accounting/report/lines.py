"""The lines of a report: every subject in every scenario and signal, and their totals. Pure.

Invariant: lines of one scenario and signal add up to its total exactly. A declared fallback
replaces the accounting signal: its lines count as that signal's, and name the fallback.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wattmesh.controller.accounting.accounts import UNPRICED
from wattmesh.controller.accounting.report.prices import Contract, scenario_of
from wattmesh.controller.accounting.report.views import (
    EMBODIED,
    LOCATION,
    MARKET,
    NOT_COVERED,
    ReportLine,
    ScenarioTotal,
    StandIn,
    SubjectReport,
)
from wattmesh.controller.accounting.report.walk import Price, ReportTotals, Subject, subject_of
from wattmesh.controller.journal.energy.sums import TotalRow
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality, flags_of

PER_GPU_HOUR = "embodied_g_per_gpu_hour"


class Site(Protocol):
    """What the settings say of a report's lines."""

    @property
    def signal(self) -> str:
        """The accounting signal; "" for none."""
        ...

    @property
    def further(self) -> tuple[Signal, ...]:
        """Signals of report lines."""
        ...

    @property
    def contracts(self) -> tuple[Contract, ...]:
        """Market-based factors."""
        ...


class MonthLedger(Protocol):
    """What was read of a month."""

    @property
    def site(self) -> Site:
        """What the settings say."""
        ...

    @property
    def walk(self) -> ReportTotals:
        """Further prices of its slots."""
        ...

    @property
    def actual(self) -> Sequence[TotalRow]:
        """The sums of grams."""
        ...

    @property
    def joules(self) -> Sequence[TotalRow]:
        """The sums of joules."""
        ...

    def energy(self) -> Counter[Subject]:
        """Add joules up by subject."""
        ...

    def name(self, subject: Subject) -> str:
        """Give what a subject is called."""
        ...


@dataclass(slots=True)
class _Amounts:
    """The amounts of one line. `words`: qualities of its parts."""

    energy_mj: int = 0
    carbon_ug: int = 0
    unpriced_mj: int = 0
    words: set[str] = field(default_factory=set)


def lines_of(month: MonthLedger, subjects: Sequence[SubjectReport]) -> tuple[ReportLine, ...]:
    """Give every line: location-based, further signals, contracts, embodied."""
    joules = _joule_flags(month)
    return (
        *_location(month, joules),
        *_lines_in_further_signals(month, joules),
        *_market(month, joules),
        *_embodied(month, subjects, joules),
    )


def totals_of(month: MonthLedger, lines: Iterable[ReportLine]) -> tuple[ScenarioTotal, ...]:
    """Add up the lines by scenario and signal, in the order of the lines."""
    found: dict[Price, list[ReportLine]] = {}
    for line in lines:
        found.setdefault((line.scenario, line.signal), []).append(line)
    return tuple(
        ScenarioTotal(
            scenario=price[0],
            signal=price[1],
            energy_mj=sum(each.energy_mj for each in mine),
            carbon_ug=sum(each.carbon_ug for each in mine),
            unpriced_mj=sum(each.unpriced_mj for each in mine),
            unpriced_h=month.walk.blind_s.get(price, 0.0) / 3600,
            stand_ins=_stand_ins(mine, month.walk.models),
            flags=flags_of(*(flag for each in mine for flag in each.flags)),
        )
        for price, mine in found.items()
    )


def _stand_ins(
    lines: Sequence[ReportLine], models: Mapping[str, Iterable[str]]
) -> tuple[StandIn, ...]:
    found = []
    for signal in sorted({each.stand_in for each in lines} - {""}):
        mine = [each for each in lines if each.stand_in == signal]
        found.append(
            StandIn(
                signal=signal,
                model=", ".join(sorted(models.get(signal, ()))),
                energy_mj=sum(each.energy_mj for each in mine),
                carbon_ug=sum(each.carbon_ug for each in mine),
                flags=flags_of(*(flag for each in mine for flag in each.flags)),
            )
        )
    return tuple(found)


def _joule_flags(month: MonthLedger) -> dict[Subject, tuple[str, ...]]:
    words: dict[Subject, set[str]] = {}
    for row in month.joules:
        words.setdefault(subject_of(row.run, row.line), set()).add(row.energy_quality)
    return {subject: flags_of(*each) for subject, each in words.items()}


def _line(
    month: MonthLedger, subject: Subject, price: Price, amounts: _Amounts, stand_in: str = ""
) -> ReportLine:
    kind, name = subject
    return ReportLine(
        subject=month.name(subject),
        kind=kind,
        run=name if kind == "run" else "",
        scenario=price[0],
        signal=price[1],
        stand_in=stand_in,
        energy_mj=amounts.energy_mj,
        carbon_ug=amounts.carbon_ug,
        unpriced_mj=amounts.unpriced_mj,
        flags=flags_of(*amounts.words),
    )


def _location(month: MonthLedger, joules: Mapping[Subject, tuple[str, ...]]) -> list[ReportLine]:
    places: dict[tuple[Subject, str, str], _Amounts] = {}
    left = month.energy()
    for row in month.actual:
        subject = subject_of(row.run, row.line)
        amounts = places.setdefault((subject, row.signal, row.stand_in), _Amounts())
        amounts.energy_mj += row.energy_mj
        amounts.carbon_ug += row.carbon_ug
        amounts.unpriced_mj += row.energy_mj if row.quality == UNPRICED else 0
        amounts.words.update(row.qualities)
        left[subject] -= row.energy_mj
    for subject, energy_mj in left.items():
        if energy_mj:  # booked since the accounts ran last
            amounts = places.setdefault((subject, month.site.signal, ""), _Amounts())
            amounts.energy_mj += energy_mj
            amounts.unpriced_mj += energy_mj
            amounts.words.update(joules.get(subject, ()))
    return [
        _line(month, subject, (LOCATION, signal), amounts, stand_in)
        for (subject, signal, stand_in), amounts in sorted(places.items(), key=lambda each: each[0])
    ]


def _lines_in_further_signals(
    month: MonthLedger, joules: Mapping[Subject, tuple[str, ...]]
) -> list[ReportLine]:
    lines = []
    for signal in month.site.further:
        price = (scenario_of(signal), str(signal))
        for subject, energy_mj in sorted(month.energy().items()):
            place = (price, subject)
            amounts = _Amounts(
                energy_mj=energy_mj,
                carbon_ug=month.walk.carbon[place],
                unpriced_mj=energy_mj - month.walk.energy[place],
                words={*month.walk.words.get(place, ()), *joules.get(subject, ())},
            )
            lines.append(_line(month, subject, price, amounts))
    return lines


def _market(month: MonthLedger, joules: Mapping[Subject, tuple[str, ...]]) -> list[ReportLine]:
    """Give what each contract covers, and what none covers; nothing when there is no contract."""
    if not month.site.contracts:
        return []
    lines, left = [], month.energy()
    for (price, subject), energy_mj in sorted(month.walk.energy.items()):
        if price[0] == MARKET:
            amounts = _Amounts(
                energy_mj=energy_mj,
                carbon_ug=month.walk.carbon[price, subject],
                words={*month.walk.words.get((price, subject), ())},
            )
            lines.append(_line(month, subject, price, amounts))
            left[subject] -= energy_mj
    for subject, energy_mj in sorted(left.items()):
        if energy_mj:
            words = {*joules.get(subject, ())}
            amounts = _Amounts(energy_mj=energy_mj, unpriced_mj=energy_mj, words=words)
            lines.append(_line(month, subject, (MARKET, NOT_COVERED), amounts))
    return lines


def _embodied(
    month: MonthLedger,
    subjects: Sequence[SubjectReport],
    joules: Mapping[Subject, tuple[str, ...]],
) -> list[ReportLine]:
    """Give the embodied grams of GPUs, by the hours that runs held them; a declared figure."""
    lines = []
    for each in subjects:
        if each.embodied_ug is not None:
            subject = ("run", each.run)
            words = {str(Quality.ESTIMATED), *joules.get(subject, ())}
            amounts = _Amounts(carbon_ug=each.embodied_ug, words=words)
            lines.append(_line(month, subject, (EMBODIED, PER_GPU_HOUR), amounts))
    return lines
