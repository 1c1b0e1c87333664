"""The class of points with narrow dispatch: final losses over seeds (V8), and bytes sent.

Narrow dispatch computes another function, so no check of one run beside another can hold it; what
is asked is whether the models that come out are as good. All are judged whole, on text that nobody
trained on. That layouts of one bottleneck are the same run is shown by `job_types`.

Invariant: an arm is a function of its name and seed, so that a piece of it can be done any day.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.equivalence.job import Arm
from benchmarks.equivalence.job_type_controls import LOST
from benchmarks.equivalence.run import done, lines, seconds
from benchmarks.report import Goal
from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.reconfig.equivalence.checks.trials import equivalent
from wattmesh.reconfig.equivalence.verdict import Verdict, classify

SEEDS = range(8, 32)
"""The design was chosen after looks at other seeds: 0 to 7, and 100 to 105."""
STEPS, EVERY = 360, 20
NARROW_FROM = (60, 100, 140)
"""Steps at which a visit of the narrow point begins; each ends `EVERY` steps later. Maps have
learned for a while before, and the run is whole for 200 steps at its end."""

LEARNING_RATE = 1e-3
"""High, so that experts matter to the loss within these steps."""

MARGIN_SHARE = 0.005
"""Of the loss: what leaning routers may cost (docs/experts.md). V8's usual margin, half the
deviation between seeds, is about half of that here; its p is given as well."""
HELD_TOKENS = 1 << 14
WHOLE, NARROW = "", "ep_bottleneck=4"
SENDING = "dp_shard=2,ep=2"
NEVER, VISITS, CONTROL = "whole", "visits", "loses what is sent"
SENT_STEPS = 2

Rows = list[dict[str, Any]]
Arms = Mapping[str, Arm]


def seed_arms(folder: Path, seed: int) -> dict[str, Arm]:
    """One seed: whole; with visits of the narrow point; and with a long one that is harmed."""
    where = folder / f"bottleneck-seed-{seed}"
    common: dict[str, Any] = {
        "preset": "tiny-narrow",
        "dtype": "fp32",
        "steps": STEPS,
        "boundary_every": EVERY,
        "seed": seed,
        "learning_rate": LEARNING_RATE,
        "held_tokens": HELD_TOKENS,
    }
    turns = sorted([(at, 1) for at in NARROW_FROM] + [(at + EVERY, 0) for at in NARROW_FROM])
    stays = [(NARROW_FROM[0], 1), (STEPS - EVERY, 0)]
    lost = {str(NARROW_FROM[0]): LOST}
    both: dict[str, Any] = {"layouts": [WHOLE, NARROW], **common}
    return {
        NEVER: Arm(folder=f"{where}-whole", layouts=[WHOLE], **common),
        VISITS: Arm(folder=f"{where}-visits", turns=turns, **both),
        CONTROL: Arm(folder=f"{where}-control", turns=stays, meddle=lost, **both),
    }


def sent_arms(folder: Path) -> dict[str, Arm]:
    """Two ranks that share experts, whole and narrow; what they send is counted."""
    common: dict[str, Any] = {"preset": "tiny-narrow", "dtype": "fp32", "count_sent": True}
    common |= {"steps": SENT_STEPS, "boundary_every": SENT_STEPS}
    layouts = {"sent whole": SENDING, "sent narrow": f"{SENDING},{NARROW}"}
    where = folder / "bottleneck"
    return {
        name: Arm(folder=f"{where}-{name.replace(' ', '-')}", layouts=[layout], **common)
        for name, layout in layouts.items()
    }


def all_arms(folder: Path) -> dict[str, Arms]:
    """By words for a person, everything that this part trains."""
    seeds = {f"bottleneck seed {seed}": seed_arms(folder, seed) for seed in SEEDS}
    return {"bottleneck, bytes": sent_arms(folder), **seeds}


def bottleneck_rows(folder: Path) -> tuple[Rows, list[Goal]]:
    """What was found; a figure is None while an arm that it needs is missing."""
    by_seed = {seed: seed_arms(folder, seed) for seed in SEEDS}
    finals = {
        seed: {name: lines(arm, "held")[-1]["loss"] for name, arm in arms.items()}
        for seed, arms in by_seed.items()
        if all(map(done, arms.values()))
    }
    rows: Rows = [{"case": f"bottleneck seed {seed}", **each} for seed, each in finals.items()]
    p = mismatches = caught = share = None
    if len(finals) == len(SEEDS):
        found = {name: _class_row(name, by_seed, finals) for name in (VISITS, CONTROL)}
        rows += found.values()
        p, mismatches = found[VISITS]["p"], found[VISITS]["mismatches"]
        caught = float(found[CONTROL]["class"] == Equivalence.NONE.value)
    whole, narrow = (_sent(arm) for arm in sent_arms(folder).values())
    if whole and narrow:
        share = narrow / whole
        rows.append({"case": f"{SENDING}: bytes a step", "whole": whole, "narrow": narrow})
    return rows, [
        Goal(name="bottleneck_visits_p", value=p, goal=0.05, op="<="),
        Goal(name="bottleneck_mismatches", value=mismatches, goal=0, op="=="),
        Goal(name="bottleneck_control_caught", value=caught, goal=1.0, op="=="),
        Goal(name="bottleneck_bytes_share", value=share, goal=0.26, op="<="),
    ]


def _class_row(
    name: str, by_seed: Mapping[int, Arms], finals: Mapping[int, Mapping[str, float]]
) -> dict[str, Any]:
    """What V1 and V8 prove of an arm, beside runs that were whole throughout."""
    whole = {seed: each[NEVER] for seed, each in finals.items()}
    other = {seed: each[name] for seed, each in finals.items()}
    v8 = equivalent(other, whole, margin=MARGIN_SHARE * statistics.fmean(whole.values()))
    arms = [arms[name] for arms in by_seed.values()]
    trips = [each for arm in arms for each in lines(arm, "trips")]
    ends = [each for arm in arms for each in lines(arm, "ends") if each["state"] == "confirmed"]
    missed = sum(len(arm.turns) for arm in arms) - len(ends)
    v1 = Verdict(
        check="V1",
        name="tensors that differ",
        measured=sum(each["measured"] for each in trips) + missed,
        limit=0,
        sentence=f"of {len(trips)} switches; {missed} did not happen",
    )
    return {
        "case": f"bottleneck: {name}, {len(finals)} seeds",
        "switches": len(ends),
        "steps": STEPS,
        "mismatches": v1.measured,
        "apart_mean": statistics.fmean(each[name] - each[NEVER] for each in finals.values()),
        "between_seeds_std": statistics.stdev(whole.values()),
        "p": v8.measured,
        "p_half_deviation": equivalent(other, whole).measured,
        "class": classify([v1, v8]).equivalence.value,
        "hours": sum(map(seconds, arms)) / 3600,
    }


def _sent(arm: Arm) -> float | None:
    """Bytes that both ranks gave to all-to-alls in a step; None until it was measured."""
    return statistics.fmean(each["bytes"] for each in lines(arm, "sent")) if done(arm) else None
