"""The screen of `wattmesh policy plan`: the plan against the grid, and what it comes to. Pure.

Invariant: the answer first; a plan that is not followed says so before it is shown, and what is
simulated or filled in says so beside it.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import DIM, STRONG, WARN, legend, styled
from wattmesh.controller.cli.policy import plan_chart
from wattmesh.controller.cli.policy.plan_bands import band_words, layout_words
from wattmesh.controller.cli.tables import Column, table

CHART_LEAST, CHART_MOST = 24, 96
LEGEND = (
    Column(title=""),
    Column(title=""),
    Column(title="", right=True),
    Column(title=""),
)
HANG = 9
"""Columns of the word that a line below the curve begins with."""

SIDE = 30
"""Columns that labels take on both sides of the curve."""


def screen(answer: Mapping[str, Any], columns: int) -> list[Text | str]:
    """Lay out the answer of `GET /v1/runs/{run}/plan` for a terminal `columns` wide."""
    lines: list[Text | str] = [_head(answer)]
    lines += [styled((each, WARN)) for each in formats.wrapped(answer["sentence"], columns)]
    if answer["decision"]:
        lines += formats.wrapped(f"now: {answer['decision']}", columns)
    plan = answer["plan"]
    if plan is None:
        return lines
    width = min(CHART_MOST, max(CHART_LEAST, columns - SIDE))
    drawn = plan_chart.frame(answer, width)
    lines += ["", *plan_chart.curve(answer, drawn)]
    lines += [plan_chart.points(answer, drawn), styled((plan_chart.axis(drawn), DIM)), ""]
    lines += [*_legend(plan), ""]
    for said, style in _comes_to(answer, plan):
        lines += [styled((each, style)) for each in formats.wrapped(said, columns, HANG)]
    return [*lines, *legend(lines)]


def _head(answer: Mapping[str, Any]) -> Text:
    plan = answer["plan"]
    age = f" · plan made {quantities.duration(plan['age_s'])} ago" if plan else ""
    told = f" · simulated: {', '.join(answer['simulated'])}" if answer["simulated"] else ""
    signal = f" · {answer['signal']}" if answer["signal"] else ""
    return styled((answer["name"], STRONG), f"{age}{signal}", (told, WARN))


def _legend(plan: Mapping[str, Any]) -> Iterator[Text | str]:
    names = plan_chart.letters(plan["steps"])
    hours: dict[str, float] = {}
    for step in plan["steps"]:
        length = datetime.fromisoformat(step["end"]) - datetime.fromisoformat(step["start"])
        hours[step["point"]] = hours.get(step["point"], 0.0) + length / timedelta(seconds=1)
    known = {step["point"]: step for step in plan["steps"]}
    rows = [
        (
            Text(f"{'':<{plan_chart.LABEL - 2}}{names[point]}", style=STRONG),
            f"{'' if names[point] == point or not point else f'{point}: '}"
            f"{layout_words(known[point])}",
            quantities.duration(seconds),
            _at_its_best(plan, point),
        )
        for point, seconds in hours.items()
    ]
    yield from table(LEGEND, rows)[1:]


def _at_its_best(plan: Mapping[str, Any], point: str) -> Text:
    said = band_words(plan, point)
    return Text(f"for {said}" if said else "", style=DIM)


def _comes_to(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Say what the plan does, when it ends, and what it emits: (sentence, style)."""
    changes = plan["layout_switches"] + plan["clock_changes"] + plan["sleeps"]
    kinds = [
        formats.plural(plan[key], one)
        for key, one in (
            ("layout_switches", "layout"),
            ("clock_changes", "clock"),
            ("sleeps", "sleep"),
        )
        if plan[key]
    ]
    gap = quantities.UNKNOWN if plan["gap"] is None else formats.percent(plan["gap"], 2)
    split = f" ({', '.join(kinds)})" if kinds else ""
    yield f"switches {changes}{split}, gap to bound {gap}", ""
    yield _end_and_slack(answer, plan), ""
    yield (
        f"carbon   {formats.grams(plan['grams'], plan['flags'])} from then on; no plan comes below "
        f"{formats.grams(plan['bound_g'], plan['flags'])} if the grid is as forecast",
        "",
    )
    yield from _mu_above_chart(answer, plan)
    yield from _what_binds(plan)
    if answer["extended"]:
        yield f"after the forecast's end the grid takes {answer['extended']}", DIM
    if answer["trouble"]:
        yield f"planning failed {answer['failures']} times: {answer['trouble']}", WARN


def _what_binds(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, style in (("cap", DIM), ("level", WARN), ("budget", WARN)):
        if plan[key]:
            yield f"{key:<{HANG}}{plan[key]}", style


def _mu_above_chart(
    answer: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    highest = max((each["g_per_kwh"] for each in answer["grid"]), default=0.0)
    for each in plan["mu"]:
        if not plan_chart.shown(each["g_per_kwh"], highest):
            mu = formats.intensity(each["g_per_kwh"])
            yield (
                f"mu = {mu} g/kWh, above every hour shown: {each['faster']} is better in each",
                "",
            )


def _end_and_slack(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    finish, deadline = formats.moment(plan["finish_at"]), formats.moment(answer["deadline"])
    said = f"finish   {_day(finish)}"
    if finish is None or deadline is None:
        return said
    spare_s = (deadline - finish).total_seconds()
    return f"{said}, deadline {_day(deadline)} ({quantities.duration(spare_s)} to spare)"


def _day(at: datetime | None) -> str:
    """Write `Tue 24 Nov 09:10` (UTC)."""
    return quantities.UNKNOWN if at is None else f"{at.astimezone(UTC):%a %d %b %H:%M}"
