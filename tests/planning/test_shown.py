"""A plan on the screen: the curve, mu, the points and the times in the same columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.builders.observations import NOW, A, B, observation, run, slots
from tests.builders.points import catalogue, point
from tests.cli.answering import answering
from tests.cli.screens.test_coverage import status_view
from tests.cli.screens.test_screens import plain
from tests.daemon.clocks import SteppedClock
from tests.laws.processes import loaded_after
from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.policy import plan_bands, plan_chart, plan_picture
from wattmesh.controller.cli.policy.plan_screen import screen
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.metrics.planner import plan_metrics
from wattmesh.controller.planner.asking import Planning, PlanState
from wattmesh.controller.planner.view import no_look, plan_answer
from wattmesh.controller.settings.read import Settings
from wattmesh.controller.status.trouble import PLANS_FAILED, troubles
from wattmesh.controller.views import as_json
from wattmesh.policies.decision import CapView, Observation, PlanStep, PlanView
from wattmesh.policies.rules.follow import FRESH

LOW = point("A-low", 4, 900.0, 1200.0, clock_mhz=1200)


def plan(*stretches: tuple[str, float], **changes: Any) -> PlanView:
    """A plan of (point, hours) from NOW on."""
    steps, at = [], NOW
    for name, hours in stretches:
        end = at + timedelta(hours=hours)
        steps.append(PlanStep(start=at, end=end, point=name))
        at = end
    facts: dict[str, Any] = {
        "made_at": NOW,
        "digest": "d",
        "origin": "A",
        "steps": tuple(steps),
        "price_mu": 2.0e-4 / 3.6,
        "grams": 2900.0,
        "bound_g": 2890.0,
        "gap": 10 / 2890,
    }
    return PlanView(**facts | changes)


def seen(made: PlanView | None, **changes: Any) -> Observation:
    """What the newest cycle saw: dirty for 7 h, then clean for 7 h."""
    return observation(run(plan=made, **changes))


def answer(made: PlanView | None, *, state: PlanState | None = None, **changes: Any) -> Any:
    """The answer as JSON."""
    view = seen(made, **changes)
    known = state or PlanState(plan=made)
    return as_json(plan_answer(view, view.runs[0], known, "Staying at A: the plan says so."))


def drawn(view: Mapping[str, Any], columns: int = 100) -> list[str]:
    """The screen's lines."""
    return plain(screen(view, columns)).splitlines()


def test_curve_points_and_times_share_their_columns() -> None:
    """The grid falls at 21:00 in the middle of 14 h; so do the letters, and the axis says when."""
    lines = drawn(answer(plan(("B", 7), ("A", 6))))
    curve = [each for each in lines if "┤" in each]
    assert len(curve) == plan_chart.ROWS
    start = plan_chart.LABEL
    fall = next(row.index("╮") for row in curve if "╮" in row)
    letters = next(each for each in lines if each.startswith("point"))
    assert abs(letters.index("A") - fall) <= 1
    assert letters[start:].count("B") == letters.index("A") - start
    width = 2 * (fall - start)
    assert len(letters) == start + round(width * 13 / 14)
    assert "g/kWh 300 ┤" in curve[0]
    assert lines[lines.index(letters) + 1].strip().startswith("Fri 14:00")


def test_mu_is_drawn_where_the_curve_can_be_held_against_it() -> None:
    """660 W more for 400 tokens/s are 1.65 J a token; what a token may cost, over that, is mu."""
    view = answer(plan(("B", 7), ("A", 6), price_mu=300e-6 / 3.6))
    (mark,) = view["plan"]["mu"]
    expected = view["plan"]["mu_g_per_token"] / ((1600.0 - 940.0) / 400.0) * 3.6e6
    assert mark == {"slower": "B", "faster": "A", "g_per_kwh": pytest.approx(expected)}
    rows = [each for each in drawn(view) if "mu = " in each]
    assert len(rows) == 1
    assert "┄" in rows[0]
    assert rows[0].endswith(f"mu = {expected:.0f}")
    assert [each for each in drawn(view) if each.endswith(f"for above {expected:.0f} g/kWh")]


def test_a_mu_far_above_the_curve_is_said_and_not_drawn() -> None:
    """The scale stays the grid's own."""
    lines = drawn(answer(plan(("A", 13), price_mu=0.01, origin="B")))
    assert not [each for each in lines if "┤" in each and "mu" in each]
    assert [each for each in lines if "above every hour shown: A is better in each" in each]


def test_what_the_plan_comes_to_is_said() -> None:
    """Changes by kind, the gap, the end and what is to spare."""
    made = plan(("A-low", 2), ("", 3), ("B", 2), ("A", 6))
    lines = drawn(answer(made, catalogue=catalogue(A, LOW, B)))
    assert "switches 3 (1 layout, 1 clock, 1 sleep), gap to bound 0.35 %" in lines
    assert "finish   Sat 21 Nov 03:00, deadline Sat 21 Nov 04:00 (1 h to spare)" in lines
    grams = "2.9 kg est from then on; no plan comes below 2.89 kg est if the grid is as forecast"
    assert f"carbon   {grams}" in lines
    text = "\n".join(lines)
    legend = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line}
    assert legend["·"].startswith("asleep 3 h")
    assert legend["A"].startswith("A-low: dp4 @1200 MHz 2 h")


def test_the_legend_says_which_intensities_a_point_is_for() -> None:
    """Between the mu below it and the one above; a plan without a price says nothing of it."""
    priced = {
        "mu": [
            {"slower": "", "faster": "B", "g_per_kwh": 275.0},
            {"slower": "B", "faster": "A", "g_per_kwh": 170.0},
        ]
    }
    said = [plan_bands.band_words(priced, each) for each in ("", "B", "A", "D")]
    assert said == ["above 275 g/kWh", "170 to 275 g/kWh", "below 170 g/kWh", ""]
    assert plan_bands.band_words({"mu": []}, "A") == ""


@pytest.mark.parametrize("hours", [0.4, 3.0, 14.0, 31.0, 107.0, 239.0, 700.0])
@pytest.mark.parametrize("most", [1, 3, 8])
def test_times_of_the_axis_are_round_and_few(hours: float, most: int) -> None:
    """Whole quarters of an hour at least, in order, within the stretch and not over its start."""
    start = NOW + timedelta(minutes=7)
    end = start + timedelta(hours=hours)
    found = plan_chart.ticks(start, end, most)
    assert len(found) <= most + 1
    assert found == sorted(set(found))
    assert all(start < each < end and each.minute % 15 == 0 for each in found)
    if hours > 48:
        assert all(each.hour == 0 for each in found)
    if hours >= 14 and most > 1:
        assert found


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_the_screen_fits_the_terminal(columns: int) -> None:
    """The curve takes what its labels leave."""
    made = plan(("A-low", 2), ("", 3), ("B", 2), ("A", 6), price_mu=300e-6 / 3.6)
    lines = drawn(answer(made, catalogue=catalogue(A, LOW, B)), columns)
    assert max(map(len, lines)) <= columns


def test_names_of_mus_beside_the_curve_do_not_cover_each_other() -> None:
    """Ascending levels are moved up until they are apart; those far apart stay."""
    assert plan_picture.apart([10.0, 11.0, 50.0], 5.0) == [10.0, 15.0, 50.0]
    assert plan_picture.apart([], 5.0) == []


def test_letters_are_told_apart() -> None:
    """First letters where they differ; else letters of their own, which the legend explains."""

    def named(*points: str) -> dict[str, str]:
        return plan_chart.letters([{"point": each} for each in points])

    assert named("A", "", "C", "A") == {"": "·", "A": "A", "C": "C"}
    assert named("A-1305", "A-1980") == {"": "·", "A-1305": "A", "A-1980": "B"}


def test_a_flat_grid_and_an_unknown_stretch_are_drawn() -> None:
    """A line in the middle, and a gap where nothing is known; never a zero."""
    frame = plan_chart.Frame(start=NOW, end=NOW + timedelta(hours=4), width=8)
    view = answer(plan(("A", 4)))
    view["grid"] = [
        {"start": str(NOW), "end": str(NOW + timedelta(hours=2)), "g_per_kwh": 100.0},
    ]
    view["plan"]["mu"] = []
    rows = plan_chart.curve(view, frame)
    assert "".join(rows).count("─") == 4
    assert plan_chart.curve({**view, "grid": []}, frame) == []


def oracle(grid: Sequence[Mapping[str, Any]], at: datetime) -> float | None:
    """The value at a moment, looked up."""
    for each in grid:
        if datetime.fromisoformat(each["start"]) <= at < datetime.fromisoformat(each["end"]):
            return float(each["g_per_kwh"])
    return None


@pytest.mark.parametrize("width", [24, 60, 96])
def test_the_curve_is_the_grids(width: int) -> None:
    """Column by column the drawn height is that of the value in its middle."""
    grid = slots([100.0, 300.0, 300.0, 500.0, 100.0, 200.0, 400.0, 400.0])
    view = answer(plan(("A", 8)), deadline=None)
    view["grid"] = as_json(grid)
    view["plan"]["mu"] = []
    frame = plan_chart.frame(view, width)
    rows = [each[plan_chart.LABEL :].ljust(width) for each in plan_chart.curve(view, frame)]
    scale = plan_chart.Scale(low=100.0, high=500.0)
    flat = 0
    for column in range(width):
        heights = [n for n, row in enumerate(reversed(rows)) if row[column] == "─"]
        value = oracle(view["grid"], frame.middle(column))
        assert value is not None
        if heights:
            flat += 1
            assert heights == [scale.row(value)]
    assert flat >= width - 2 * 7


def test_why_there_is_no_plan_is_one_sentence() -> None:
    """Each case in words, and nothing is drawn."""
    cases = (
        (answer(None, deadline=None), "llama has no plan: it has no deadline"),
        (answer(None), "llama has no plan yet: it is being made"),
        (answer(None, state=PlanState(reason="it does not fit")), "no plan: it does not fit."),
        (answer(None, state=PlanState(trouble="it ended")), "no plan yet: it ended; it is asked"),
        (as_json(no_look("r", "llama", finished=True)), "llama has no plan: it has finished."),
        (as_json(no_look("r", "llama", finished=False)), "no cycle has looked at it yet"),
    )
    for view, sentence in cases:
        assert sentence in view["sentence"]
        assert view["plan"] is None
        assert sentence in "\n".join(drawn(view))


def test_a_plan_that_is_not_followed_says_so_first() -> None:
    """Frozen, old, or overtaken by what is missing now."""
    old = plan(("A", 13), made_at=NOW - FRESH)
    assert "it is 2 h old and no newer one came" in drawn(answer(old))[1]
    assert "the run is frozen" in drawn(answer(plan(("A", 13)), frozen="by hand"))[1]
    lost = drawn(answer(plan(("A", 13)), live=False))
    assert "This plan is not followed: it does not report" in lost[1]
    assert "not followed" not in "\n".join(drawn(answer(plan(("A", 13)))))


def test_a_bound_of_nothing_has_no_gap() -> None:
    """A grid without grams: the share of zero is not known, and JSON has no infinity."""
    view = answer(plan(("A", 13), grams=0.0, bound_g=0.0, gap=float("inf")))
    assert view["plan"]["gap"] is None
    assert "gap to bound -" in "\n".join(drawn(view))


def test_nothing_is_drawn_of_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--png` without a plan is a misunderstanding, said in one sentence with the reason."""
    with answering(tmp_path / "w.sock", {"/v1/runs/llama/plan": (200, answer(None))}):
        words = ["policy", "plan", "llama", "--socket", str(tmp_path / "w.sock")]
        assert main(words) == 0
        assert "it is being made" in capsys.readouterr().out
        assert main([*words, "--png", str(tmp_path / "x.png")]) == 1
        assert "there is nothing to draw: llama has no plan yet" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def failing(times: int) -> LoopFacts:
    """A daemon whose planner failed so often in a row."""
    clock = SteppedClock()
    planning = Planning(failed=times, in_a_row=times, trouble="the planning process ended")
    loop_facts = LoopFacts(clock=clock.clock, settings=Settings(), started_s=clock.monotonic_s)
    loop_facts.planning = lambda: planning
    return loop_facts


def test_a_planner_that_goes_on_failing_needs_a_look() -> None:
    """Once may be chance; three times in a row is a sentence that says what goes on meanwhile."""
    view = status_view()
    assert troubles(view, failing(PLANS_FAILED - 1)) == ()
    (sentence,) = troubles(view, failing(PLANS_FAILED))
    assert "No plan can be made: the planning process ended (3 times in a row)" in sentence
    assert "price rule" in sentence


def test_planning_is_counted_without_any_run() -> None:
    """Failures are there from the start; ages of plans only where there are plans."""
    found = {each.name: each.samples for each in plan_metrics(failing(4))}
    counts = {each.labels["outcome"]: each.value for each in found["wattmesh_planner_questions"]}
    assert counts == {"answered": 0.0, "failed": 4.0}
    assert found["wattmesh_plan_age_seconds"] == []


def test_asking_for_a_plan_loads_nothing_that_replay_needs() -> None:
    """`policy plan` answers at once; the twin is its sister, which loads numpy."""
    words = 'from wattmesh.controller.cli.main import main\nmain(["policy", "{}", "--help"])'
    assert "numpy" not in loaded_after(words.format("plan"))
    assert "numpy" in loaded_after(words.format("bench"))


def test_what_binds_a_plan_and_what_it_cannot_keep_is_said() -> None:
    """A cap with its end, the level and the budget; of a plan that keeps all of it nothing."""
    made = plan(("B", 7), ("A", 6), level="the level is not kept", budget="the budget is used up")
    view = seen(made, room_w=1000.0)
    view = replace(view, cap=CapView(cap_w=5e3, until=NOW + timedelta(hours=2)))
    told = as_json(plan_answer(view, view.runs[0], PlanState(plan=made), "Staying at A."))
    lines = drawn(told)
    assert "cap      no point above 1 kW until 16:00 UTC, when the power cap ends" in lines
    assert "level    the level is not kept" in lines
    assert "budget   the budget is used up" in lines
    calm = drawn(answer(plan(("B", 7), ("A", 6))))
    assert not [each for each in calm if each.startswith(("cap ", "level ", "budget "))]
