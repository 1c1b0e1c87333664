"""When a run is at its pace after a switch, told from the times of its steps."""

import pytest

from wattmesh.reconfig.hook.reports.first_steps import STEPS, at_pace


def steps(*took_s: float) -> list[tuple[float, float]]:
    """Steps one after the other: (end, seconds)."""
    ended_s, found = 0.0, []
    for each in took_s:
        ended_s += each
        found.append((ended_s, each))
    return found


@pytest.mark.parametrize(
    ("took_s", "expected_s"),
    [
        ((1.0,) * STEPS, 1.0),
        ((1740.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), 1741.0),
        ((900.0, 600.0, 1.2, 1.0, 1.02, 1.0, 0.99, 1.0), 1502.2),
        ((2.0, 1.03, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0), 3.03),
        ((8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0), 35.0),
    ],
    ids=["at once", "compiled in the first", "in two, and warming up", "a hiccup", "ever faster"],
)
def test_the_first_step_that_takes_as_long_as_usual_ends_a_switch(
    took_s: tuple[float, ...], expected_s: float
) -> None:
    """Usual is the median of the later half; within 5 % of it counts."""
    assert len(took_s) == STEPS
    assert at_pace(steps(*took_s)) == pytest.approx(expected_s)
