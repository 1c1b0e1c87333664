"""Draw a run's plan as a picture: the grid with mu, and the points below it on the same hours.

A child process of its own (`python -m wattmesh.controller.cli.policy.plan_picture`, the answer of
`GET /v1/runs/{run}/plan` on standard input, a PNG on standard output), so that no other command
loads matplotlib. Invariant: it draws what the answer says and computes nothing.
"""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from matplotlib import dates as untyped_dates
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from wattmesh.controller.cli import formats
from wattmesh.controller.cli.policy import plan_chart
from wattmesh.controller.cli.policy.plan_bands import band_words, layout_words
from wattmesh.controller.pictures import FAINT, INK, MUTED, STYLE

dates: Any = untyped_dates
GRID_LINE, GRID_FILL, MU, SLEEP = "#3e4c59", "#cbd2d9", "#e8590c", "#dee2e6"
NAME_SHARE = 0.045
"""Height of a name beside the curve, as a share of its axis."""

LINE = 0.035
"""Height of a line of words, as a share of the picture."""

WIDE = 150
"""Characters of a line below the title."""

LETTER_SHARE = 0.012
"""Width of a letter, as a share of the band."""

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
            2, 1, figsize=(10.5, 6.0), dpi=130, height_ratios=(3.4, 1.0), sharex=True
        )
        said = _subtitle(answer)
        top = 0.895 - LINE * len(said)
        figure.subplots_adjust(left=0.07, right=0.9, top=top, bottom=0.2, hspace=0.16)
        figure.text(0.04, 0.95, _title(answer), fontsize=13.5, weight="bold")
        for row, each in enumerate(said):
            figure.text(0.04, 0.905 - LINE * row, each, color=MUTED)
        _draw_grid(sky, answer)
        _draw_points(band, answer)
        _draw_legend(band, answer)
        figure.savefig(out, format="png")
        plt.close(figure)


def _title(answer: dict[str, Any]) -> str:
    plan = answer["plan"]
    changes = plan["layout_switches"] + plan["clock_changes"] + plan["sleeps"]
    done = f"done {_at(plan['finish_at']):%a %d %b %H:%M}"
    grams = formats.grams(plan["grams"], plan["flags"])
    return f"{answer['name']}: {done}, {grams} CO2 until then, {formats.plural(changes, 'change')}"


def _subtitle(answer: dict[str, Any]) -> list[str]:
    plan = answer["plan"]
    said = [f"plan of {_at(plan['made_at']):%a %d %b %H:%M}, all times UTC", answer["signal"]]
    if plan["gap"] is not None:
        said.append(f"gap to bound {formats.percent(plan['gap'], 2)}")
    warned = []
    if answer["simulated"]:
        warned.append(f"SIMULATED: {', '.join(answer['simulated'])}")
    if answer["sentence"]:
        warned.append("NOT FOLLOWED")
    if answer["extended"]:
        warned.append(f"after the forecast's end the grid takes {answer['extended']}")
    warned += [plan[key] for key in ("cap", "level", "budget") if plan[key]]
    return [" · ".join(said), *formats.wrapped(" · ".join(warned), WIDE)[:2]]


def _at(text: str) -> Any:
    """Read a time of the API; matplotlib's types know no times."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _draw_grid(axes: Axes, answer: dict[str, Any]) -> None:
    slots = answer["grid"]
    edges = [dates.date2num(_at(each["start"])) for each in slots]
    edges.append(dates.date2num(_at(slots[-1]["end"])))
    values = [each["g_per_kwh"] for each in slots]
    axes.stairs(values, edges, fill=True, color=GRID_FILL, alpha=0.55)
    axes.stairs(values, edges, color=GRID_LINE, linewidth=1.5, baseline=None)
    levels = [each["g_per_kwh"] for each in answer["plan"]["mu"]]
    near = sorted(each for each in levels if plan_chart.shown(each, max(values)))
    top = 1.06 * max(*values, *near, 1.0)
    for level, beside in zip(near, apart(near, NAME_SHARE * top), strict=True):
        axes.axhline(level, color=MU, linewidth=1.0, linestyle=":")
        axes.annotate(f"µ = {level:.0f}", (1.0, beside), xycoords=("axes fraction", "data"),
                      xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
                      color=MU, annotation_clip=False)  # fmt: skip
    axes.set_ylabel("g CO2 per kWh, expected")
    axes.set_ylim(0, top)
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)


def apart(levels: list[float], least: float) -> list[float]:
    """Give where to write the names of ascending levels so that they are `least` apart."""
    found: list[float] = []
    for level in levels:
        found.append(max(level, found[-1] + least) if found else level)
    return found


def _draw_points(axes: Axes, answer: dict[str, Any]) -> None:
    plan = answer["plan"]
    colours = _colours(plan)
    whole = (_at(plan["steps"][-1]["end"]) - _at(plan["steps"][0]["start"])).total_seconds()
    for step in plan["steps"]:
        start, end = (dates.date2num(_at(step[key])) for key in ("start", "end"))
        point = step["point"]
        axes.barh(0, end - start, left=start, height=0.7, color=colours[point], linewidth=0)
        share = (_at(step["end"]) - _at(step["start"])).total_seconds() / whole
        if point and share > LETTER_SHARE * len(point):
            axes.text((start + end) / 2, 0, point, ha="center", va="center", color="white",
                      fontsize=9, clip_on=True)  # fmt: skip
    if answer["deadline"]:
        deadline = dates.date2num(_at(answer["deadline"]))
        axes.axvline(deadline, color=INK, linewidth=1.2, linestyle=(0, (1, 1.5)))
        axes.annotate("deadline", (deadline, 0.5), xycoords=("data", "axes fraction"),
                      xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5,
                      color=MUTED, annotation_clip=False)  # fmt: skip
    axes.set_yticks([])
    axes.set_ylabel("point")
    axes.spines["left"].set_visible(False)
    shown = plan_chart.ticks(_at(answer["grid"][0]["start"]), _at(answer["grid"][-1]["end"]), 8)
    axes.set_xticks([dates.date2num(each) for each in shown])
    axes.xaxis.set_major_formatter(dates.DateFormatter("%a %d %b\n%H:%M", tz=UTC))


def _draw_legend(axes: Axes, answer: dict[str, Any]) -> None:
    plan = answer["plan"]
    known = {step["point"]: step for step in plan["steps"]}
    patches = []
    for point, colour in _colours(plan).items():
        layout, best = layout_words(known[point]), band_words(plan, point)
        name = f"{point}: {layout}" if point else layout
        patches.append(Patch(color=colour, label=f"{name}, {best}" if best else name))
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(-0.01, -0.42), ncols=2,
                frameon=False, fontsize=8.5, handlelength=1.0)  # fmt: skip


def _colours(plan: dict[str, Any]) -> dict[str, str]:
    ids = list(dict.fromkeys(step["point"] for step in plan["steps"]))
    running = [each for each in ids if each]
    return {each: POINTS[running.index(each) % len(POINTS)] if each else SLEEP for each in ids}


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.stdout.buffer)
