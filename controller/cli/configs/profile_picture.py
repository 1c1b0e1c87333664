"""Draw what `configs profile` measured: joules per token against tokens per second, with the hull.

A child process of its own (`python -m wattmesh.controller.cli.configs.profile_picture`, the
command's `--json` on standard input, a PNG on standard output), so that no other command loads
matplotlib. Invariant: it draws what the answer says and computes nothing.
"""

import json
import sys
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from wattmesh.controller.pictures import INK, MUTED, STYLE

HULL, POINT, CUT = "#2f9e44", "#1864ab", "#adb5bd"
CAP = 3.0
"""Size of the ends of an interval, in points."""


def draw(answer: dict[str, Any], out: Any) -> None:
    """Draw the picture.

    Args:
        answer: of `configs profile --json`.
        out: a path or a binary stream.
    """
    plt.switch_backend("Agg")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.0, 5.0), dpi=130)
        figure.subplots_adjust(left=0.11, right=0.96, top=0.84, bottom=0.13)
        figure.text(
            0.04, 0.94, f"{answer['job']}: what each point takes", fontsize=13, weight="bold"
        )
        figure.text(0.04, 0.885, _subtitle(answer), color=MUTED)
        _draw_hull(axes, answer)
        for each in answer["measured"]:
            _draw_point(axes, each)
        axes.set_xlabel("tokens per second")
        axes.set_ylabel("joules per token, of the GPUs in use")
        axes.margins(0.12)
        figure.savefig(out, format="png")
        plt.close(figure)


def _subtitle(answer: dict[str, Any]) -> str:
    """Say what the marks mean, and what is not measured."""
    words = ["bars: 95 % of the pace and the meter's bound", "line: worth running"]
    if any(each["dominated_by"] for each in answer["measured"]):
        words.append("grey: cut short")
    sources = {each[key] for each in answer["measured"] for key in ("speed_source", "power_source")}
    words += sorted(sources - {"measured"})
    return " · ".join(words)


def _draw_hull(axes: Axes, answer: dict[str, Any]) -> None:
    """Join the points that are worth running, slowest first."""
    measured = {each["id"]: each for each in answer["measured"]}
    useful = [measured[each["point"]] for each in answer["worth"] if each["useful"]]
    useful.sort(key=lambda each: float(each["tokens_per_s"]))
    axes.plot(
        [each["tokens_per_s"] for each in useful],
        [each["j_per_token"] for each in useful],
        color=HULL,
        linewidth=1.2,
        zorder=1,
    )


def _draw_point(axes: Axes, each: dict[str, Any]) -> None:
    speed, cost = each["tokens_per_s"], each["j_per_token"]
    axes.errorbar(
        speed,
        cost,
        xerr=speed * each["speed_share"],
        yerr=cost * each["share"],
        fmt="o",
        color=CUT if each["dominated_by"] else POINT,
        capsize=CAP,
        markersize=5,
        elinewidth=0.9,
        zorder=2,
    )
    axes.annotate(
        each["id"], (speed, cost), xytext=(7, 7), textcoords="offset points", color=INK, fontsize=10
    )


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.stdout.buffer)
