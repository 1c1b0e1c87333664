"""What a closed month still tells when retention has summed its slots up. Pure.

Invariant: location-based sums are always the ledger's; only what single slots alone could tell
(further scenarios, hardware, days) is taken from the day the month was closed, and says so.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from wattmesh.controller.report.views import (
    LOCATION,
    DayFigure,
    MonthReport,
    ReportLine,
    ScenarioTotal,
    SubjectReport,
)

DETAIL = ("facility_mj", "gpu_hours", "embodied_ug", "tokens", "sci_g")
"""What a run's part of a report takes from single slots."""


def from_closing(made: MonthReport, figures: Mapping[str, Any]) -> MonthReport:
    """Complete a report by the figures of its closing.

    Args:
        made: from sums only.
        figures: a `MonthReport` as JSON values, as it was when the month was closed.
    """
    lines = [ReportLine(**each) for each in figures["lines"]]
    totals = [ScenarioTotal(**each) for each in figures["totals"]]
    before = {_key(each): each for each in figures["subjects"]}
    return replace(
        made,
        lines=(
            *(each for each in made.lines if each.scenario == LOCATION),
            *(each for each in lines if each.scenario != LOCATION),
        ),
        totals=(
            *(each for each in made.totals if each.scenario == LOCATION),
            *(each for each in totals if each.scenario != LOCATION),
        ),
        subjects=tuple(_completed(each, before) for each in made.subjects),
        facility_mj=figures["facility_mj"],
        sci_g=figures["sci_g"],
        days=tuple(map(_day, figures["days"])),
        detail_of="closing",
    )


def _completed(
    made: SubjectReport, before: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> SubjectReport:
    """Complete one run or line."""
    known = before.get((made.kind, made.run, made.subject), {})
    return replace(made, **{name: known[name] for name in DETAIL if name in known})


def _key(figures: Mapping[str, Any]) -> tuple[str, str, str]:
    """Tell subjects apart."""
    return figures["kind"], figures["run"], figures["subject"]


def _day(figures: Mapping[str, Any]) -> DayFigure:
    """Read one day."""
    return DayFigure(**{**figures, "start": datetime.fromisoformat(figures["start"])})
