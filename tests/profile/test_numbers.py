"""What readings say about a layout, against runs whose truth is known."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.meter import Counter, MemoryReading
from wattmesh.controller.profile.numbers import RecordedWalk, idle_power_w, measure, probe_evidence
from wattmesh.reconfig.catalogue import ProbeEvidence
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.step_log import StepRow

LARGE = Candidate(id="A", layout=Layout(dp_shard=4))
SMALL = Candidate(id="B", layout=Layout(dp_shard=2))
JOB = ProfileJob(
    name="job",
    directory=Path(),
    command=(),
    processes=4,
    reference="A",
    points=(LARGE, SMALL),
    tokens_per_step=100,
    boundary_every=10,
    every=3,
    intervals=3,
)
ACTIVE_W, IDLE_W = 500.0, 50.0


def walked(step_s: dict[str, float], boundary_s: float, switch_s: float) -> RecordedWalk:
    """Give the readings of a walk through both layouts with exactly these times."""
    counters = [Counter() for _ in range(4)]
    moment_s, energy_j = 100.0, [0.0] * 4

    def spend(seconds: float, active: int) -> None:
        nonlocal moment_s
        moment_s += seconds
        for rank, counter in enumerate(counters):
            energy_j[rank] += seconds * (ACTIVE_W if rank < active else IDLE_W)
            counter.at_s.append(moment_s)
            counter.energy_j.append(energy_j[rank])

    spend(0.0, 0)
    spend(2.0, 0)
    rows = []
    for step in range(1, JOB.steps + 1):
        point = LARGE if step <= JOB.steps_per_point else SMALL
        if step == JOB.steps_per_point + 1:
            spend(switch_s, 0)
        elif step > 1 and (step - 1) % JOB.every == 0:
            spend(boundary_s, 0)
        spend(step_s[point.id], point.layout.world_size)
        rows.append(
            StepRow(
                step=step,
                tokens=100 * step,
                loss=5.0 / step,
                layout=str(point.layout),
                gpus=point.layout.world_size,
                monotonic_s=moment_s,
                elapsed_s=step_s[point.id],
            )
        )
    return RecordedWalk(
        rows=rows,
        reference={row.step: row.loss for row in rows},
        started={"A": 0, "B": JOB.steps_per_point},
        counters=counters,
        memory=[MemoryReading(at_s=moment_s - 0.01, rank=1, resident_bytes=1 << 29)],
        began_s=100.0,
    )


@given(
    large_s=st.floats(0.01, 1),
    small_s=st.floats(0.01, 1),
    boundary_s=st.floats(0.001, 1),
    switch_s=st.floats(0.01, 5),
)
def test_the_numbers_are_those_that_the_walk_was_made_with(
    large_s: float, small_s: float, boundary_s: float, switch_s: float
) -> None:
    """Speed, power, switch and idle power come back, stated for the job's own interval."""
    watched = walked({"A": large_s, "B": small_s}, boundary_s, switch_s)
    large, small = measure(JOB, watched)
    for found, step_s, gpus in ((large, large_s, 4), (small, small_s, 2)):
        interval_s = 10 * step_s + boundary_s
        joules = gpus * (10 * step_s * ACTIVE_W + boundary_s * IDLE_W)
        assert found.tokens_per_s == pytest.approx(1000 / interval_s, rel=1e-6)
        assert found.power_w == pytest.approx(joules / interval_s, rel=1e-5)
        assert found.loss_difference == 0
    assert large.switch_s is None
    assert small.switch_s == pytest.approx(switch_s, rel=1e-6)
    assert small.switch_energy_j == pytest.approx(4 * IDLE_W * switch_s, rel=1e-5)
    assert small.memory_gib == 0.5
    assert idle_power_w(watched) == pytest.approx(IDLE_W)


def test_checkpoints_that_add_no_time_have_no_watts_of_their_own() -> None:
    """One layout's fill their pauses with the steps before: it draws no more than at work."""
    watched = walked({"A": 0.1, "B": 0.1}, 0.05, 1)
    late = {12: 0.05 - 1e-7, 15: 0.05}
    rows = [
        replace(row, monotonic_s=row.monotonic_s + late.get(row.step, 0.0)) for row in watched.rows
    ]
    _, small = measure(JOB, replace(watched, rows=rows))
    assert small.power_w <= 2 * ACTIVE_W


def test_a_layout_with_too_few_steps_has_no_numbers() -> None:
    """A walk that ended early measures what it can, and invents nothing."""
    watched = walked({"A": 0.1, "B": 0.1}, 0.1, 1)
    cut = replace(watched, rows=watched.rows[: JOB.steps_per_point + 2])
    assert [each.point.id for each in measure(JOB, cut)] == ["A"]
    assert measure(JOB, replace(watched, rows=watched.rows[:2], started={"A": 0})) == ()


def test_losses_that_differ_or_miss_their_reference_are_seen() -> None:
    """The largest difference counts; a step without a reference leaves the layout unproven."""
    watched = walked({"A": 0.1, "B": 0.1}, 0.1, 1)
    moved = {**watched.reference, 12: watched.reference[12] * 1.01}
    large, small = measure(JOB, replace(watched, reference=moved))
    assert large.loss_difference == 0
    assert small.loss_difference == pytest.approx(0.01 / 1.01)
    short = {step: loss for step, loss in watched.reference.items() if step != 3}
    large, small = measure(JOB, replace(watched, reference=short))
    assert large.loss_difference is None
    assert small.loss_difference == 0


def test_steps_that_were_late_do_not_change_a_devices_speed() -> None:
    """This machine was late after each checkpoint and caught up: the devices are what they were."""
    watched = walked({"A": 0.1, "B": 0.1}, 0.0, 1)
    late = {4: 0.07, 5: 0.04, 7: 0.09, 13: 0.2, 14: 0.15, 15: 0.08}
    rows = [
        replace(
            row,
            monotonic_s=row.monotonic_s + late.get(row.step, 0.0),
            overrun_s=late.get(row.step, 0.0),
        )
        for row in watched.rows
    ]
    for found in measure(JOB, replace(watched, rows=rows)):
        assert found.tokens_per_s == pytest.approx(1000.0)
        assert found.power_w == pytest.approx(found.point.layout.world_size * ACTIVE_W, rel=1e-3)


def test_overruns_are_counted_not_hidden() -> None:
    """A paced step that took longer than its device counts."""
    watched = walked({"A": 0.1, "B": 0.1}, 0.1, 1)
    rows = [replace(row, overrun_s=0.05 if row.step in (2, 3) else 0.0) for row in watched.rows]
    large, small = measure(JOB, replace(watched, rows=rows))
    assert (large.overruns, small.overruns) == (2, 0)


def test_what_the_probe_did_is_kept_with_the_point() -> None:
    """With its noise where that was measured; of what no number was told, nothing is kept."""
    told = {"probe_before": 4.0, "probe_after": 4.5, "probe_allowed": 4e-6}
    measured = {"probe_noise": 2e-5, "probe_orders": 3, "computed_in": "bfloat16"}
    assert probe_evidence(told) == ProbeEvidence(moved=0.125, allowed=4e-6)
    assert probe_evidence({**told, **measured}) == ProbeEvidence(
        moved=0.125, allowed=4e-6, noise=2e-5, orders=3, computed_in="bfloat16"
    )
    for broken in ({"probe_after": float("nan")}, {"probe_before": "4.0"}, {"probe_allowed": None}):
        assert probe_evidence({**told, **broken}) is None
