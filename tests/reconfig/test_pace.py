"""A pause is no slow step, and is not forgotten either."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.reconfig.client import pace as paces
from wattmesh.reconfig.client.pace import DAY_S, REPORTS, Pace

TOKENS = 1000


def train(steps: list[float], pace: Pace | None = None) -> Pace:
    """Report one step after the other, each so many seconds after the one before."""
    pace = pace or Pace(0.0)
    now_s = tokens = 0.0
    pace.note(now_s, 0)
    for seconds in steps:
        now_s, tokens = now_s + seconds, tokens + TOKENS
        pace.note(now_s, int(tokens))
    return pace


@pytest.mark.parametrize("step_s", [0.01, 1.0, 72.0, 600.0])
def test_steps_of_any_length_are_a_speed_and_no_pause(step_s: float) -> None:
    """The mean over the newest, as it was; a step of ten minutes is a step."""
    pace = train([step_s] * 100)
    assert pace.tokens_per_s == pytest.approx(TOKENS / step_s)
    assert pace.pause_share == 0.0
    assert train([step_s] * 10 + [2 * step_s] * (REPORTS - 1)).tokens_per_s == pytest.approx(
        TOKENS / step_s / 2
    )


def test_an_evaluation_of_an_hour_is_no_slow_step() -> None:
    """The speed stays that of the steps; the hour counts as one hour of a day."""
    pace = train([5.0] * 50 + [3600.0] + [5.0] * 10)
    assert pace.tokens_per_s == pytest.approx(TOKENS / 5.0)
    assert pace.pause_share == pytest.approx(3595.0 / DAY_S)


def test_counted_as_a_step_it_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without pauses the run looks twenty times too slow for its next thirty steps."""
    monkeypatch.setattr(paces, "PAUSE_FACTOR", inf)
    assert train([5.0] * 50 + [3600.0] + [5.0] * 10).tokens_per_s < TOKENS / 5.0 / 20


def test_another_layout_begins_anew_and_keeps_its_pauses() -> None:
    """Speed is of a layout, whatever boundaries it has; what the launch stood still for stays."""
    pace = Pace(0.0)
    pace.begin(1)
    train([5.0] * 50 + [3600.0], pace)
    share = pace.pause_share
    pace.begin(1)
    assert pace.tokens_per_s == pytest.approx(TOKENS / 5.0)
    pace.begin(2)
    assert (pace.tokens_per_s, pace.pause_share) == (0.0, share)


@given(
    step_s=st.floats(0.1, 600.0),
    steps=st.integers(5, 50),
    factor=st.floats(6.0, 500.0),
    cycles=st.integers(2, 12),
)
def test_pauses_that_come_again_are_counted_on(
    step_s: float, steps: int, factor: float, cycles: int
) -> None:
    """Speed less pauses promises the run's own mean, but for the one pause that may be no habit."""
    pause_s = max(61.0, factor * step_s)
    pace = train(([step_s] * steps + [pause_s]) * cycles)
    lived_s = cycles * (steps * step_s + pause_s)
    mean = cycles * (steps + 1) * TOKENS / lived_s
    promised = pace.tokens_per_s * (1.0 - pace.pause_share)
    allowed = pace.tokens_per_s * (pause_s - step_s) / lived_s
    assert 0.999 * mean <= promised <= mean + 1.001 * allowed
    assert 0.0 <= pace.pause_share < 1.0
