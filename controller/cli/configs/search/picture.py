"""Draw what a search found: joules per token against tokens per second, the hull, intervals.

A child process of its own (`python -m wattmesh.controller.cli.configs.search.picture`, the JSON of
the search on standard input, a PNG on standard output), so that no other command loads matplotlib.
Invariant: it draws what the answer says and computes nothing but the ends of intervals.
"""

import json
import math
import sys
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from wattmesh import quantities
from wattmesh.controller.cli.configs.search.ranking_screen import next_layouts
from wattmesh.controller.pictures import FAINT, INK, MUTED, STYLE

HULL, NEXT, MEASURED = "#1864ab", "#e8590c", "#2f9e44"
NINETY_PERCENT = 1.645
"""Standard deviations on each side that hold nine of ten normal values."""

MOST_JOULES = 2.0
"""Points that take more than so many times the least joules per token are not drawn."""

NAMED = 3
"""Points to measure next that are named in the picture."""


def draw(answer: dict[str, Any], out: Any) -> None:
    """Draw the picture.

    Args:
        answer: of `wattmesh configs search --json`.
        out: a path or a binary stream.
    """
    plt.switch_backend("Agg")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9.0, 5.6), dpi=130)
        figure.subplots_adjust(left=0.09, right=0.96, top=0.84, bottom=0.12)
        title = f"{answer['gpus']} {answer['gpu']}: predicted layouts and clocks"
        figure.text(0.04, 0.94, title, fontsize=13.5, weight="bold", color=INK)
        said = (
            f"{quantities.count(answer['layouts'])} layouts, "
            f"{quantities.count(answer['fitting'])} fit into memory; "
            f"{len(answer['points'])} that nothing beats in time, energy and memory"
        )
        figure.text(0.04, 0.895, said, color=MUTED)
        axes.set_xlabel("tokens per second")
        axes.set_ylabel("joules per token, of the nodes")
        axes.xaxis.set_major_formatter(lambda value, _: quantities.count(value))
        axes.grid(color=FAINT, linewidth=0.6)
        if answer["points"]:
            _draw_points(axes, answer)
            _draw_next(axes, answer)
            axes.legend(frameon=False, loc="best")
        figure.savefig(out, format="png")
        plt.close(figure)


def _draw_points(axes: Axes, answer: dict[str, Any]) -> None:
    points = answer["points"]
    shown = [_at(each) for each in points]
    least = min(joules for _, joules in shown)
    shown = [each for each in shown if each[1] <= MOST_JOULES * least]
    speeds, joules = zip(*shown, strict=True)
    axes.scatter(speeds, joules, s=12, color=MUTED, label="predicted", zorder=2)
    hull = sorted(_at(each) for each in points if each["on_hull"])
    if hull:
        axes.plot(*zip(*hull, strict=True), color=HULL, marker="o", ms=5, label="hull", zorder=3)
    measured = answer.get("measured", [])
    if measured:
        speeds = tuple(each["tokens_per_s"] for each in measured)
        joules = tuple(each["j_per_token"] for each in measured)
        axes.scatter(speeds, joules, s=46, marker="D", color=MEASURED, label="measured", zorder=5)


def _draw_next(axes: Axes, answer: dict[str, Any]) -> None:
    """Mark what to measure next, each with the interval of its prediction at the same watts."""
    for place, each in enumerate(next_layouts(answer)[:NAMED]):
        speed, joules = each["tokens_per_s"], each["j_per_token"]
        wide = math.exp(NINETY_PERCENT * answer["points"][each["point"]]["spread"])
        along = [wide ** (step / 8) for step in range(-8, 9)]
        axes.plot(
            [speed / factor for factor in along],
            [joules * factor for factor in along],
            color=NEXT,
            linewidth=1.0,
            alpha=0.6,
            label="measure next, with its 90 % interval" if place == 0 else None,
            zorder=3,
        )
        axes.scatter([speed], [joules], s=40, color=NEXT, zorder=4)
        axes.annotate(
            str(place + 1), (speed, joules), (6, 6), textcoords="offset points", color=NEXT
        )


def _at(point: dict[str, Any]) -> tuple[float, float]:
    """Give where a point is drawn: as its own measurements correct it, where there are any."""
    corrected = point.get("corrected", 1.0)
    return point["tokens_per_s"] / corrected, point["j_per_token"] * corrected


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.stdout.buffer)
