"""Draw the pictures of a run's report, as SVG for its page.

A child process of its own (`python -m wattmesh.controller.cli.accounting.run_report_picture`, the
answer of `GET /v1/runs/{run}/report` on standard input, SVG on standard output), so that no other
command loads matplotlib. Invariant: it draws what the report says; a stretch that is not known is a
gap, and unread time is shaded; the SVG holds no script, no link and no colour of text of its own.
"""

import io
import json
import math
import re
import sys
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from matplotlib import dates
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from wattmesh.controller.marks import marked
from wattmesh.controller.pictures import FAINT, INK, MUTED, STYLE

POWER, GRID, GRAMS, LIMIT = "#0b8fa6", "#d9760a", "#2f9e44", "#8a5cf6"
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", FAINT: "var(--faint)"}
"""Colours that the page chooses, for light and dark."""

SVG_STYLE: Any = {**STYLE, "svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "w"}
NO_METADATA: Any = dict.fromkeys(("Creator", "Date", "Format", "Type"))
NAN = float("nan")


def draw(view: dict[str, Any]) -> str:
    """Draw the answer of `GET /v1/runs/{run}/report`; give one SVG element."""
    plt.switch_backend("Agg")
    with plt.rc_context(SVG_STYLE):
        figure, (power, grams) = plt.subplots(2, 1, figsize=(9.0, 5.6), sharex=True)
        figure.subplots_adjust(left=0.09, right=0.91, top=0.95, bottom=0.09, hspace=0.25)
        _draw_power(power, view)
        _draw_grams(grams, view)
        for axes in (power, grams):
            _shade_unread(axes, view)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata=NO_METADATA)
        plt.close(figure)
    return _for_the_page(out.getvalue())


def _for_the_page(svg: str) -> str:
    """Keep the element alone, without the declarations before it, in the page's colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg


def _times(view: dict[str, Any]) -> list[datetime]:
    """Give the border of each stretch; a hole between two has both of its borders."""
    return [
        datetime.fromisoformat(each[name])
        for each in view["stretches"]
        for name in ("start", "end")
    ]


def _twice(values: list[float | None]) -> list[float]:
    return [NAN if each is None else each for each in values for _ in range(2)]


def _draw_power(axes: Axes, view: dict[str, Any]) -> None:
    at: Any = _times(view)
    watts: list[float | None] = []
    for each in view["stretches"]:
        start, end = (datetime.fromisoformat(each[name]) for name in ("start", "end"))
        energy_j = each["energy_j"]
        watts.append(None if energy_j is None else energy_j / (end - start).total_seconds() / 1000)
    axes.plot(at, _twice(watts), color=POWER, linewidth=1.6)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(marked("kW, mean", view["spent"]["flags"]), color=POWER)
    prices = _twice([each["intensity_g_per_kwh"] for each in view["stretches"]])
    if not all(math.isnan(value) for value in prices):
        beside = axes.twinx()
        beside.plot(at, prices, color=GRID, linewidth=1.2)
        beside.set_ylim(bottom=0)
        beside.set_ylabel("g/kWh of the grid", color=GRID)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)


def _draw_grams(axes: Axes, view: dict[str, Any]) -> None:
    known = [each for each in view["stretches"] if each["carbon_g"] is not None]
    ends = [each["end"] for each in known]
    at: Any = [datetime.fromisoformat(each) for each in (known[0]["start"], *ends)] if known else []
    sums = list(accumulate((each["carbon_g"] for each in known), initial=0.0))[: len(at)]
    axes.plot(at, sums, color=GRAMS, linewidth=2.0, label="emitted, of joules with a price")
    spent = view["spent"]
    if known and spent["baseline_g"] is not None:
        label = f"{spent['baseline']}, as submitted, at as many tokens"
        axes.axhline(spent["baseline_g"], color=MUTED, linestyle="--", linewidth=1.2, label=label)
    if known and spent["bound_g"] is not None:
        axes.axhline(
            spent["bound_g"], color=LIMIT, linestyle=":", linewidth=1.4, label="best possible"
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel(marked("g since it began", spent["flags"]))
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    if known:
        axes.legend(frameon=False, loc="lower right", labelcolor=INK)
    ticks: Any = dates  # matplotlib leaves these classes without types
    locator = ticks.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ticks.ConciseDateFormatter(locator, tz=UTC))


def _shade_unread(axes: Axes, view: dict[str, Any]) -> None:
    for each in view["stretches"]:
        if each["unobserved_s"]:
            start, end = (datetime.fromisoformat(each[name]) for name in ("start", "end"))
            span: Any = (start, end)
            axes.axvspan(*span, color=MUTED, alpha=0.18, linewidth=0)


if __name__ == "__main__":
    sys.stdout.write(draw(json.load(sys.stdin)))
