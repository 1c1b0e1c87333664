"""Draw a run's plan as a picture: the grid with mu, and the points below it on the same hours.

A child process of its own (`python -m wattmesh.controller.cli.plan_picture`, the answer of
`GET /v1/runs/{run}/plan` on standard input, a PNG on standard output), so that nobody else pays for
matplotlib. Invariant: it draws what the answer says and computes nothing.
"""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from matplotlib import dates as untyped_dates
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from wattmesh.controller.cli import plan_chart, words
from wattmesh.controller.pictures import FAINT, INK, MUTED, STYLE

dates: Any = untyped_dates
GRID_LINE, GRID_FILL, MU, SLEEP = "#3e4c59", "#cbd2d9", "#e8590c", "#dee2e6"
POINTS = ("#1864ab", "#2f9e44", "#862e9c", "#e67700", "#a61e4d", "#0b7285", "#5c940d")


def draw(answer: dict[str, Any], out: Any) -> None:
    """Draw the picture.

    Args:
        answer: of `GET /v1/runs/{run}/plan`, with a plan.
        out: a path or a binary stream.
    """
    plt.switch_backend("Agg")
    with plt.rc_context(STYLE):
        figure, (sky, band) = plt.subplots(
            2, 1, figsize=(10.5, 5.6), dpi=130, height_ratios=(3.0, 1.0), sharex=True
        )
        figure.subplots_adjust(left=0.07, right=0.97, top=0.84, bottom=0.1, hspace=0.16)
        figure.text(0.04, 0.945, _title(answer), fontsize=13.5, weight="bold")
        figure.text(0.04, 0.895, _subtitle(answer), color=MUTED)
        _grid(sky, answer)
        _points(band, answer)
        figure.savefig(out, format="png")
        plt.close(figure)


def _title(answer: dict[str, Any]) -> str:
    """The answer first."""
    plan = answer["plan"]
    changes = plan["layout_switches"] + plan["clock_changes"] + plan["sleeps"]
    grams = words.grams(plan["grams"])
    return f"{answer['name']}: {words.plural(changes, 'change')}, {grams} CO2 until it is done"


def _subtitle(answer: dict[str, Any]) -> str:
    """How good it is, on what it rests, and what is wrong with it."""
    plan = answer["plan"]
    said = [f"plan of {_at(plan['made_at']):%a %d %b %H:%M} UTC", answer["signal"]]
    if plan["gap"] is not None:
        said.append(f"gap to bound {words.percent(plan['gap'], 2)}")
    if answer["simulated"]:
        said.append(f"SIMULATED: {', '.join(answer['simulated'])}")
    if answer["sentence"]:
        said.append("NOT FOLLOWED")
    return " · ".join(said)


def _at(text: str) -> Any:
    """Read a time of the API; matplotlib's types know no times."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _grid(axes: Axes, answer: dict[str, Any]) -> None:
    """The intensity that is expected, with the plan's price through it."""
    slots = answer["grid"]
    edges = [dates.date2num(_at(each["start"])) for each in slots]
    edges.append(dates.date2num(_at(slots[-1]["end"])))
    values = [each["g_per_kwh"] for each in slots]
    axes.stairs(values, edges, fill=True, color=GRID_FILL, alpha=0.55)
    axes.stairs(values, edges, color=GRID_LINE, linewidth=1.5, baseline=None)
    for each in answer["plan"]["mu"]:
        level = each["g_per_kwh"]
        if plan_chart.shown(level, max(values)):
            axes.axhline(level, color=MU, linewidth=1.0, linestyle=":")
            said = f"µ = {level:.0f}: {each['slower'] or 'asleep'} above, {each['faster']} below"
            axes.annotate(said, (1.0, level), xycoords=("axes fraction", "data"),
                          xytext=(-2, 3), textcoords="offset points", ha="right",
                          fontsize=8.5, color=MU)  # fmt: skip
    axes.set_ylabel("g CO2 per kWh, expected")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def _points(axes: Axes, answer: dict[str, Any]) -> None:
    """Where the run is to be, when it is done, and when it must be."""
    steps = answer["plan"]["steps"]
    names = [each for each in dict.fromkeys(step["point"] for step in steps) if each]
    for step in steps:
        start, end = (dates.date2num(_at(step[key])) for key in ("start", "end"))
        point = step["point"]
        colour = POINTS[names.index(point) % len(POINTS)] if point else SLEEP
        axes.barh(0, end - start, left=start, height=0.7, color=colour, linewidth=0)
        axes.text((start + end) / 2, 0, point, ha="center", va="center", color="white",
                  fontsize=9, clip_on=True)  # fmt: skip
    if answer["deadline"]:
        deadline = dates.date2num(_at(answer["deadline"]))
        axes.axvline(deadline, color=INK, linewidth=1.2, linestyle=(0, (1, 1.5)))
        axes.annotate("deadline", (deadline, 1.0), xycoords=("data", "axes fraction"),
                      xytext=(-3, 0), textcoords="offset points", ha="right", fontsize=8,
                      color=MUTED)  # fmt: skip
    axes.set_yticks([])
    axes.set_ylabel("point")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=8, tz=UTC))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%a %d %b\n%H:%M", tz=UTC))


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.stdout.buffer)
