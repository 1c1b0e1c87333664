"""An open switch that cannot be confirmed any more is given up, and nothing else is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from wattmesh.controller.cycle.states import OpenSwitch, RunNow, verdict
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.reconfig.wire.messages import Order, SwitchMode

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
ORDER = Order(
    switch_id="p",
    epoch=1,
    run="r",
    attempt=2,
    point="B",
    layout=Layout(tp=2),
    ranks=(0, 1),
    not_before_step=101,
    valid_until_step=160,
)
RUN = RunNow(step=120, attempt=2, finished=False, frozen="")
OPEN = [state for state in SwitchState if state not in FINAL]


def judge(
    state: SwitchState, run: RunNow = RUN, *, age_s: float = 1.0, order: Order = ORDER
) -> SwitchState | None:
    """Ask for the verdict `age_s` after the order."""
    switch = OpenSwitch(order=order, state=state, created_at=START)
    ended = verdict(switch, run, now=START + timedelta(seconds=age_s), timeout_s=600.0)
    return ended.state if ended else None


@pytest.mark.parametrize("state", OPEN)
def test_a_switch_that_may_still_be_confirmed_is_left_alone(state: SwitchState) -> None:
    """Doubt is no reason to give up."""
    assert judge(state) is None


@pytest.mark.parametrize("state", OPEN)
def test_every_open_state_ends_when_its_time_is_over(state: SwitchState) -> None:
    """No state of a switch can stay open for ever; only a begun one counts as failed."""
    begun = state not in (SwitchState.ORDERED, SwitchState.ANNOUNCED)
    ended = SwitchState.FAILED if begun else SwitchState.ABANDONED
    assert judge(state, age_s=601.0) is ended
    assert judge(state, replace(RUN, finished=True)) is ended
    assert judge(state, replace(RUN, attempt=5)) is ended


@pytest.mark.parametrize("mode", SwitchMode)
@pytest.mark.parametrize("state", [each for each in OPEN if each is not SwitchState.ORDERED])
def test_a_switch_that_was_begun_may_go_on_in_the_next_launches(
    state: SwitchState, mode: SwitchMode
) -> None:
    """In place too: attempt + 1 is a restart, + 2 is the way back; they say so. + 3 are crashes."""
    order = replace(ORDER, mode=mode)
    assert judge(state, replace(RUN, attempt=3), order=order) is None
    assert judge(state, replace(RUN, attempt=4), order=order) is None
    assert judge(state, replace(RUN, attempt=5), order=order) is not None


def test_an_order_that_waits_ends_with_its_launch() -> None:
    """An order in place names the launch that is to take it."""
    assert judge(SwitchState.ORDERED, replace(RUN, attempt=3)) is SwitchState.ABANDONED


def test_an_order_the_run_passed_by_is_abandoned() -> None:
    """And only while it waits: a run that took it may be past that step."""
    passed = replace(RUN, step=161)
    assert judge(SwitchState.ORDERED, passed) is SwitchState.ABANDONED
    assert judge(SwitchState.REBUILDING, passed) is None


def test_freezing_withdraws_an_order_but_not_a_switch_under_way() -> None:
    """Hands off means: nothing new begins; what began must end on its own."""
    frozen = replace(RUN, frozen="operator: maintenance")
    assert judge(SwitchState.ORDERED, frozen) is SwitchState.ABANDONED
    assert judge(SwitchState.LOADED, frozen) is None
