"""Draw a month's report as a picture: spent against planned, and who spent it.

A child process of its own (`python -m wattmesh.controller.cli.accounting.report_picture`, the
answer of `GET /v1/report` on standard input, a PNG on standard output), so that no other command
loads matplotlib. Invariant: it draws what the report says and computes nothing but sums over days,
for one signal each.
"""

import json
import sys
from datetime import datetime
from itertools import accumulate, cycle
from typing import Any
from zoneinfo import ZoneInfo

from matplotlib import dates
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from wattmesh.controller.cli import formats
from wattmesh.controller.cli.accounting.period_screen import (
    not_read,
    period_name,
    read_joules,
    scope,
    signal_words,
)
from wattmesh.controller.marks import marked
from wattmesh.controller.pictures import FAINT, MUTED, STYLE

SPENT = ("#0b7285", "#5f3dc4", "#2b8a3e")
"""One colour for each signal."""

PLANNED, LIMIT, EMBODIED = "#9fb3c8", "#c92a2a", "#e8590c"
MOST_BARS = 14
UNITS = ((1e12, "t"), (1e9, "kg"), (1e6, "g"))


def draw(view: dict[str, Any], out: Any) -> None:
    """Draw the picture.

    Args:
        view: the answer of `GET /v1/report`.
        out: a path or a binary stream.
    """
    plt.switch_backend("Agg")
    with plt.rc_context(STYLE):
        figure, (days, bars) = plt.subplots(
            2, 1, figsize=(10.0, 8.5), dpi=130, height_ratios=(1.2, 1.0)
        )
        figure.subplots_adjust(left=0.17, right=0.96, top=0.86, bottom=0.09, hspace=0.32)
        figure.text(0.04, 0.955, _title(view), fontsize=14, weight="bold")
        figure.text(0.04, 0.918, _subtitle(view), color=MUTED)
        _draw_days(days, view)
        _draw_subjects(bars, view)
        figure.savefig(out, format="png")
        plt.close(figure)


def _title(view: dict[str, Any]) -> str:
    told = [
        f"{formats.micrograms(each['carbon_ug'], each['flags'])}{scope(each['signal'])}"
        for each in view["carbon"]
    ]
    return f"{period_name(view['month'])}: {' and '.join(told) or 'no grams'} location-based"


def _subtitle(view: dict[str, Any]) -> str:
    energy = f"{read_joules(view, view['energy_mj'])}{not_read(view)}"
    pue = "IT boundary" if view["pue"] is None else f"x PUE {view['pue']:g}"
    state = "closed" if view["closed_at"] else "running" if view["running"] else "not closed"
    signals = [each["signal"] for each in view["carbon"]] or [view["signal"]]
    said = [f"{energy}, {pue}", *map(signal_words, signals), state]
    if len(signals) > 1:
        said.append("never added")
    if view["unpriced_mj"]:
        unpriced = formats.joules(view["unpriced_mj"] / 1e3, view["flags"])
        said.append(f"{unpriced} without a price")
    if view["simulated"]:
        said.append(f"SIMULATED: {', '.join(view['simulated'])}")
    return " · ".join(said)


def _draw_days(axes: Axes, view: dict[str, Any]) -> None:
    zone = ZoneInfo(view["timezone"])
    starts = [each["start"] for each in view["days"]]
    last = min(view["end"], view["at"])
    at: Any = [datetime.fromisoformat(each).astimezone(zone) for each in (*starts, last)]
    spent = {
        signal: [0, *accumulate(_ug_in(each, signal) for each in view["days"])]
        for signal in _signals(view)
    }
    ends = [each[-1] for each in spent.values()]
    size, unit = _unit(max([*ends, (view["limit_g"] or 0) * 1e6]))
    for color, (signal, sums) in zip(cycle(SPENT), spent.items(), strict=False):
        label = f"spent{_signal_if_several(view, signal)}"
        axes.plot(at, [each / size for each in sums], color=color, linewidth=2.4, label=label)
    planned = [each["planned_ug"] for each in view["days"]]
    if planned and None not in planned:
        curve = [each / size for each in (0, *accumulate(planned))]
        axes.plot(at, curve, color=PLANNED, linewidth=1.6, label="planned")
    if view["limit_g"]:
        limit = view["limit_g"] * 1e6 / size
        axes.axhline(limit, color=LIMIT, linewidth=1.0, linestyle="--", label="limit")
    axes.set_ylabel(f"{marked(unit, view['flags'])} {_gas(view)} since the month began")
    axes.set_ylim(bottom=0)
    ticks: Any = dates  # matplotlib leaves these classes without types
    axes.xaxis.set_major_locator(ticks.DayLocator(bymonthday=(1, 8, 15, 22), tz=zone))
    axes.xaxis.set_major_formatter(ticks.DateFormatter("%d %b", tz=zone))
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.legend(frameon=False, loc="lower right")


def _draw_subjects(axes: Axes, view: dict[str, Any]) -> None:
    subjects = sorted(view["subjects"], key=lambda each: -each["energy_mj"])
    shown = subjects[:MOST_BARS]
    names = [each["subject"] for each in shown]
    places = list(range(len(shown)))
    embodied = [each["embodied_ug"] or 0 for each in shown]
    signals = _signals(view)
    grams = {signal: [_ug_in(each, signal) for each in shown] for signal in signals}
    size, unit = _unit(max([0, *embodied, *(ug for each in grams.values() for ug in each)]))
    height = 0.4 / len(signals)
    for number, (color, signal) in enumerate(zip(cycle(SPENT), signals, strict=False)):
        label = f"location-based{_signal_if_several(view, signal)}"
        at = [place + (number + 0.5) * height - 0.2 for place in places]
        bars = [each / size for each in grams[signal]]
        axes.barh(at, bars, height=height, color=color, label=label)
    if any(embodied):
        beside = [place + 0.36 for place in places]
        made = [each / size for each in embodied]
        axes.barh(beside, made, height=0.26, color=EMBODIED, label="embodied, not netted")
    axes.set_yticks(places, names)
    axes.set_xlim(left=0)
    axes.invert_yaxis()
    rest = len(subjects) - len(shown)
    left_out = f" ({rest} smaller ones are not shown)" if rest else ""
    axes.set_xlabel(f"{marked(unit, view['flags'])} {_gas(view)}{left_out}")
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.legend(frameon=False, loc="lower right")


def _signals(view: dict[str, Any]) -> list[str]:
    """Name the signals that have grams; the settings' signal where none has."""
    return [each["signal"] for each in view["carbon"]] or [view["signal"]]


def _ug_in(entry: dict[str, Any], signal: str) -> int:
    return sum(each["carbon_ug"] for each in entry["carbon"] if each["signal"] == signal)


def _signal_if_several(view: dict[str, Any], signal: str) -> str:
    """Name a signal if there are several; else ""."""
    return f", {signal}" if len(view["carbon"]) > 1 else ""


def _gas(view: dict[str, Any]) -> str:
    return " or ".join(sorted({each.split(":")[-1] or "CO2" for each in _signals(view)}))


def _unit(most_ug: float) -> tuple[float, str]:
    """Give a unit in micrograms, and its name, in which the largest figure is at least 1."""
    return next((each for each in UNITS if most_ug >= each[0]), UNITS[-1])


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.stdout.buffer)
