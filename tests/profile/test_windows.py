"""What step ends and joules say about a point, against runs whose truth is known."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.profile.measuring.windows import (
    Draw,
    WindowNumbers,
    at_pace,
    periods,
    spread_share,
    window_numbers,
)
from wattmesh.reconfig.step_log import StepRow

EVERY, TOKENS = 4, 100
STEP_W, BOUNDARY_W = 500.0, 100.0


class Trained:
    """A run with exactly these times: its rows, and its true energy."""

    def __init__(self, step_s: list[float], boundary_s: float, power_w: list[float]) -> None:
        """Train; `step_s` and `power_w` by step."""
        self.rows: list[StepRow] = []
        self.spans: list[tuple[float, float, float]] = []
        self.unread: tuple[float, float] | None = None
        self.error_j = 0.0
        moment_s = 100.0
        for step, (seconds, watts) in enumerate(zip(step_s, power_w, strict=True), 1):
            if step > 1 and (step - 1) % EVERY == 0:
                self.spans.append((moment_s, moment_s + boundary_s, BOUNDARY_W))
                moment_s += boundary_s
            self.spans.append((moment_s, moment_s + seconds, watts))
            moment_s += seconds
            self.rows.append(row(step, moment_s, seconds))

    def drawn(self, start_s: float, end_s: float) -> Draw | None:
        """The truth, or nothing where the meter was dark."""
        if self.unread and start_s < self.unread[1] and self.unread[0] < end_s:
            return None
        joules = sum(
            watts * max(0.0, min(end_s, end) - max(start_s, start))
            for start, end, watts in self.spans
        )
        return Draw(gpu_j=joules, host_j=None, error_j=self.error_j)

    def numbers(self, *, boundary_every: int = 20, after: int = 0) -> WindowNumbers | None:
        """What the window says."""
        return window_numbers(
            periods(self.rows, EVERY, after),
            self.drawn,
            tokens_per_step=TOKENS,
            boundary_every=boundary_every,
            precision=0.02,
        )


def row(step: int, ended_s: float, seconds: float) -> StepRow:
    """One line of the step log."""
    return StepRow(
        step=step,
        tokens=TOKENS * step,
        loss=1.0,
        layout="dp2",
        gpus=2,
        monotonic_s=ended_s,
        elapsed_s=seconds,
    )


@given(
    step_s=st.floats(0.01, 100),
    boundary_s=st.floats(0, 50),
    boundary_every=st.integers(1, 1000),
)
def test_speed_and_watts_are_the_jobs_own_however_often_profiling_saves(
    step_s: float, boundary_s: float, boundary_every: int
) -> None:
    """Exact for a steady run: boundaries are weighed as the job has them."""
    run = Trained([step_s] * 41, boundary_s, [STEP_W] * 41)
    found = run.numbers(boundary_every=boundary_every)
    assert found is not None
    interval_s = boundary_every * step_s + boundary_s
    assert found.tokens_per_s == pytest.approx(boundary_every * TOKENS / interval_s, rel=1e-6)
    joules = boundary_every * step_s * STEP_W + boundary_s * BOUNDARY_W
    assert found.power_w == pytest.approx(joules / interval_s, rel=1e-4)
    assert found.settled


def test_a_coarse_meter_gives_the_mean_and_says_how_coarse() -> None:
    """Where plain steps are not resolved, boundaries count as the mean, with the meter's error."""
    run = Trained([1.0] * 41, 0.2, [STEP_W] * 41)
    run.error_j = 400.0
    found = run.numbers()
    assert found is not None
    whole = run.drawn(*_window(run))
    assert whole is not None
    assert whole.energy_j is not None
    assert found.power_w == pytest.approx(whole.energy_j / found.seconds)
    assert found.meter_share == pytest.approx(400 / whole.energy_j)
    assert found.share > found.meter_share - 1e-12


def test_warm_up_is_left_out() -> None:
    """Power and pace that still rise are no part of the window."""
    warm = [2.0] * 8 + [1.0] * 33
    found = Trained(warm, 0.1, [300.0] * 12 + [STEP_W] * 29).numbers()
    assert found is not None
    assert found.settled
    assert found.step_s == pytest.approx(1.0)
    assert found.power_w == pytest.approx(STEP_W, rel=0.02)


def test_what_never_settles_says_so() -> None:
    """The twin: a board that heats all along has numbers, and no claim that they are steady."""
    found = Trained([1.0] * 41, 0.1, [300.0 + 10 * step for step in range(41)]).numbers()
    assert found is not None
    assert not found.settled


def test_a_window_in_which_the_meter_was_dark_gives_no_number() -> None:
    """Nor does one with too few periods; after the darkness there are numbers again."""
    run = Trained([1.0] * 41, 0.1, [STEP_W] * 41)
    run.unread = (118.0, 119.0)
    found = run.numbers()
    assert found is not None
    assert found.seconds < 25
    run.unread = (138.0, 139.0)
    assert run.numbers() is None
    assert Trained([1.0] * 12, 0.1, [STEP_W] * 12).numbers() is None


def test_periods_begin_after_the_arrival_and_need_all_their_steps() -> None:
    """The interval with the switch in it is none of the point's, nor one with a lost line."""
    rows = Trained([1.0] * 41, 0.1, [STEP_W] * 41).rows
    assert len(periods(rows, EVERY, 0)) == 9
    assert len(periods(rows, EVERY, 20)) == 4
    assert len(periods([each for each in rows if each.step != 20], EVERY, 0)) == 7


def test_the_spread_is_students() -> None:
    """Against the textbook: three values, two degrees of freedom."""
    assert spread_share([9.0, 10.0, 11.0]) == pytest.approx(4.30 / 3**0.5 / 10)
    assert spread_share([1.0]) == float("inf")


def test_the_first_step_at_normal_pace_ends_a_switch() -> None:
    """Steps that compile do not count, nor does the one that holds the switch itself."""
    slow = [row(4, 10.0, 1.0), row(5, 30.0, 5.0), row(6, 33.0, 3.0), row(7, 34.0, 1.0)]
    found = at_pace(slow, 4, 1.0)
    assert found is not None
    assert found.step == 7
    quick = [slow[0], replace(slow[1], elapsed_s=1.0)]
    first = at_pace(quick, 4, 1.0)
    assert first is not None
    assert first.step == 5
    assert at_pace(slow[:3], 4, 1.0) is None


def _window(run: Trained) -> tuple[float, float]:
    marks = periods(run.rows, EVERY, 0)
    return marks[0].start_s, marks[-1].end_s
