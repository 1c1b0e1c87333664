"""A draw is called idle where it is known, and not where the meter says next to nothing."""

import pytest

from wattmesh.controller.profile.measuring.windows import WindowNumbers
from wattmesh.controller.profile.point_checks import idle_draw
from wattmesh.controller.profile.results import ProfileState


def drawn(gpu_w: float, meter_share: float) -> WindowNumbers:
    """What a window found."""
    return WindowNumbers(
        step_s=0.1,
        boundary_s=0.0,
        tokens_per_s=100.0,
        power_w=gpu_w,
        gpu_w=gpu_w,
        host_w=None,
        parked_w=None,
        speed_share=0.01,
        meter_share=meter_share,
        periods=30,
        steps=30,
        seconds=3.0,
        settled=True,
        quality="measured",
    )


@pytest.mark.parametrize(
    ("gpu_w", "meter_share", "idle"),
    [(112.0, 0.0, True), (120.0, 0.0, False), (120.0, 0.1, True), (766.0, 5.9, False)],
)
def test_a_draw_near_the_idle_one_is_no_job(gpu_w: float, meter_share: float, idle: bool) -> None:
    """Two boards that idled at 55 W; 766 W that are hardly known are unknown, and not idle."""
    known = ProfileState(digest="", idle_gpu_w=55.0)
    assert bool(idle_draw(known, drawn(gpu_w, meter_share), 2)) == idle
