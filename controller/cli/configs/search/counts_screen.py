"""Expert groups over two classes of GPUs, equal counts beside counts by speed. Pure: JSON, screen.

Invariant: both are of one layout, and whatever no live job can do is said.
"""

from typing import Any

import numpy as np
from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.configs.search.screen import RECOMPUTE
from wattmesh.controller.cli.output import STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, fitted
from wattmesh.policies.layout_search.compared_counts import ComparedCounts, CountedExperts
from wattmesh.policies.layout_search.expert_groups import WAY

NOT_LIVE = (
    "no live job can do this yet: the trainer deals equal counts of experts only, and every GPU "
    "the same samples; counts by speed say what it would gain"
)
COLUMNS = (
    Column(title="LAYOUT"),
    Column(title="ZERO", right=True, spare=4),
    Column(title="SAMPLES", right=True, spare=2),
    Column(title="RECOMPUTE", spare=5),
    Column(title="CLOCK", right=True, spare=1),
    Column(title="EXPERTS"),
    Column(title="STEP", right=True),
    Column(title="J/TOKEN", right=True),
    Column(title="MEMORY", right=True, spare=3),
)
SHOWN = 4
"""Layouts that the screen compares; `--all` and `--json` have every one."""


def counts_json(found: ComparedCounts) -> dict[str, Any]:
    """Give every group that nothing beats with counts by speed, and the same with equal counts."""
    return {
        "live_job": False,
        "note": NOT_LIVE,
        "configurations": found.configurations,
        "fitting": dict(zip(("equal", "by_speed"), found.fitting, strict=True)),
        "compared": [_compared(found, at) for at in range(len(found.clock))],
    }


def _compared(found: ComparedCounts, at: int) -> dict[str, Any]:
    layout = found.groups.layout

    def degree(name: str, part: int = 0) -> int:
        return int(np.asarray(getattr(layout[part], name))[at])

    return {
        "degrees": {name: degree(name) for name in ("tp", "pp", "dp", "cp", "ep")},
        "zero": degree("zero"),
        "recompute": RECOMPUTE.get(float(degree("recompute")), "none"),
        "micro_batch": [degree("micro_batch", part) for part in (0, 1)],
        "members": [int(each[at]) for each in found.groups.members],
        "clock": float(found.clock[at]),
        "on_hull": bool(found.on_hull[at]),
        "equal": _counted(found.equal, at),
        "by_speed": _counted(found.by_speed, at),
    }


def _counted(found: CountedExperts, at: int) -> dict[str, Any]:
    fits = bool(np.isfinite(found.step_s[at]))
    return {
        "fits": fits,
        "most_experts": [int(each[at]) for each in found.most],
        "mean_experts": [float(each[at]) for each in found.mean],
        "most_rows": [float(each[at]) for each in found.rows],
        "step_s": float(found.step_s[at]) if fits else None,
        "j_per_token": float(found.j_per_token[at]) if fits else None,
        "memory_share": float(found.memory_share[at]),
    }


def counts_lines(answer: dict[str, Any], columns: int, *, everything: bool) -> list[Text | str]:
    """Say what counts by speed change, layout by layout; nothing for a model without experts."""
    groups = answer["expert_groups"]
    if groups is None:
        return []
    names = [part["gpu"] for part in answer["parts"]]
    lines: list[Text | str] = [
        "",
        styled(
            ("expert groups over both classes", STRONG),
            f" · {quantities.count(groups['fitting']['equal'])} ways fit with equal counts, "
            f"{quantities.count(groups['fitting']['by_speed'])} with counts by speed",
        ),
    ]
    if not groups["compared"]:
        return [*lines, styled((_why_none(answer), WARN))]
    shown = _shown(groups["compared"], everything=everything)
    rows = [
        row
        for each in shown
        for row in (
            _row(each, "equal", names, named=True),
            _row(each, "by_speed", names, named=False),
        )
    ]
    table, _ = fitted(COLUMNS, rows, columns)
    said = [*_verdict(answer, shown[0]), NOT_LIVE]
    return [
        *lines,
        "",
        *table,
        "",
        *(line for each in said for line in formats.wrapped(f"{each}.", columns)),
    ]


def _shown(compared: list[dict[str, Any]], *, everything: bool) -> list[dict[str, Any]]:
    """Choose the fastest of each layout that is on the hull."""
    if everything:
        return compared
    found: dict[str, dict[str, Any]] = {}
    for each in compared:
        if each["on_hull"]:
            found.setdefault(f"{each['degrees']}{each['micro_batch']}", each)
    return list(found.values())[:SHOWN]


def _row(each: dict[str, Any], which: str, names: list[str], *, named: bool) -> tuple[str, ...]:
    told = each[which]
    degrees = " ".join(f"{name}{size}" for name, size in each["degrees"].items() if size > 1)
    held = ", ".join(
        f"{name} {count}" for name, count in zip(names, told["most_experts"], strict=True)
    )
    first = (
        degrees,
        str(each["zero"]),
        "/".join(map(str, each["micro_batch"])),
        each["recompute"],
        f"{each['clock']:.0%}",
    )
    return (
        *(first if named else ("",) * len(first)),
        f"{'equal' if which == 'equal' else 'by speed'}: {held}",
        quantities.duration(told["step_s"]) if told["fits"] else "no room",
        quantities.figures(told["j_per_token"]) if told["fits"] else "-",
        f"{told['memory_share']:.0%}",
    )


def _verdict(answer: dict[str, Any], fastest: dict[str, Any]) -> list[str]:
    """Say in a sentence what counts by speed gain, and whether any of it is among the points."""
    equal, by_speed = fastest["equal"], fastest["by_speed"]
    if not equal["fits"]:
        found = ["with equal counts the fastest of these does not fit into memory"]
    elif equal["most_experts"] == by_speed["most_experts"]:
        found = ["counts by speed are the equal ones on the fastest of these: nothing to gain"]
    else:
        time = 100 * (by_speed["step_s"] / equal["step_s"] - 1)
        energy = 100 * (by_speed["j_per_token"] / equal["j_per_token"] - 1)
        found = [
            f"counts by speed change the step of the fastest by {time:+.1f} % and its joules per "
            f"token by {energy:+.1f} %"
        ]
    best = answer["points"][0]
    if best["dealt"] != "experts":
        found.append(
            "the fastest of all points keeps each group of experts to one class and takes "
            f"{quantities.duration(best['step_s'])}"
        )
    return found


def _why_none(answer: dict[str, Any]) -> str:
    told = [
        (reason.removeprefix(f"{WAY}: "), gone)
        for reason, gone in answer["excluded"].items()
        if gone and reason.startswith(WAY)
    ]
    if not told:
        return "none is possible: a group with both classes' shares has more GPUs than experts"
    # Rules are in the order in which they were asked, so the last one left nothing.
    reason, gone = told[-1]
    return f"none is possible: the last {gone} fell to the rule {reason}"
