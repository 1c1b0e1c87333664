"""The report, the last screen and the picture say what was read, and nothing better."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo import picture, report, screen
from examples.demo.evidence import PictureEvidence
from examples.demo.plan import DemoPlan
from tests.demo import facts
from wattmesh.reconfig.step_log import StepRow

SHOWN = (
    "switches",
    "layouts",
    "max_rel_loss_difference_100",
    "max_rel_loss_difference",
    "control_rel_loss_difference",
    "loss_first",
    "loss_last",
    "carbon_g",
    "baseline_carbon_g",
    "control_carbon_g",
    "saving_share",
    "valid",
    "ledger_saving_share",
    "control_saved_g",
    "scale",
    "pace",
    "hindsight_bound_g",
    "deadline_met",
    "wall_s",
    "simulated",
    "learning_rate",
    "clip",
    "dtype",
)


def test_the_report_has_every_promised_key_and_is_json(tmp_path: Path) -> None:
    """Each promised figure is there, and the whole can be written as JSON."""
    composed = report.compose(facts.demo(tmp_path))
    assert set(SHOWN) <= set(composed)
    assert json.loads(json.dumps(composed)) == composed


def test_figures_are_those_that_were_read(tmp_path: Path) -> None:
    """Grams, switches, layouts and overruns are counted from the facts."""
    composed = report.compose(facts.demo(tmp_path))
    assert composed["switches"] == 2
    assert composed["layouts"] == ["dp2 tp2 on 4", "tp2 on 2", "pp2 dp2 on 4"]
    assert composed["carbon_g"] == pytest.approx(4.8)
    assert composed["saving_share"] == pytest.approx(1.0 / 5.8)
    assert composed["ledger_saving_share"] == pytest.approx(1.1 / 5.9)
    assert composed["bound_saving_share"] == pytest.approx(1.2 / 5.8)
    assert composed["pace"]["main"] == {
        "step_s": 0.2, "computed_s": 0.05, "late": 0, "late_share": 0.0, "latest_s": 0.01,
        "latest_share": 0.0004,
    }  # fmt: skip
    assert composed["notes"] == []


def test_loss_differences_are_relative_to_the_control(tmp_path: Path) -> None:
    """The largest difference over all steps, over the first 100, and of the reordered control."""
    composed = report.compose(facts.demo(tmp_path))
    assert composed["max_rel_loss_difference"] == pytest.approx(3e-6, rel=1e-6)
    assert composed["max_rel_loss_difference_100"] == pytest.approx(2.5e-6, rel=1e-6)
    assert composed["control_rel_loss_difference"] == pytest.approx(2e-6, rel=1e-6)


def test_a_broken_run_does_not_look_well(tmp_path: Path) -> None:
    """The sabotaged twin: a loss that moved, a missed deadline and a loss of grams all show."""
    worse = facts.run(
        steps=facts.steps(1e-2),
        carbon_ug=6_500_000,
        saved_ug=-600_000,
        deadline_met=False,
        deadline_slack_s=-3.0,
    )
    composed = report.compose(facts.demo(tmp_path, main=worse))
    assert composed["max_rel_loss_difference"] > 1e-3
    assert composed["saving_share"] < 0
    text = "\n".join(screen.last_screen(composed))
    assert "12 % more" in text
    assert "DEADLINE MISSED" in text
    assert "note       the deadline was missed by 3 s" in text


def test_a_busy_machine_is_named(tmp_path: Path) -> None:
    """Where steps overran the simulated pace, or the two baselines differ, a note says so."""
    late = tuple(replace(row, overrun_s=0.3) for row in facts.steps())
    control = facts.run(steps=late, switches=(), carbon_ug=8_000_000, saved_ug=0)
    composed = report.compose(facts.demo(tmp_path, control=control))
    assert (
        "100 % of the control run's steps ended late by more than a step, by up to 300 ms"
        in composed["notes"][0]
    )
    assert "the baseline is 26 % less" in composed["notes"][1]


def stopped(at: int, stall_s: float, *, length: int = facts.STEPS) -> tuple[StepRow, ...]:
    """Steps of a machine that was stopped once, and caught up by three quarters of each step."""
    known = facts.steps()
    rows = [
        replace(known[min(index, len(known) - 1)], step=index + 1, overrun_s=0.0)
        for index in range(length)
    ]
    left_s = stall_s
    for index in range(at, len(rows)):
        rows[index] = replace(rows[index], overrun_s=max(0.0, left_s))
        left_s -= 0.75 * rows[index].elapsed_s
    return tuple(rows)


@pytest.mark.parametrize(
    ("length", "stall_s", "in_time"),
    [
        (4160, 2.2, True),  # 11 steps of a day that lasts an hour
        (4160, 160.0, False),
        (104, 1.8, True),
        (104, 2.2, False),
        (20, 0.3, True),
        (20, 1.8, False),  # 9 steps of a day that lasts 20 s
    ],
)
def test_lateness_counts_by_the_length_of_the_run(
    length: int, stall_s: float, *, in_time: bool
) -> None:
    """What is nothing in an hour is most of twenty seconds."""
    assert report.in_time(report.pace(stopped(length - 1, stall_s, length=length))) is in_time


def test_a_run_that_was_never_switched_says_so(tmp_path: Path) -> None:
    """The two runs then differ by chance alone; where the run was short, that may be why."""
    usual = facts.demo(tmp_path, main=facts.run(switches=()))
    (note,) = report.compose(usual)["notes"]
    assert "the main run was never switched" in note
    assert "--seconds" not in note
    short = replace(usual, plan=replace(DemoPlan.lasting(20.0, folder=tmp_path), steps=20))
    (note,) = report.compose(short)["notes"]
    assert "20 steps may be too few" in note
    assert "--seconds" in note
    assert note in "\n".join(screen.last_screen(report.compose(short)))


@pytest.mark.parametrize(
    ("steps", "valid"),
    [
        (facts.steps(), True),
        # Two busy loops on two cores: some steps are late by tens of milliseconds.
        (tuple(replace(row, overrun_s=0.04) for row in facts.steps()), True),
        # Stopped for 4 of 120 steps, and for 9 near the end: most of the run kept its timetable.
        (stopped(30, 0.8), True),
        (stopped(115, 1.8), True),
        # For a tenth of the steps and more; for less, where many steps are behind.
        (stopped(30, 2.6), False),
        (stopped(115, 2.6), False),
        (tuple(replace(row, overrun_s=1.3) for row in facts.steps()), False),
        (tuple(replace(row, overrun_s=0.05 * row.step) for row in facts.steps()), False),
    ],
    ids=["quiet", "busy", "four", "nine", "stopped", "stopped late", "behind", "too slow"],
)
@pytest.mark.parametrize("name", ["main", "control"])
def test_a_saving_is_told_only_where_both_runs_kept_their_timetable(
    tmp_path: Path, name: str, steps: tuple[StepRow, ...], *, valid: bool
) -> None:
    """Else no figure of it on screen or picture, but why not, and what to do; the rest is kept."""
    well = {"main": facts.run(), "control": facts.demo(tmp_path).control}
    demo = facts.demo(tmp_path, **{name: replace(well[name], steps=steps)})
    composed = report.compose(demo)
    assert composed["valid"] is valid
    assert composed["saving_share"] == pytest.approx(1.0 / 5.8)
    screens = "\n".join(screen.last_screen(composed))
    drawn = report.picture_of(
        demo.plan, composed, facts.read_back(), facts.read_back(), demo.reordered
    )
    for text in (screens.lower(), drawn.headline.lower()):
        assert ("17 % less" in text, "no saving is told" in text) == (valid, not valid)
    for text in (screens, drawn.beside):
        assert ("again on a quieter machine" in text) is not valid
        assert ("baseline ledger" in text) is valid
    late = [each for each in composed["notes"] if f"of the {name} run's steps ended late" in each]
    assert late or valid


def test_a_control_that_saved_something_is_told(tmp_path: Path) -> None:
    """Nothing touched it: whatever is not 0 there is a fault of ours, and says so."""
    composed = report.compose(facts.demo(tmp_path))
    assert (composed["control_saved_g"], composed["notes"]) == (0.0, [])
    assert "the control, never touched, saved 0 g" in "\n".join(screen.last_screen(composed))
    control = facts.run(
        steps=facts.steps(), switches=(), carbon_ug=5_800_000, baseline_ug=5_800_000, saved_ug=191
    )
    composed = report.compose(facts.demo(tmp_path, control=control))
    assert "never touched and yet saved" in composed["notes"][0]


def test_the_last_screen(tmp_path: Path) -> None:
    """Layouts, switches, loss, carbon and files are on the last screen, simulated said first."""
    lines = screen.last_screen(report.compose(facts.demo(tmp_path)))
    text = "\n".join(lines)
    assert "simulated: GPU power, GPU pace" in lines[0]
    assert "4 processes, gloo, 1.1 M parameters, 120 steps, fp32, lr 3e-4" in lines[1]
    assert "dp2 tp2 on 4 -> tp2 on 2   at step 40     1.1 s   probe equal to 2e-7" in text
    assert "probe equal to 2e-7   by the plan" in text
    assert "probe bitwise equal   by the operator" in text
    assert "4.8 g against 5.8 g for the control run, never switched (17 % less)" in text
    assert "baseline ledger 5.9 g: 19 % less, best possible 21 %" in text
    assert "200 ms a step by the simulated devices, of which this machine computed 50 ms" in text
    assert "nothing is multiplied; meanwhile 24 h of recorded grid play in 90 s" in text
    assert str(tmp_path / "report.png") in text


def test_the_banner_names_what_is_simulated(tmp_path: Path) -> None:
    """Before anything runs, the reader knows what is real, recorded and simulated."""
    text = "\n".join(screen.banner(DemoPlan(folder=tmp_path)))
    assert "simulated   GPU power and GPU pace" in text
    assert "recorded    the grid: Great Britain, 26 May 2023" in text


def test_evidence_reads_back_equal_and_becomes_a_picture(tmp_path: Path) -> None:
    """What the picture is drawn from survives its file, and the picture is a PNG of some size."""
    evidence = facts.evidence()
    evidence.write(tmp_path)
    assert PictureEvidence.read(tmp_path) == evidence
    picture.draw(evidence, tmp_path / picture.FILE)
    content = (tmp_path / picture.FILE).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 50_000
