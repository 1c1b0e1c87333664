"""Draw `report.png`: the grid, the layouts, the power and the loss curves of the demo.

It runs in its own child process (`python -m examples.demo.picture FOLDER`), so that only
that process imports matplotlib. Invariant: it draws `evidence.json` and computes nothing but the
loss difference and means over slots; the picture itself names what is simulated.
"""

import sys
from math import ceil
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from examples.demo.evidence import (
    Band,
    PictureEvidence,
    RunCurves,
    Span,
    relative_differences,
)
from wattmesh.controller.pictures import FAINT, INK, MUTED, STYLE

FILE = "report.png"
SMOOTHED = 2

GRID_LINE, GRID_FILL, FORECAST = "#3e4c59", "#cbd2d9", "#9fb3c8"
MAIN, CONTROL, REORDERED = "#0b7285", "#e8590c", "#adb5bd"
POINTS = ("#1864ab", "#2f9e44", "#862e9c", "#e67700", "#a61e4d")
"""Colours of the operating points, in the order in which they first appear."""


def draw(evidence: PictureEvidence, path: Path) -> None:
    """Draw the picture."""
    plt.switch_backend("Agg")
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(11.5, 11.0), dpi=150)
        day = GridSpec(
            3, 1, figure=figure, height_ratios=(2.5, 1.15, 1.9), hspace=0.34,
            left=0.075, right=0.965, top=0.9, bottom=0.43,
        )  # fmt: skip
        steps = GridSpec(
            1, 5, figure=figure, wspace=1.1, left=0.075, right=0.965, top=0.325, bottom=0.08
        )
        sky = figure.add_subplot(day[0])
        bands = figure.add_subplot(day[1], sharex=sky)
        power = figure.add_subplot(day[2], sharex=sky)
        _intensity(sky, evidence)
        _bands(bands, evidence)
        _power(power, evidence)
        _time_axis((sky, bands, power), evidence)
        _loss(figure.add_subplot(steps[:3]), evidence)
        _difference(figure.add_subplot(steps[3:]), evidence)
        _words(figure, evidence)
        figure.savefig(path)
        plt.close(figure)


def _words(figure: Figure, evidence: PictureEvidence) -> None:
    """Write the headline above the picture, and the sources below."""
    figure.text(0.075, 0.972, evidence.headline, fontsize=13.5, weight="bold")
    told = f" · simulated: {', '.join(evidence.simulated)}" if evidence.simulated else ""
    figure.text(0.075, 0.953, f"{evidence.beside}{told}", fontsize=10, color=MUTED)
    figure.text(0.075, 0.935, f"Scale: {evidence.scale}", fontsize=9, color=MUTED)
    figure.text(0.075, 0.02, evidence.attribution, fontsize=7.5, color=MUTED)


def _title(axes: Axes, text: str, unit: str) -> None:
    """Write a panel's title at its upper left, and its unit, muted, at its upper right."""
    axes.set_title(text, loc="left", fontsize=10.5, weight="bold", pad=7)
    axes.set_title(unit, loc="right", fontsize=8.5, color=MUTED, pad=7)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)


def _stairs(spans: tuple[Span, ...]) -> tuple[list[float], list[float]]:
    """Turn spans into edges and values, as `Axes.stairs` wants them; gaps become zero width."""
    values = [each.value for each in spans]
    edges = [each.start_s for each in spans] + [spans[-1].end_s]
    return values, edges


def _colours(evidence: PictureEvidence) -> dict[str, str]:
    seen = dict.fromkeys(each.point for each in (*evidence.main.bands, *evidence.control.bands))
    return {point: POINTS[index % len(POINTS)] for index, point in enumerate(seen)}


def _intensity(axes: Axes, evidence: PictureEvidence) -> None:
    _title(axes, f"Carbon intensity of the grid: {evidence.day}", "g CO₂ per kWh, by recorded hour")
    values, edges = _stairs(evidence.intensity)
    axes.stairs(values, edges, fill=True, color=GRID_FILL, alpha=0.55)
    axes.stairs(values, edges, color=GRID_LINE, linewidth=1.6, baseline=None, label="measured")
    if evidence.forecast:
        axes.stairs(
            *_stairs(evidence.forecast), color=FORECAST, linewidth=1.3, linestyle=(0, (3, 2)),
            baseline=None, label="forecast when the run began",
        )  # fmt: skip
    if evidence.threshold_g_per_kwh is not None:
        axes.axhline(evidence.threshold_g_per_kwh, color=CONTROL, linewidth=1.0, linestyle=":")
        axes.annotate(
            f"µ = {evidence.threshold_g_per_kwh:.0f}", (1.0, evidence.threshold_g_per_kwh),
            xycoords=("axes fraction", "data"), xytext=(-2, 3), textcoords="offset points",
            ha="right", fontsize=8.5, color=CONTROL,
        )  # fmt: skip
    low, high = min(values), max(values)
    axes.set_ylim(max(0.0, low - 0.35 * (high - low)), high + 0.32 * (high - low))
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, 0.93), frameon=False, fontsize=8.5, ncols=2,
        labelcolor=MUTED,
    )  # fmt: skip


def _bands(axes: Axes, evidence: PictureEvidence) -> None:
    _title(axes, "Layout", "striped: switching")
    colours = _colours(evidence)
    runs = (evidence.control, evidence.main)
    letter_s = max(run.bands[-1].end_s for run in runs) / 130
    for row, run in enumerate(runs):
        for band in run.bands:
            _band(axes, band, row, colours[band.point], letter_s)
    axes.set_yticks((0, 1), labels=("control", "wattmesh"))
    axes.set_ylim(-0.55, 1.55)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _deadline(axes, evidence, named=False)


def _band(axes: Axes, band: Band, row: int, colour: str, letter_s: float) -> None:
    """Draw one period in one layout, named if the name fits; a letter is `letter_s` wide."""
    width_s = band.end_s - band.start_s
    if band.moving:
        axes.barh(
            row, width_s, left=band.start_s, height=0.72, color="white", edgecolor=colour,
            hatch="/////", linewidth=0,
        )  # fmt: skip
        return
    axes.barh(row, width_s, left=band.start_s, height=0.72, color=colour, alpha=0.9, linewidth=0)
    shown = f"{band.point}: {band.layout} on {band.ranks}"
    if width_s < len(shown) * letter_s:
        shown = band.point if width_s > letter_s else ""
    axes.text(
        band.start_s + width_s / 2, row, shown, ha="center", va="center", fontsize=8,
        color="white", clip_on=True,
    )  # fmt: skip


def _power(axes: Axes, evidence: PictureEvidence) -> None:
    _title(axes, "Power of all GPUs, simulated", f"W, mean of {SMOOTHED} ledger slots")
    named = {"control": (evidence.control, CONTROL), "under wattmesh": (evidence.main, MAIN)}
    for name, (run, colour) in named.items():
        if run.power_w:
            values, edges = _stairs(smooth(run.power_w))
            axes.stairs(values, edges, color=colour, linewidth=1.5, baseline=None, label=name)
    values, edges = _stairs(smooth(evidence.main.power_w))
    axes.stairs(values, edges, fill=True, color=MAIN, alpha=0.12)
    axes.set_ylim(bottom=0, top=1.28 * max(each.value for each in evidence.control.power_w))
    axes.legend(loc="upper right", frameon=False, fontsize=8.5, ncols=2, labelcolor=MUTED)
    _deadline(axes, evidence)


def smooth(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Average groups of slots, since one is shorter than the time between two checkpoints."""
    groups = [spans[first : first + SMOOTHED] for first in range(0, len(spans), SMOOTHED)]
    return tuple(
        Span(
            start_s=group[0].start_s,
            end_s=group[-1].end_s,
            value=sum(each.value * (each.end_s - each.start_s) for each in group)
            / (group[-1].end_s - group[0].start_s),
        )
        for group in groups
    )


def _deadline(axes: Axes, evidence: PictureEvidence, *, named: bool = True) -> None:
    axes.axvline(evidence.deadline_s, color=INK, linewidth=1.0, linestyle=(0, (1, 1.5)))
    if not named:
        return
    axes.annotate(
        "deadline", (evidence.deadline_s, 0.0), xycoords=("data", "axes fraction"),
        xytext=(-3, 3), textcoords="offset points", rotation=90, ha="right", va="bottom",
        fontsize=7.5, color=MUTED,
    )  # fmt: skip


def _time_axis(panels: tuple[Axes, ...], evidence: PictureEvidence) -> None:
    """Give three panels one axis of seconds, and the grid panel the recorded hours above it."""
    end_s = max(
        evidence.deadline_s, *(each.bands[-1].end_s for each in (evidence.main, evidence.control))
    )
    panels[0].set_xlim(0, end_s * 1.012)
    for axes in panels:
        axes.tick_params(axis="x", labelbottom=axes is panels[-1], labelsize=8.5)
        for mark in evidence.main.marks:
            axes.axvline(mark.at_s, color=INK, linewidth=0.7, alpha=0.35, zorder=0)
    panels[-1].set_xlabel("seconds since training began", fontsize=8.5)
    _recorded_hours(panels[0], evidence, end_s)


def _recorded_hours(axes: Axes, evidence: PictureEvidence, end_s: float) -> None:
    per_hour_s = 3600 / evidence.compress
    step_h = 3 if end_s / per_hour_s > 15 else 1
    hour = ceil(evidence.starts_h / step_h) * step_h
    while (at_s := (hour - evidence.starts_h) * per_hour_s) < end_s:
        axes.annotate(
            f"{hour % 24:02d}:00", (at_s, 1.0), xycoords=("data", "axes fraction"),
            xytext=(0, -10), textcoords="offset points", ha="center", fontsize=7, color=MUTED,
        )  # fmt: skip
        hour += step_h


def _loss(axes: Axes, evidence: PictureEvidence) -> None:
    _title(axes, "Training loss", "cross-entropy, per step")
    control, main = evidence.control.losses, evidence.main.losses
    axes.plot(range(1, len(control) + 1), control, color=CONTROL, linewidth=4.0, alpha=0.35,
              solid_capstyle="round", label="control, never switched")  # fmt: skip
    axes.plot(range(1, len(main) + 1), main, color=MAIN, linewidth=1.1, label="under wattmesh")
    for mark in evidence.main.marks:
        if 0 < mark.step <= len(main):
            _dot(axes, mark.step, main[mark.step - 1], f"{mark.from_point} → {mark.to_point}"
                 + (" (operator)" if mark.by_operator else ""))  # fmt: skip
    axes.set_xlim(0, len(main))
    axes.set_xlabel("step", fontsize=8.5)
    axes.legend(loc="upper right", frameon=False, fontsize=8.5, labelcolor=MUTED)


def _dot(axes: Axes, step: int, loss: float, text: str) -> None:
    axes.plot([step], [loss], "o", color="white", markeredgecolor=INK, markersize=6, zorder=5)
    axes.annotate(
        text,
        (step, loss),
        xytext=(4, 16),
        textcoords="offset points",
        fontsize=8,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0},
    )


def _difference(axes: Axes, evidence: PictureEvidence) -> None:
    """Draw the difference of the curves, beside the effect of another order of summation."""
    _title(axes, "Difference of loss to the control", "relative")
    for run, colour, name in (
        (evidence.reordered, REORDERED, "control summed in another order"),
        (evidence.main, MAIN, "under wattmesh"),
    ):
        differences = _running_maximum(run, evidence.control)
        if differences:
            steps = range(1, len(differences) + 1)
            axes.plot(steps, differences, color=colour, linewidth=1.5, label=name)
    axes.plot(
        (0, min(100, len(evidence.main.losses))),
        (evidence.tolerance,) * 2,
        color=CONTROL,
        linewidth=1.0,
        linestyle=":",
    )
    axes.annotate(f"limit over 100 steps: {evidence.tolerance:.0e}".replace("e-0", "e-"),
                  (0, evidence.tolerance), xytext=(2, 4), textcoords="offset points",
                  fontsize=8, color=CONTROL)  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(1e-9, 1e-3)
    axes.set_xlim(0, max(1, len(evidence.main.losses)))
    axes.set_xlabel("step (largest difference so far)", fontsize=8.5)
    axes.legend(loc="upper left", frameon=False, fontsize=8, labelcolor=MUTED)


def _running_maximum(run: RunCurves, control: RunCurves) -> list[float]:
    """Return the largest relative difference up to each step; zeros are unfit for a log axis."""
    largest, found = 0.0, []
    for each in relative_differences(run.losses, control.losses):
        largest = max(largest, each)
        found.append(largest or 1e-10)
    return found


def main() -> None:
    """Draw the picture of one demo folder."""
    folder = Path(sys.argv[1])
    draw(PictureEvidence.read(folder), folder / FILE)


if __name__ == "__main__":
    main()
