"""Composes `report.json`: what the demo did, in figures that were read back. Pure.

Invariant: grams come from the journals, losses from the step logs, seconds and probes from the
run's reports; no result is filled in from the plan.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from statistics import median
from typing import Any

import wattmesh
from examples.demo.evidence import PictureEvidence, RunCurves, relative_differences
from examples.demo.plan import ATTRIBUTION, LEAST_STEPS, TRACE, DemoPlan
from examples.demo.record import RunFacts, RunReadBack, SwitchFact
from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.reconfig.step_log import StepRow

FIRST_STEPS = 100
"""Over this many steps the loss must agree to 1e-5 in fp32, later to 3x the reordered control."""
G_PER_UG = 1e-6
BUSY_SHARE = 0.1
"""If a larger share of steps is late by more than a step, the machine is too slow."""
LATEST_SHARE, LATEST_SHARE_ALONE = 0.05, 0.1
"""If moreover one of these steps is late by more than `LATEST_SHARE` of the time of all steps, or
any step by more than `LATEST_SHARE_ALONE`, a saving is not told. The grid's day passes in twice
that time: lateness by such a share moves the grams as much as switching does."""
BASELINE_TOLERANCE = 0.05
SIMULATED = ("GPU power", "GPU pace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The inputs of the report."""

    plan: DemoPlan
    catalogue: Catalogue
    main: RunFacts
    control: RunFacts
    reordered: tuple[StepRow, ...]
    hindsight_bound_g: float | None
    wall_s: float
    parts_s: Mapping[str, float]
    training: Mapping[str, Any]


def compose(demo: Demo) -> dict[str, Any]:
    """Compose the report."""
    main, control = demo.main, demo.control
    differences = relative_differences(main.losses, control.losses)
    reordered = [row.loss for row in demo.reordered]
    bound_g, control_g = demo.hindsight_bound_g, control.carbon_ug * G_PER_UG
    return {
        "switches": len(main.switches),
        "layouts": layouts(main.steps),
        "max_rel_loss_difference_100": max(differences[:FIRST_STEPS]),
        "max_rel_loss_difference": max(differences),
        "control_rel_loss_difference": max(relative_differences(tuple(reordered), control.losses)),
        "loss_first": main.losses[0],
        "loss_last": main.losses[-1],
        "scale": scale(demo.plan),
        "carbon_g": main.carbon_ug * G_PER_UG,
        "control_carbon_g": control_g,
        "baseline_carbon_g": main.baseline_ug * G_PER_UG,
        "hindsight_bound_g": bound_g,
        "deadline_met": main.deadline_met,
        "valid": all(in_time(pace(facts.steps)) for facts in (main, control)),
        "wall_s": round(demo.wall_s, 1),
        "simulated": list(SIMULATED),
        "learning_rate": demo.training["learning_rate"],
        "clip": demo.training["clip"],
        "dtype": demo.training["dtype"],
        "saving_share": 1 - main.carbon_ug / control.carbon_ug,
        "bound_saving_share": None if bound_g is None else 1 - bound_g / control_g,
        "ledger_saved_g": main.saved_ug * G_PER_UG,
        "ledger_saving_share": main.saved_ug / main.baseline_ug,
        "control_saved_g": control.saved_ug * G_PER_UG,
        "deadline_slack_s": round(main.deadline_slack_s, 3),
        "energy_j": main.energy_mj / 1e3,
        "control_energy_j": control.energy_mj / 1e3,
        "unobserved_s": main.unobserved_s,
        "switch_table": [_switch(each, demo.catalogue) for each in main.switches],
        "training": dict(demo.training),
        "pace": {name: pace(facts.steps) for name, facts in (("main", main), ("control", control))},
        "grid": grid(demo.plan),
        "catalogue": _catalogue(demo.catalogue),
        "seed": demo.plan.seed,
        "parts_s": {name: round(seconds, 1) for name, seconds in demo.parts_s.items()},
        "versions": {"wattmesh": wattmesh.__version__, **versions()},
        "files": {
            "report": str(demo.plan.folder / "report.json"),
            "picture": str(demo.plan.folder / "report.png"),
            "logs": str(demo.plan.logs),
        },
        "notes": notes(demo),
    }


def notes(demo: Demo) -> list[str]:
    """Say what a reader must know before trusting the figures; empty when all is well."""
    found = []
    for name, facts in (("main", demo.main), ("control", demo.control)):
        late = pace(facts.steps)
        if late["late_share"] > BUSY_SHARE or not in_time(late):
            found.append(
                f"{formats.percent(late['late_share'])} of the {name} run's steps ended late by "
                f"more than a step, by up to {quantities.duration(late['latest_s'])}: this machine "
                "is too slow or too busy for the simulated pace, and a quieter one gives other "
                "figures"
            )
    if not demo.main.switches:
        few = (
            f"; its {demo.plan.steps} steps may be too few for that: give more `--seconds`"
            if demo.plan.steps < LEAST_STEPS
            else ""
        )
        found.append(
            "the main run was never switched, so no difference to the control run is a saving by "
            f"switching{few}"
        )
    apart = demo.main.baseline_ug / demo.control.carbon_ug - 1
    if abs(apart) > BASELINE_TOLERANCE:
        more = "more" if apart > 0 else "less"
        found.append(
            f"the baseline is {formats.percent(abs(apart))} {more} than the control run was booked "
            "with"
        )
    if demo.control.saved_ug:
        found.append(
            "the control run was never touched and yet saved "
            f"{formats.grams(demo.control.saved_ug * G_PER_UG)}: please report this"
        )
    if not demo.main.deadline_met:
        found.append(
            f"the deadline was missed by {quantities.duration(-demo.main.deadline_slack_s)}"
        )
    return found


def layouts(steps: Sequence[StepRow]) -> list[str]:
    """List the distinct layouts that trained, in their order."""
    return list(dict.fromkeys(f"{row.layout} on {row.gpus}" for row in steps))


def pace(steps: Sequence[StepRow]) -> dict[str, Any]:
    """Return step times: simulated, computed by this machine, and how many steps were late."""
    step_s = median(row.elapsed_s for row in steps)
    # After every checkpoint a step is late by less than a step, and the next one catches up.
    late = sum(row.overrun_s > step_s for row in steps)
    latest_s = max(row.overrun_s for row in steps)
    return {
        "step_s": round(step_s, 3),
        "computed_s": round(median(row.computed_s for row in steps), 3),
        "late": late,
        "late_share": late / len(steps),
        "latest_s": round(latest_s, 3),
        "latest_share": round(latest_s / (step_s * len(steps)), 4),
    }


def in_time(late: Mapping[str, Any]) -> bool:
    """Return whether a run of this `pace` kept its timetable so well that a saving can be told."""
    busy = late["late_share"] > BUSY_SHARE and late["latest_share"] > LATEST_SHARE
    return not (busy or late["latest_share"] > LATEST_SHARE_ALONE)


def scale(plan: DemoPlan) -> str:
    """Say what every second, watt and gram refers to."""
    return (
        "every second, joule and gram is of the run itself, nothing is multiplied; meanwhile 24 h "
        f"of recorded grid play in {plan.day_s:.0f} s"
    )


def grid(plan: DemoPlan) -> dict[str, Any]:
    """Say which recorded hours played, how fast, and whose data they are."""
    return {
        "day": plan.day_words,
        "day_s": plan.day_s,
        "starts_at": plan.starts_at.isoformat().replace("+00:00", "Z"),
        "licence": "NESO, CC BY 4.0",
        "attribution": ATTRIBUTION,
        "file": TRACE.name,
    }


def versions() -> dict[str, str]:
    """Return the versions on which the numbers depend, without importing torch."""
    return {"python": platform.python_version(), "torch": metadata.version("torch")}


def picture_of(
    plan: DemoPlan,
    composed: Mapping[str, Any],
    main: RunReadBack,
    control: RunReadBack,
    reordered: Sequence[StepRow],
) -> PictureEvidence:
    """Compose what the picture shows."""
    deadline = "deadline met" if composed["deadline_met"] else "DEADLINE MISSED"
    return PictureEvidence(
        day=plan.day_words,
        attribution=f"{ATTRIBUTION} {', '.join(SIMULATED)}: simulated. Made by `wattmesh demo`.",
        compress=plan.compress,
        starts_h=plan.run_starts_h,
        deadline_s=main.deadline_s,
        intensity=main.measured,
        forecast=main.forecast,
        main=main.curves,
        control=control.curves,
        reordered=RunCurves(name="reordered", losses=tuple(row.loss for row in reordered)),
        headline=f"{_headline(composed)}, {deadline}",
        beside=beside(composed),
        scale=composed["scale"],
        simulated=SIMULATED,
    )


def _headline(composed: Mapping[str, Any]) -> str:
    """Compose the headline: the saving, or that none can be told."""
    if not composed["valid"]:
        return "No saving is told: this machine could not keep the simulated pace"
    less = composed["saving_share"]
    return (
        f"{formats.grams(composed['carbon_g'])} CO₂ against "
        f"{formats.grams(composed['control_carbon_g'])} for the same training never switched: "
        f"{formats.percent(abs(less))} {'less' if less >= 0 else 'more'}"
    )


def beside(composed: Mapping[str, Any]) -> str:
    """Compose the line below the headline: saving against the ledger's baseline, and the bound.

    Where no saving is told: what was booked for both runs, and what to do.
    """
    if not composed["valid"]:
        return (
            f"booked were {formats.grams(composed['carbon_g'])}, and "
            f"{formats.grams(composed['control_carbon_g'])} for the control run; run the demo "
            "again on a quieter machine"
        )
    ledger, bound = composed["ledger_saving_share"], composed["bound_saving_share"]
    best = "" if bound is None else f", best possible {formats.percent(bound)}"
    more = "less" if ledger >= 0 else "more"
    return (
        f"baseline ledger {formats.grams(composed['baseline_carbon_g'])}: "
        f"{formats.percent(abs(ledger))} {more}{best}"
    )


def _switch(fact: SwitchFact, catalogue: Catalogue) -> dict[str, Any]:
    return {
        "step": fact.step,
        "from": _named(fact.from_point, catalogue),
        "to": _named(fact.to_point, catalogue),
        "from_point": fact.from_point,
        "to_point": fact.to_point,
        "seconds": fact.seconds,
        "probe_difference": fact.probe_difference,
        "requested_by": fact.requested_by,
        "decided_by": fact.decided_by,
        "reason": fact.reason,
        "predicted_g": fact.predicted_g,
        "switch_cost_g": fact.switch_cost_g,
    }


def _named(point_id: str, catalogue: Catalogue) -> str:
    """Name a point by its layout: `tp2 on 2`."""
    point = catalogue.point(point_id)
    return f"{point.layout} on {point.gpus}"


def _catalogue(catalogue: Catalogue) -> dict[str, Any]:
    """List the points with the source of each number."""
    return {
        "digest": catalogue.digest,
        "reference": catalogue.reference,
        "switch_s": catalogue.switch.layout_s,
        "switch_energy_j": catalogue.switch.layout_energy_j,
        "switch_source": catalogue.switch.source,
        "points": [
            {
                "id": point.id,
                "layout": str(point.layout),
                "gpus": point.gpus,
                "tokens_per_s": point.tokens_per_s,
                "power_w": point.power_w,
                "evidence": point.evidence.value,
                "equivalence": point.equivalence.value,
                "sources": dict(point.sources),
            }
            for point in catalogue.points
        ],
    }
