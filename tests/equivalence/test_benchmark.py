"""benchmarks.equivalence covers what it says; its table tells a sound walk from a broken one."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.equivalence import __main__ as equivalence
from benchmarks.equivalence import plan as equivalence_plan
from benchmarks.equivalence.controls import HARM
from benchmarks.equivalence.job import Arm
from benchmarks.equivalence.run import newest
from examples.pretrain.config import check_layout, preset
from examples.pretrain.options import parse_layout
from wattmesh.reconfig.layout import Layout

PAIR = ("", "tp=2")


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("tiny-moe", equivalence_plan.WALKED),
        ("tiny", equivalence_plan.DENSE),
        ("tiny", equivalence_plan.TRIED["dense"]),
        ("tiny-moe", equivalence_plan.TRIED["moe"]),
    ],
)
def test_every_layout_can_be_trained_in(name: str, layouts: tuple[str, ...]) -> None:
    """No layout is named twice, or refused by the example."""
    parsed = [parse_layout(each) for each in layouts]
    assert len(set(map(str, parsed))) == len(parsed)
    for layout in parsed:
        check_layout(preset(name), layout)


def test_the_walk_covers_all_dimensions() -> None:
    """Twelve layouts, each dimension above 1, all five at once on 16 ranks, several schedules."""
    parsed = [parse_layout(each) for each in equivalence_plan.WALKED]
    assert len(parsed) >= 12
    assert min(equivalence_plan.covered(equivalence_plan.WALKED).values()) > 1
    assert Layout(pp=2, dp_shard=2, cp=2, tp=2, ep=2) in parsed
    assert len({each.schedule for each in parsed if each.pp > 1}) >= 2
    arms = equivalence_plan.fp64_arms(Path("x"))
    assert len(arms["walk"].turns) == 132
    assert arms["walk"].world_size == 16


def test_the_trials_are_paired_and_differ_by_seed() -> None:
    """Thirty switches inside a thousand steps, the same seed in all arms, another walk per seed."""
    seen = set()
    for seed in range(equivalence_plan.SEEDS["dense"]):
        arms = equivalence_plan.trial_arms(Path("x"), kind="dense", seed=seed)
        assert {arm.seed for arm in arms.values()} == {seed}
        turns = arms["30 switches"].turns
        assert (len(turns), turns[-1][1]) == (30, 0)
        assert all(0 < step < 1000 and step % 20 == 0 for step, _ in turns)
        seen.add(tuple(turns))
    assert len(seen) == equivalence_plan.SEEDS["dense"]


def write(arm: Arm, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Note lines as a rank would."""
    arm.path.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (arm.path / f"{name}.jsonl").write_text(text)


def trained(arm: Arm, *, apart: float = 0.0, shifted: int = 0) -> None:
    """Pretend that an arm was trained, with losses `apart` and samples `shifted` from step 3 on."""
    late = [step > 2 for step in range(1, arm.steps + 1)]
    steps = list(enumerate(late, 1))
    write(arm, "losses", ({"step": n, "loss": 5 / n + apart * on} for n, on in steps))
    write(arm, "samples", ({"step": n, "counts": {str(n + shifted * on): 1}} for n, on in steps))
    write(arm, "seconds", [{"seconds": 36.0}])
    ends = [{"step": n, "state": "confirmed", "detail": ""} for n, _ in arm.turns]
    write(arm, "ends", ends)
    write(arm, "trips", ({"step": n, "to": place, "measured": 0} for n, place in arm.turns))
    write(arm, "states", ({"step": n, "measured": 1e-15} for n, _ in arm.turns))
    (arm.path / "done").touch()


@pytest.fixture
def arms(tmp_path: Path) -> tuple[dict[str, Arm], dict[str, Arm]]:
    """A sound walk over two layouts, and controls that did what they should."""
    fp64 = equivalence_plan.fp64_arms(tmp_path, layouts=PAIR)
    for arm in fp64.values():
        trained(arm)
    controls = equivalence_plan.control_arms(tmp_path)
    trained(controls["none"])
    for harm in HARM:
        data = harm == "one rank's data shifted"
        trained(controls[harm], apart=1e-3, shifted=int(data))
        if not data:
            write(controls[harm], "trips", [{"step": 2, "to": 1, "measured": 3}])
    inside = controls["inside the load"]
    trained(inside)
    back = ({"step": n, "state": "rolled_back", "detail": "digest"} for n, _ in inside.turns)
    write(inside, "ends", back)
    # One rank must have trained as long as the longest control.
    long = equivalence_plan.fp64_arms(tmp_path)["one rank"]
    trained(long)
    write(fp64["walk"], "losses", ({"step": n, "loss": 5 / n} for n in range(1, long.steps + 1)))
    samples = ({"step": n, "counts": {str(n): 1}} for n in range(1, long.steps + 1))
    write(fp64["walk"], "samples", samples)
    return fp64, controls


def figures(fp64: dict[str, Arm], controls: dict[str, Arm]) -> dict[str, float | None]:
    """The goals' figures."""
    return {goal.name: goal.value for goal in equivalence.fp64_rows(fp64, controls)[1]}


def test_a_sound_walk_reaches_the_goals(arms: tuple[dict[str, Arm], dict[str, Arm]]) -> None:
    """Differences, mismatches and caught controls are what the arms noted."""
    found = figures(*arms)
    assert found == {"fp64_max_rel": 1e-15, "roundtrip_mismatches": 0, "controls_caught": 1.0}
    assert newest(arms[0]["walk"]) > 6


def test_an_arm_that_is_not_done_is_not_measured(
    arms: tuple[dict[str, Arm], dict[str, Arm]],
) -> None:
    """What was not trained to its end gives no figure."""
    (arms[0]["walk"].path / "done").unlink()
    (arms[1]["QKV permuted"].path / "done").unlink()
    assert set(figures(*arms).values()) == {None}


def test_a_pair_that_was_not_walked_is_a_mismatch(
    arms: tuple[dict[str, Arm], dict[str, Arm]],
) -> None:
    """Sabotaged twins: a switch that did not happen, and one that lost a tensor."""
    walk = arms[0]["walk"]
    trips = [{"step": n, "to": place, "measured": 0} for n, place in walk.turns]
    write(walk, "trips", trips[:-1])
    assert figures(*arms)["roundtrip_mismatches"] == 1
    write(walk, "trips", [*trips[:-1], {**trips[-1], "measured": 4}])
    assert figures(*arms)["roundtrip_mismatches"] == 4


def test_a_control_that_passes_is_not_caught(
    arms: tuple[dict[str, Arm], dict[str, Arm]],
) -> None:
    """Sabotaged twins: harm that no column shows, and harm that the session let through."""
    controls = arms[1]
    trained(controls["QKV permuted"])
    assert figures(*arms)["controls_caught"] == pytest.approx(0.8)
    inside = controls["inside the load"]
    confirmed = ({"step": n, "state": "confirmed", "detail": ""} for n, _ in inside.turns)
    write(inside, "ends", confirmed)
    assert figures(*arms)["controls_caught"] == 0.0


def test_instruments_that_cry_wolf_catch_nothing(
    arms: tuple[dict[str, Arm], dict[str, Arm]],
) -> None:
    """Sabotaged twin: an honest switch that the same columns call harmed."""
    trained(arms[1]["none"], apart=1e-9)
    assert figures(*arms)["controls_caught"] == 0.0


def curve(arm: Arm, noise: float) -> None:
    """Pretend that an arm was trained, with losses off by a relative `noise` that grows."""
    write(
        arm,
        "losses",
        ({"step": n, "loss": 5 / n * (1 + noise * n)} for n in range(1, arm.steps + 1)),
    )
    write(arm, "held", [{"loss": 2.0 + arm.seed * 0.1 + noise, "tokens": 65536}])
    (arm.path / "done").touch()


def test_two_curves_are_held_against_each_other(tmp_path: Path) -> None:
    """Switches that drift as another order does are fine; sabotaged twin: ten times as much."""
    arms = equivalence_plan.fp32_arms(tmp_path)
    for name, noise in (("one rank", 0.0), ("another order", 1e-8), ("50 switches", 2e-8)):
        curve(arms[name], noise)
    sound = {goal.name: goal for goal in equivalence.fp32_rows(arms)[1]}
    assert sound["fp32_max_rel"].value == pytest.approx(2e-6)
    assert sound["fp32_later_over_control"].value == pytest.approx(2.0)
    assert all(goal.ok for goal in sound.values())
    curve(arms["50 switches"], 2e-7)
    assert not any(goal.ok for goal in equivalence.fp32_rows(arms)[1])


def test_seeds_are_held_against_another_order(tmp_path: Path) -> None:
    """Medians over paired seeds; sabotaged twins: switches that cost, and a seed not trained."""
    by_seed = {
        seed: equivalence_plan.trial_arms(tmp_path, kind="dense", seed=seed) for seed in range(5)
    }
    for arms in by_seed.values():
        for name, noise in (("one rank", 0.0), ("another order", 1e-4), ("30 switches", -1.5e-4)):
            curve(arms[name], noise)
    rows, (goal,) = equivalence.trial_rows("dense", by_seed)
    assert goal.value == pytest.approx(1.5)
    assert rows[-1]["tost_p"] < 0.05
    for arms in by_seed.values():
        curve(arms["30 switches"], 5e-2)
    rows, (goal,) = equivalence.trial_rows("dense", by_seed)
    assert not goal.ok
    (by_seed[3]["another order"].path / "done").unlink()
    assert equivalence.trial_rows("dense", by_seed)[1][0].value is None
