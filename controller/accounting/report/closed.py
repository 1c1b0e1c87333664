"""What a closed month still tells when retention has summed its slots up. Pure.

Invariant: location-based sums are always the ledger's; only what single slots alone could tell
(further scenarios, hardware, days) is taken from the day the month was closed, and says so.
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
"""What a run's part of a report takes from single slots."""


def closed_carbon(figures: Mapping[str, Any]) -> dict[str, int]:
    """Give the micrograms by signal that a month had when it was closed."""
    told = figures.get("carbon")
    if told is None:  # closed by a daemon that knew one signal only
        return {figures["signal"]: int(figures["carbon_ug"])}
    return {each["signal"]: int(each["carbon_ug"]) for each in told}


def from_closing(made: MonthReport, figures: Mapping[str, Any]) -> MonthReport:
    """Complete a report by the figures of its closing.

    Args:
        made: from sums only.
        figures: a `MonthReport` as JSON values, as it was when the month was closed.
    """
    lines = [ReportLine(**_plain(each)) for each in figures["lines"]]
    totals = [_total(each) for each in figures["totals"]]
    before = {_key(each): each for each in figures["subjects"]}
    models = {of.signal: of.model for each in totals for of in each.stand_ins}
    return replace(
        made,
        lines=(
            *(each for each in made.lines if each.scenario == LOCATION),
            *(each for each in lines if each.scenario != LOCATION),
        ),
        totals=(
            *(_named(each, models) for each in made.totals if each.scenario == LOCATION),
            *(each for each in totals if each.scenario != LOCATION),
        ),
        subjects=tuple(_completed(each, before) for each in made.subjects),
        facility_mj=figures["facility_mj"],
        sci_g=figures["sci_g"],
        days=tuple(_day(each, figures["signal"]) for each in figures["days"]),
        detail_of="closing",
    )


def _named(total: ScenarioTotal, models: Mapping[str, str]) -> ScenarioTotal:
    """Say what the values of fallbacks were multiplied by."""
    known = (replace(of, model=models.get(of.signal, of.model)) for of in total.stand_ins)
    return replace(total, stand_ins=tuple(known))


def _completed(
    made: SubjectReport, before: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> SubjectReport:
    """Complete one run or line."""
    known = before.get((made.kind, made.run, made.subject), {})
    return replace(made, **{name: known[name] for name in DETAIL if name in known})


def _key(figures: Mapping[str, Any]) -> tuple[str, str, str]:
    """Tell subjects apart."""
    return figures["kind"], figures["run"], figures["subject"]


def _plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Read the flags of an object."""
    return {**figures, "flags": tuple(figures.get("flags", ()))}


def _total(figures: Mapping[str, Any]) -> ScenarioTotal:
    """Read one total."""
    stand_ins = tuple(StandIn(**_plain(each)) for each in figures.get("stand_ins", ()))
    return ScenarioTotal(**{**_plain(figures), "stand_ins": stand_ins})


def _day(figures: Mapping[str, Any], signal: str) -> DayFigure:
    """Read one day; `signal`: of a month that was closed when there was one signal only."""
    only = {"signal": signal, "carbon_ug": figures["carbon_ug"]}
    told = figures.get("carbon", [only] if figures["carbon_ug"] else ())
    carbon = tuple(SignalCarbon(**_plain(each)) for each in told)
    start = datetime.fromisoformat(figures["start"])
    return DayFigure(**{**_plain(figures), "start": start, "carbon": carbon})
