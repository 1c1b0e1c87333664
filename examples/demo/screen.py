"""The demo's text: what it prints before it starts, and its last screen. Pure.

Invariant: every figure comes from `report.json`; what is simulated is named in the first lines.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from examples.demo.plan import DemoPlan
from examples.demo.report import beside
from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.reconfig.switch import how_equal


def banner(plan: DemoPlan) -> list[str]:
    """Say what will happen, and which parts of it are simulated."""
    return [
        "wattmesh demo: a recorded grid day moves a live training job through real reshards",
        "",
        f"  real        {plan.processes} training processes (gloo), the daemon, its socket and "
        "journal, every switch and checkpoint",
        f"  recorded    the grid: {plan.day_words}, 24 h in {plan.day_s:.0f} s",
        "  simulated   GPU power and GPU pace (this machine needs no GPU)",
        f"  files       {plan.folder}",
        "",
    ]


def last_screen(report: Mapping[str, Any]) -> list[str]:
    """Say how it went: layouts, switches, loss, carbon, and where the files are."""
    training = report["training"]
    lines = [
        f"recorded grid: {report['grid']['day']} ({report['grid']['licence']}), "
        f"24 h in {report['grid']['day_s']:.0f} s · simulated: {', '.join(report['simulated'])}",
        f"train: {training['processes']} processes, {training['backend']}, "
        f"{training['parameters'] / 1e6:.1f} M parameters, {training['steps']} steps, "
        f"{report['dtype']}, lr {report['learning_rate']:.0e}".replace("e-0", "e-"),
        "",
        *_switches(report["switch_table"]),
        f"loss       {_loss(report)}",
        *_carbon(report),
        f"pace       {_pace(report)}",
        f"scale      {report['scale']}",
        f"report     {report['files']['picture']}   {report['files']['report']}",
    ]
    lines += [f"note       {each}" for each in report["notes"]]
    return lines


def _switches(table: Sequence[Mapping[str, Any]]) -> list[str]:
    moves = [f"{row['from']} -> {row['to']}" for row in table]
    width = max((len(move) for move in moves), default=0)
    return [
        f"switch {index}   {move:<{width}}   at step {row['step']:<4}  "
        f"{quantities.duration(row['seconds']):>6}   {equal(row['probe_difference'])}"
        f"   by the {row['decided_by']}"
        for index, (move, row) in enumerate(zip(moves, table, strict=True), 1)
    ]


def equal(difference: float | None) -> str:
    """Say how equal the probe loss was before and after a switch."""
    if difference is None:
        return "probe not reported"
    return f"probe {how_equal(difference)}"


def _loss(report: Mapping[str, Any]) -> str:
    steps = report["training"]["steps"]
    return (
        f"{report['loss_first']:.3f} -> {report['loss_last']:.3f}; against the uninterrupted run "
        f"{short(report['max_rel_loss_difference_100'])} over {min(100, steps)} steps, "
        f"{short(report['max_rel_loss_difference'])} over {steps} "
        f"(reordered control {short(report['control_rel_loss_difference'])})"
    )


def _carbon(report: Mapping[str, Any]) -> list[str]:
    """Format the grams against the measured control, the deadline, and the line below them."""
    deadline = "deadline met" if report["deadline_met"] else "DEADLINE MISSED"
    if not report["valid"]:
        return [
            "carbon     no saving is told: steps ended so late (see the notes) that grams follow "
            f"the load of this machine and not the switches, {deadline}",
            f"           {beside(report)}",
        ]
    share = formats.percent(abs(report["saving_share"]))
    same = share == formats.percent(0.0)
    apart = "the same" if same else f"{share} {'less' if report['saving_share'] > 0 else 'more'}"
    return [
        f"carbon     {formats.grams(report['carbon_g'])} against "
        f"{formats.grams(report['control_carbon_g'])} for the control run, never switched "
        f"({apart}), {deadline}",
        f"           {beside(report)}; the control, never touched, saved "
        f"{formats.grams(report['control_saved_g'])}",
    ]


def _pace(report: Mapping[str, Any]) -> str:
    """Format the simulated time of a step, and how much of it this machine computed."""
    main, control = report["pace"]["main"], report["pace"]["control"]
    return (
        f"{quantities.duration(control['step_s'])} a step by the simulated devices, of which this "
        f"machine computed {quantities.duration(control['computed_s'])}; of the main run's "
        f"{formats.percent(main['late_share'])} ended late by more than a step"
    )


def short(value: float) -> str:
    """Format a small difference: 4e-7, 0."""
    return "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")


def beginning(plan: DemoPlan, name: str) -> str:
    """Say what a run is for, before it begins."""
    if name == "main":
        return f"training {plan.steps} steps while the recorded day passes; wattmesh may switch"
    if name == "control":
        return f"control: the same {plan.steps} steps in the submitted layout, never switched"
    return f"reordered control: the same {plan.steps} steps in one process, summed in another order"


def standing(
    plan: DemoPlan, view: Mapping[str, Any], line: Mapping[str, Any], *, acting: bool
) -> str:
    """Format a run's state in one line; without the decision for the control run."""
    grid = view["carbon"]["g_per_kwh"] if view["carbon"] else None
    switch = line["switch"]
    doing = line["sentence"] if acting else ""
    doing = f"switching: {switch['state']}" if switch else doing
    return (
        f"  step {line['step']:>3}/{plan.steps}  {line['point'] or '?'} {line['layout']} on "
        f"{line['ranks']}  {formats.intensity(grid)} g/kWh  {doing}"
    )
