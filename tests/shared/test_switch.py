"""The switch's state machine never goes back and never leaves a final state."""

import itertools

import pytest

from wattmesh.reconfig.switch import FINAL, SwitchState, advance, position

HAPPY = (
    SwitchState.ORDERED,
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.REBUILDING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
)


def replay(reports: tuple[SwitchState, ...]) -> SwitchState:
    """Feed reports to the machine as the journal does."""
    state = SwitchState.ORDERED
    for report in reports:
        if advance(state, report):
            state = report
    return state


@pytest.mark.parametrize("lost", range(len(HAPPY)))
def test_lost_repeated_and_late_reports_end_in_the_same_state(lost: int) -> None:
    """Every prefix may be sent again after the whole; any one report may be missing."""
    reports = tuple(each for n, each in enumerate(HAPPY) if n != lost or each in FINAL)
    assert replay(reports) is SwitchState.CONFIRMED
    assert replay(reports + HAPPY[: lost + 1]) is SwitchState.CONFIRMED


def test_nothing_leaves_a_final_state() -> None:
    """Over all pairs."""
    for final, report in itertools.product(FINAL, SwitchState):
        assert not advance(final, report)


def test_a_run_that_rolls_back_cannot_confirm() -> None:
    """A late `confirmed` must not turn a rollback into a success."""
    assert not advance(SwitchState.ROLLING_BACK, SwitchState.CONFIRMED)
    assert advance(SwitchState.ROLLING_BACK, SwitchState.ROLLED_BACK)


def test_states_only_move_forwards() -> None:
    """If a may advance to b, b may not advance to a."""
    for one, other in itertools.product(SwitchState, SwitchState):
        assert not (advance(one, other) and advance(other, one))


def test_position_counts_to_its_own_end() -> None:
    """Screens print (n of m) with n <= m."""
    assert all(0 <= position(state)[0] <= position(state)[1] for state in SwitchState)
