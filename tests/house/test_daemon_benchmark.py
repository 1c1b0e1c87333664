"""The daemon is measured with the plan that its figures name, or there are no figures."""

from pathlib import Path

import pytest

from benchmarks.daemon.__main__ import daemon
from benchmarks.daemon.site import (
    POINTS,
    SLOTS,
    SmallerPlanError,
    check_plan,
    prepare,
    site,
)


def test_the_plan_that_is_kept_is_of_720_slots_and_7_points(tmp_path: Path) -> None:
    """Sabotaged twin: without an actuator the question has one option, and that is refused."""
    prepare(tmp_path, cycle_s=0.5)
    with daemon(tmp_path), site(tmp_path) as here:
        with pytest.raises(SmallerPlanError, match="slots x 1 options"):
            check_plan(here.wait_for_plan(1))
        here.start_actuator()
        plan = here.wait_for_plan(POINTS)
        check_plan(plan)
        assert (plan["slots"] >= SLOTS, plan["options"]) == (True, POINTS)
        assert plan["clock_changes"] > 0, "the options are no choice"


def test_no_plan_and_a_shorter_one_are_refused() -> None:
    """Neither may stand in for the plan that is named."""
    check_plan({"slots": SLOTS, "options": POINTS})
    for smaller in (None, {"slots": SLOTS - 1, "options": POINTS}):
        with pytest.raises(SmallerPlanError):
            check_plan(smaller)
