"""The types of job of `--part job-types`: what each trains, its layouts, arms and rows.

Each type walks 50 random switches, in fp64 and in fp32, and is held to what the other parts are
held to. Every layout of a type differs from the others in what the type adds, or in a degree.

Invariant: an arm is a function of its type and dtype, so that a piece of it can be done any day.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.equivalence.job import Arm
from benchmarks.equivalence.job_type_controls import SEEN_BY_THE_PROBE
from benchmarks.equivalence.run import done, lines, losses, samples, seconds
from benchmarks.report import Goal
from wattmesh.reconfig.equivalence.checks.samples import same_samples
from wattmesh.reconfig.equivalence.script import random_walk
from wattmesh.reconfig.equivalence.whole import close_curves, relative

SWITCHES = 50
EVERY = {"fp64": 2, "fp32": 4}
"""Steps in each layout: fp32 wants a hundred early ones and as many later ones."""

EARLY_STEPS = 100
HARMED_STEPS = 6
HARM_AT = 2

Rows = list[dict[str, Any]]
Arms = Mapping[str, Arm]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType:
    """One type of job.

    Attributes:
        preset: of the example.
        layouts: the first is one rank, which the others are compared with.
        harms: by what is done, the layout that it is done in.
    """

    preset: str
    layouts: tuple[str, ...]
    harms: Mapping[str, str]


JOB_TYPES = {
    "diffusion": JobType(
        preset="tiny-diffusion",
        layouts=(
            "",
            "dp_shard=2",
            "dp_replicate=2,dp_shard=2",
            "tp=2",
            "pp=2,schedule=InterleavedZeroBubble",
            "pp=2,dp_shard=2,schedule=InterleavedZeroBubble",
            "pp=2,tp=2,schedule=ZBVZeroBubble",
            "cp=2,cp_method=ring",
            "cp=2,tp=2,cp_method=ulysses",
            "pp=2,dp_shard=2,tp=2,schedule=ZBVZeroBubble",
        ),
        harms={
            "noise drawn by each rank": "dp_shard=2",
            "a microbatch's weight gradients left out": "pp=2,schedule=InterleavedZeroBubble",
        },
    ),
    "diffusion with experts": JobType(
        preset="tiny-diffusion-moe",
        layouts=(
            "",
            "dp_shard=2,ep=2",
            "dp_replicate=2,dp_shard=2,ep=2",
            "tp=2,ep=2",
            "pp=2,schedule=InterleavedZeroBubble",
            "pp=2,dp_shard=2,ep=2,schedule=ZBVZeroBubble",
            "dp_shard=2,tp=2,ep=4",
            "cp=2,ep=2,cp_method=ring",
            "cp=4,ep=4,cp_method=ulysses",
            "pp=2,dp_shard=2,tp=2,ep=4,schedule=InterleavedZeroBubble",
        ),
        harms={"routers of one rank see other levels": "dp_shard=2,ep=2"},
    ),
    "context": JobType(
        preset="tiny-moe",
        layouts=(
            "",
            "cp=2",
            "cp=2,cp_method=ring",
            "cp=2,ep=2,cp_method=ulysses",
            "cp=4,cp_method=ring",
            "cp=4,ep=4,cp_method=ulysses",
            "cp=2,tp=2,ep=2,cp_method=ring",
            "cp=2,tp=2,cp_method=ulysses",
            "pp=2,cp=2,cp_method=ring,schedule=InterleavedZeroBubble",
            "dp_shard=2,cp=2,ep=2,cp_method=ulysses",
        ),
        harms={
            "ring masks as if dealt in one piece": "cp=2,cp_method=ring",
            "ulysses leaves positions as dealt": "cp=4,ep=4,cp_method=ulysses",
        },
    ),
    "context by layer": JobType(
        preset="tiny-moe",
        layouts=(
            "",
            "cp=2",
            "cp=2,cp_layers=2 1 1 2",
            "cp=4,cp_layers=4 2 1 4",
            "cp=4,ep=4,cp_method=ring,cp_layers=2x2 1 4",
            "cp=4,cp_method=ulysses,cp_layers=1x2 2x2",
            "cp=2,tp=2,ep=2,cp_layers=1x4",
            "pp=2,cp=2,ep=2,cp_layers=1 2 1 2,schedule=ZBVZeroBubble",
        ),
        harms={"layers of whole sequences leave positions as dealt": "cp=2,cp_layers=2 1 1 2"},
    ),
    "test-time training": JobType(
        preset="tiny-ttt",
        layouts=(
            "",
            "dp_shard=2",
            "dp_replicate=2,dp_shard=2",
            "tp=2",
            "cp=2",
            "cp=4,cp_method=ring",
            "cp=2,tp=2,cp_method=ulysses",
            "pp=2,schedule=InterleavedZeroBubble",
            "pp=2,cp=2,schedule=ZBVZeroBubble",
            "dp_shard=2,cp=2,recompute=true",
        ),
        harms={
            "a state is not carried to the next rank": "cp=2",
            "a state's gradient is not carried back": "cp=2",
        },
    ),
    "narrow experts": JobType(
        preset="tiny-narrow",
        layouts=(
            "ep_bottleneck=4",
            "dp_shard=2,ep=2,ep_bottleneck=4",
            "dp_replicate=2,dp_shard=2,ep=2,ep_bottleneck=4",
            "tp=2,ep=2,ep_bottleneck=4",
            "cp=2,ep=2,cp_method=ring,ep_bottleneck=4",
            "pp=2,schedule=ZBVZeroBubble,ep_bottleneck=4",
            "pp=2,dp_shard=2,ep=2,recompute=true,ep_bottleneck=4",
            "dp_shard=2,tp=2,ep=4,ep_bottleneck=4",
        ),
        harms={"one rank sends tokens whole": "dp_shard=2,ep_bottleneck=4"},
    ),
}


def arms_of(folder: Path, name: str, dtype: str) -> dict[str, Arm]:
    """One rank, and 50 switches; in fp32 also another order of adding up."""
    job, every = JOB_TYPES[name], EVERY[dtype]
    walk = _walk(len(job.layouts))
    common: dict[str, Any] = {
        "preset": job.preset,
        "dtype": dtype,
        "steps": every * (SWITCHES + 1),
        "boundary_every": every,
    }
    where = folder / f"{name.replace(' ', '-')}-{dtype}"
    states: dict[str, Any] = {"states": f"{where}-states"} if dtype == "fp64" else {}
    keep: dict[str, Any] = {"keep_states": every} if states else {}
    arms = {
        "one rank": Arm(
            folder=f"{where}-one-rank", layouts=[job.layouts[0]], **states, **keep, **common
        ),
        "50 switches": Arm(
            folder=f"{where}-switched",
            layouts=list(job.layouts),
            turns=[(every * number, place) for number, place in enumerate(walk) if number],
            compare_states=bool(states),
            **states,
            **common,
        ),
    }
    if dtype == "fp32":
        other = [",".join(filter(None, (job.layouts[0], "micro_batch=1")))]
        arms["another order"] = Arm(folder=f"{where}-order", layouts=other, **common)
    return arms


def _walk(places: int) -> list[int]:
    """Walk at random, by the first seed that leaves no place out."""
    walks = (random_walk(places, SWITCHES, seed=seed) for seed in range(1, 1000))
    return next(walk for walk in walks if len(set(walk)) == places)


def control_arms(folder: Path, name: str) -> dict[str, Arm]:
    """Each harm behind the session's back; those that a probe can see also inside its load."""
    arms = {}
    job = JOB_TYPES[name]
    for number, (harm, layout) in enumerate(job.harms.items()):
        common: dict[str, Any] = {
            "preset": job.preset,
            "dtype": "fp64",
            "steps": HARMED_STEPS,
            "boundary_every": HARM_AT,
            "layouts": [job.layouts[0], layout],
            "turns": [(HARM_AT, 1)],
        }
        where = folder / f"{name.replace(' ', '-')}-control-{number}"
        at = {str(HARM_AT): harm}
        arms[harm] = Arm(folder=str(where), meddle=at, **common)
        if harm in SEEN_BY_THE_PROBE:
            arms[f"{harm}, inside the load"] = Arm(folder=f"{where}-inside", at_load=at, **common)
    return arms


def all_arms(folder: Path) -> dict[str, Arms]:
    """By words for a person, everything that this part trains."""
    found: dict[str, Arms] = {}
    for name in JOB_TYPES:
        found[f"{name}, fp64"] = arms_of(folder, name, "fp64")
        found[f"{name}, harmed"] = control_arms(folder, name)
        found[f"{name}, fp32"] = arms_of(folder, name, "fp32")
    return found


def job_type_rows(folder: Path) -> tuple[Rows, list[Goal]]:
    """What was found; a figure is that of the worst type, and None while an arm is missing."""
    rows: Rows = []
    exact = [_exact_row(name, arms_of(folder, name, "fp64")) for name in JOB_TYPES]
    short = [_short_row(name, arms_of(folder, name, "fp32")) for name in JOB_TYPES]
    harmed = [_harm_rows(folder, name) for name in JOB_TYPES]
    rows += [row for row in (*exact, *short) if row is not None]
    rows += [row for each in harmed if each is not None for row in each]
    rel = wrong = early = later = caught = None
    if all(row is not None for row in exact):
        found = [row for row in exact if row is not None]
        rel = max(max(row["loss_rel"], row["state_rel"]) for row in found)
        wrong = sum(row["mismatches"] + SWITCHES - row["switches"] for row in found)
    if all(row is not None for row in short):
        last = [row for row in short if row is not None]
        early = max(row["early_rel"] for row in last)
        later = max(row["switched_over_order"] for row in last)
    if rel is not None and all(each is not None for each in harmed):
        each_harm = [row for each in harmed if each is not None for row in each]
        # An instrument that sees harm where there is none has caught nothing.
        sound = rel <= 1e-12
        caught = sum(row["caught"] for row in each_harm) / len(each_harm) if sound else 0.0
    goals = [
        Goal(name="job_types_fp64_max_rel", value=rel, goal=1e-12, op="<="),
        Goal(name="job_types_mismatches", value=wrong, goal=0, op="=="),
        Goal(name="job_types_fp32_max_rel", value=early, goal=1e-5, op="<="),
        Goal(name="job_types_fp32_later_over_control", value=later, goal=3.0, op="<="),
        Goal(name="job_types_controls_caught", value=caught, goal=1.0, op="=="),
    ]
    return rows, goals


def _exact_row(name: str, arms: Arms) -> dict[str, Any] | None:
    """The walk in fp64; None while an arm is missing."""
    if not all(map(done, arms.values())):
        return None
    alone, switched = arms["one rank"], arms["50 switches"]
    return {
        **_walk_row(f"{name}: fp64", arms),
        "loss_rel": close_curves(losses(switched), losses(alone)).measured,
        "state_rel": max(each["measured"] for each in lines(switched, "states")),
    }


def _walk_row(case: str, arms: Arms) -> dict[str, Any]:
    """What is common to both dtypes."""
    alone, switched = arms["one rank"], arms["50 switches"]
    ends = lines(switched, "ends")
    return {
        "case": f"{case}, {len(switched.layouts)} layouts",
        "switches": sum(each["state"] == "confirmed" for each in ends),
        "steps": switched.steps,
        "mismatches": sum(each["measured"] for each in lines(switched, "trips")),
        "other_samples": same_samples(samples(switched), samples(alone)).measured,
        "hours": sum(map(seconds, arms.values())) / 3600,
    }


def _short_row(name: str, arms: Arms) -> dict[str, Any] | None:
    """The walk in fp32 beside a control that adds in another order; None while one is missing."""
    if not all(map(done, arms.values())):
        return None
    alone = losses(arms["one rank"])
    ours, theirs = (
        {step: relative(found[step], alone[step]) for step in alone}
        for found in (losses(arms["50 switches"]), losses(arms["another order"]))
    )
    late = [step for step in alone if step > EARLY_STEPS]
    ratio = sum(ours[step] for step in late) / max(sum(theirs[step] for step in late), 1e-300)
    return {
        **_walk_row(f"{name}: fp32", arms),
        "early_rel": max(rel for step, rel in ours.items() if step <= EARLY_STEPS),
        "early_rel_order": max(rel for step, rel in theirs.items() if step <= EARLY_STEPS),
        "switched_over_order": ratio,
    }


def _harm_rows(folder: Path, name: str) -> Rows | None:
    """Each harm; None while an arm is missing."""
    alone, controls = arms_of(folder, name, "fp64")["one rank"], control_arms(folder, name)
    if not done(alone) or not all(map(done, controls.values())):
        return None
    reference, rows = losses(alone), []
    for harm in JOB_TYPES[name].harms:
        found = losses(controls[harm])
        curve = close_curves(found, {step: reference[step] for step in found})
        row = {"case": f"control: {harm}", "steps": HARMED_STEPS, "loss_rel": curve.measured}
        seen = not curve.measured <= 1e-12
        inside = controls.get(f"{harm}, inside the load")
        if inside is not None:
            ends = lines(inside, "ends")
            seen = seen and [each["state"] for each in ends] == ["rolled_back"]
            row["inside_the_load"] = ends[0]["detail"][:60] if ends else ""
        rows.append({**row, "caught": seen})
    return rows
