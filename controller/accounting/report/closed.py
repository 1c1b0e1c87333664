"""What a closed month still has when retention has summed up its slots. Pure.

Invariant: location-based sums always come from the ledger; only what needs single slots (further
scenarios, hardware, days) comes from the day the month was closed, and says so.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from wattmesh.controller.accounting.report.views import (
    LOCATION,
    DayFigure,
    MonthReport,
    ReportLine,
    ScenarioTotal,
    SignalCarbon,
    StandIn,
    SubjectReport,
)

DETAIL = ("facility_mj", "gpu_hours", "embodied_ug", "tokens", "sci_g")
"""Fields of a run's part that are computed from single slots."""


def closed_carbon(figures: Mapping[str, Any]) -> dict[str, int]:
    """Give the micrograms by signal that a month had when it was closed."""
    told = figures.get("carbon")
    if told is None:  # closed by a version that had one signal only
        return {figures["signal"]: int(figures["carbon_ug"])}
    return {each["signal"]: int(each["carbon_ug"]) for each in told}


def from_closing(made: MonthReport, figures: Mapping[str, Any]) -> MonthReport:
    """Complete a report with the figures stored when its month was closed.

    Args:
        made: the report from sums only.
        figures: a `MonthReport` as JSON values, as it was when the month was closed.
    """
    lines = [ReportLine(**_with_flags_tuple(each)) for each in figures["lines"]]
    totals = [_total(each) for each in figures["totals"]]
    before = {_subject_key(each): each for each in figures["subjects"]}
    models = {of.signal: of.model for each in totals for of in each.stand_ins}
    return replace(
        made,
        lines=(
            *(each for each in made.lines if each.scenario == LOCATION),
            *(each for each in lines if each.scenario != LOCATION),
        ),
        totals=(
            *(
                _with_fallback_factors(each, models)
                for each in made.totals
                if each.scenario == LOCATION
            ),
            *(each for each in totals if each.scenario != LOCATION),
        ),
        subjects=tuple(_completed(each, before) for each in made.subjects),
        facility_mj=figures["facility_mj"],
        sci_g=figures["sci_g"],
        days=tuple(_day(each, figures["signal"]) for each in figures["days"]),
        detail_of="closing",
    )


def _with_fallback_factors(total: ScenarioTotal, models: Mapping[str, str]) -> ScenarioTotal:
    known = (replace(of, model=models.get(of.signal, of.model)) for of in total.stand_ins)
    return replace(total, stand_ins=tuple(known))


def _completed(
    made: SubjectReport, before: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> SubjectReport:
    known = before.get((made.kind, made.run, made.subject), {})
    return replace(made, **{name: known[name] for name in DETAIL if name in known})


def _subject_key(figures: Mapping[str, Any]) -> tuple[str, str, str]:
    return figures["kind"], figures["run"], figures["subject"]


def _with_flags_tuple(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {**figures, "flags": tuple(figures.get("flags", ()))}


def _total(figures: Mapping[str, Any]) -> ScenarioTotal:
    stand_ins = tuple(StandIn(**_with_flags_tuple(each)) for each in figures.get("stand_ins", ()))
    return ScenarioTotal(**{**_with_flags_tuple(figures), "stand_ins": stand_ins})


def _day(figures: Mapping[str, Any], signal: str) -> DayFigure:
    """Read one day; `signal`: of a month closed by a version that had one signal only."""
    only = {"signal": signal, "carbon_ug": figures["carbon_ug"]}
    told = figures.get("carbon", [only] if figures["carbon_ug"] else ())
    carbon = tuple(SignalCarbon(**_with_flags_tuple(each)) for each in told)
    start = datetime.fromisoformat(figures["start"])
    return DayFigure(**{**_with_flags_tuple(figures), "start": start, "carbon": carbon})
