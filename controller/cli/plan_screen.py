"""The screen of `wattmesh policy plan`: the plan against the grid, and what it comes to. Pure.

Invariant: the answer first; a plan that is not followed says so before it is shown, and what is
simulated or filled in says so beside it.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.text import Text

from wattmesh.controller.cli import plan_chart, words
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled

CHART_LEAST, CHART_MOST = 24, 96
SIDE = 44
"""Columns that labels take on both sides of the curve."""


def screen(answer: Mapping[str, Any], columns: int) -> list[Text | str]:
    """Lay out the answer of `GET /v1/runs/{run}/plan` for a terminal so many columns wide."""
    lines: list[Text | str] = [_head(answer)]
    if answer["sentence"]:
        lines.append(styled((answer["sentence"], WARN)))
    if answer["decision"]:
        lines.append(f"now: {answer['decision']}")
    plan = answer["plan"]
    if plan is None:
        return lines
    width = min(CHART_MOST, max(CHART_LEAST, columns - SIDE))
    drawn = plan_chart.frame(answer, width)
    lines += ["", *plan_chart.curve(answer, drawn)]
    lines += [plan_chart.points(answer, drawn), styled((plan_chart.axis(drawn), DIM)), ""]
    lines += [*_legend(plan), "", *_comes_to(answer, plan)]
    return lines


def _head(answer: Mapping[str, Any]) -> Text:
    """Which run, how old the plan is, and on which signal."""
    plan = answer["plan"]
    age = f" · plan made {words.duration(plan['age_s'])} ago" if plan else ""
    told = f" · simulated: {', '.join(answer['simulated'])}" if answer["simulated"] else ""
    signal = f" · {answer['signal']}" if answer["signal"] else ""
    return styled((answer["name"], STRONG), f"{age}{signal}", (told, WARN))


def _legend(plan: Mapping[str, Any]) -> Iterator[Text | str]:
    """What each letter stands for, and for how long."""
    names = plan_chart.letters(plan["steps"])
    hours: dict[str, float] = {}
    for step in plan["steps"]:
        length = datetime.fromisoformat(step["end"]) - datetime.fromisoformat(step["start"])
        hours[step["point"]] = hours.get(step["point"], 0.0) + length / timedelta(seconds=1)
    known = {step["point"]: step for step in plan["steps"]}
    for point, seconds in hours.items():
        step = known[point]
        clock = f" @{step['clock_mhz']} MHz" if step["clock_mhz"] is not None else ""
        told = "" if names[point] == point else f"{point}  "
        named = f"{told}{step['layout']}{clock}" if point else "asleep"
        mark = styled((names[point], STRONG), f"  {named}, {words.duration(seconds)}")
        yield Text(" " * plan_chart.LABEL).append_text(mark)


def _comes_to(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[Text | str]:
    """What the plan does, when it ends, and what it emits."""
    changes = plan["layout_switches"] + plan["clock_changes"] + plan["sleeps"]
    kinds = [
        words.plural(plan[key], one)
        for key, one in (
            ("layout_switches", "layout"),
            ("clock_changes", "clock"),
            ("sleeps", "sleep"),
        )
        if plan[key]
    ]
    gap = words.UNKNOWN if plan["gap"] is None else words.percent(plan["gap"], 2)
    split = f" ({', '.join(kinds)})" if kinds else ""
    yield f"switches {changes}{split}, gap to bound {gap}"
    yield _ends(answer, plan)
    yield (
        f"carbon   {words.grams(plan['grams'])} from then on; no plan comes below "
        f"{words.grams(plan['bound_g'])} if the grid is as forecast"
    )
    yield from _far(answer, plan)
    yield from _constraints(plan)
    if answer["extended"]:
        yield styled((f"beyond the forecast the grid takes {answer['extended']}", DIM))
    if answer["trouble"]:
        yield styled((f"planning failed {answer['failures']} times: {answer['trouble']}", WARN))


def _constraints(plan: Mapping[str, Any]) -> Iterator[Text]:
    """Say what binds the plan, and what it cannot keep."""
    if plan["cap"]:
        yield styled((f"cap      {plan['cap']}", DIM))
    if plan["level"]:
        yield styled((f"level    {plan['level']}", WARN))
    if plan["budget"]:
        yield styled((f"budget   {plan['budget']}", WARN))


def _far(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """Name a mu that is too far above the curve to be drawn."""
    highest = max((each["g_per_kwh"] for each in answer["grid"]), default=0.0)
    for each in plan["mu"]:
        if not plan_chart.shown(each["g_per_kwh"], highest):
            mu = words.intensity(each["g_per_kwh"])
            yield f"mu = {mu} g/kWh, above all of it: {each['faster']} is worth its watts always"


def _ends(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """When the work is done, and what is to spare."""
    finish, deadline = words.moment(plan["finish_at"]), words.moment(answer["deadline"])
    said = f"finish   {_day(finish)}"
    if finish is None or deadline is None:
        return said
    spare_s = (deadline - finish).total_seconds()
    return f"{said}, deadline {_day(deadline)} ({words.duration(spare_s)} to spare)"


def _day(at: datetime | None) -> str:
    """Write `Tue 24 Nov 09:10` (UTC)."""
    return words.UNKNOWN if at is None else f"{at.astimezone(UTC):%a %d %b %H:%M}"
