"""The job types of benchmarks.equivalence: what they cover, and that their table sees harm."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.equivalence import job_types
from benchmarks.equivalence.job import Arm
from benchmarks.equivalence.job_type_controls import JOB_TYPE_HARM, SEEN_BY_THE_PROBE
from benchmarks.equivalence.plan import covered
from examples.pretrain.config import check_layout, preset
from examples.pretrain.options import parse_layout


@pytest.mark.parametrize("name", job_types.JOB_TYPES)
def test_every_layout_of_a_type_can_be_trained_in(name: str) -> None:
    """And in those its harms are done in; none is named twice; the walk sees every one."""
    job = job_types.JOB_TYPES[name]
    parsed = [parse_layout(each) for each in job.layouts]
    assert len(set(parsed)) == len(parsed) >= 8
    assert parsed[0].world_size == 1
    assert len({each.ep_bottleneck for each in parsed}) == 1
    for layout in [*parsed, *map(parse_layout, job.harms.values())]:
        check_layout(preset(job.preset), layout)
    arm = job_types.arms_of(Path("x"), name, "fp64")["50 switches"]
    assert len(arm.turns) == 50
    assert {place for _, place in arm.turns} == set(range(len(parsed)))


def test_types_are_switched_in_all_their_dimensions() -> None:
    """Degrees, schedules and methods; every harm belongs to a type."""
    fixed = {
        "diffusion": {"ep"},
        "diffusion with experts": set(),
        "context": {"dp_replicate"},
        "context by layer": {"dp_replicate", "dp_shard"},
        "test-time training": {"ep"},
        "narrow experts": set(),
    }
    for name, job in job_types.JOB_TYPES.items():
        degrees = covered(job.layouts)
        assert {axis for axis, degree in degrees.items() if degree < 2} == fixed[name]
    layouts = [parse_layout(each) for job in job_types.JOB_TYPES.values() for each in job.layouts]
    assert {each.schedule for each in layouts} >= {"InterleavedZeroBubble", "ZBVZeroBubble"}
    assert {each.cp_method for each in layouts if each.cp == 4} == {"gather", "ring", "ulysses"}
    harms = [harm for job in job_types.JOB_TYPES.values() for harm in job.harms]
    assert sorted(harms) == sorted(JOB_TYPE_HARM)


def write(arm: Arm, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
    """Note lines as a rank would."""
    arm.path.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (arm.path / f"{name}.jsonl").write_text(text)


def trained(arm: Arm, off: float = 0.0, end: str = "confirmed") -> None:
    """Pretend that an arm was trained, with losses off by a relative `off` that grows."""
    steps = range(1, arm.steps + 1)
    write(arm, "losses", ({"step": n, "loss": 5 / n * (1 + off * n)} for n in steps))
    write(arm, "samples", ({"step": n, "counts": {str(n): 1}} for n in steps))
    write(arm, "seconds", [{"seconds": 36.0}])
    write(arm, "ends", ({"step": n, "state": end, "detail": "probe"} for n, _ in arm.turns))
    write(arm, "trips", ({"step": n, "to": place, "measured": 0} for n, place in arm.turns))
    write(arm, "states", ({"step": n, "measured": 1e-15} for n, _ in arm.turns))
    (arm.path / "done").touch()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All arms, sound."""
    for arms in job_types.all_arms(tmp_path).values():
        for name, arm in arms.items():
            if name == "another order":
                trained(arm, 1e-8)
            elif name in JOB_TYPE_HARM:
                trained(arm, 1e-3)
            elif name.endswith("inside the load"):
                trained(arm, end="rolled_back")
            else:
                trained(arm, 2e-8 * (arm.dtype == "fp32" and bool(arm.turns)))
    return tmp_path


def figures(folder: Path) -> list[float | None]:
    """The goals' figures, in their order."""
    return [goal.value for goal in job_types.job_type_rows(folder)[1]]


def test_sound_arms_reach_the_goals(folder: Path) -> None:
    """Differences, mismatches, drift beside the control, and controls caught."""
    rows, goals = job_types.job_type_rows(folder)
    assert figures(folder) == pytest.approx([1e-15, 0, 2e-6, 2.0, 1.0])
    assert all(goal.ok for goal in goals)
    assert len(rows) == 2 * len(job_types.JOB_TYPES) + len(JOB_TYPE_HARM) == 21


def test_an_arm_that_is_not_done_is_not_measured(folder: Path) -> None:
    """Of one type: the figures of all types in that dtype, and what is caught."""
    (job_types.arms_of(folder, "context", "fp64")["50 switches"].path / "done").unlink()
    found = figures(folder)
    assert found[:2] == [None, None]
    assert found[2:4] == pytest.approx([2e-6, 2.0])
    assert found[4] is None


def test_a_switch_that_did_not_happen_is_a_mismatch(folder: Path) -> None:
    """Sabotaged twins: one rolled back, and one that lost three tensors."""
    arm = job_types.arms_of(folder, "diffusion", "fp64")["50 switches"]
    ends = [{"step": n, "state": "confirmed", "detail": ""} for n, _ in arm.turns]
    write(arm, "ends", [*ends[1:], {**ends[0], "state": "rolled_back"}])
    assert figures(folder)[1] == 1
    write(arm, "trips", [{"step": 2, "to": 1, "measured": 3}])
    assert figures(folder)[1] == 4


def test_a_harm_that_passes_is_not_caught(folder: Path) -> None:
    """Sabotaged twins: one that no loss shows, one that the session let through, a false alarm."""
    (harm,) = job_types.JOB_TYPES["diffusion with experts"].harms
    arms = job_types.control_arms(folder, "diffusion with experts")
    assert harm in SEEN_BY_THE_PROBE
    trained(arms[f"{harm}, inside the load"])
    assert figures(folder)[4] == pytest.approx(8 / 9)
    trained(arms[f"{harm}, inside the load"], end="rolled_back")
    trained(arms[harm])
    assert figures(folder)[4] == pytest.approx(8 / 9)
    trained(job_types.arms_of(folder, "context", "fp64")["50 switches"], 1e-9)
    assert figures(folder)[4] == 0.0


def test_drift_beyond_the_control_is_seen(folder: Path) -> None:
    """Sabotaged twin: a walk in fp32 that drifts ten times as far as another order."""
    trained(job_types.arms_of(folder, "context", "fp32")["50 switches"], 1e-7)
    assert figures(folder)[3] == pytest.approx(10.0)
