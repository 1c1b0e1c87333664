"""What a switch spent, read from its evidence: all of it, or nothing."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.reconfig.switch_spend import spend_of

TOLD: dict[str, Any] = {
    "state_bytes": 1000,
    "save_s": 0.5,
    "teardown_s": 0.1,
    "leave_s": 0.02,
    "groups_s": 0.03,
    "build_s": 0.4,
    "load_s": 0.2,
    "verify_s": 0.3,
    "total_s": 1.6,
    "at_pace_s": 2.1,
}


def test_phases_add_up_to_the_stall() -> None:
    """The groups are taken out of the build; what is left of the total is messages and votes."""
    found = spend_of(TOLD, "A", "B")
    assert found is not None
    assert (found.groups_s, found.build_s, found.agree_s) == (0.05, 0.37, 0.08)
    assert found.first_s == pytest.approx(0.5)
    phases = (found.save_s, found.teardown_s, found.groups_s, found.build_s, found.load_s)
    total_s = sum(phases) + found.verify_s + found.agree_s + (found.first_s or 0.0)
    assert total_s == pytest.approx(TOLD["at_pace_s"])


@pytest.mark.parametrize("name", sorted(TOLD.keys() - {"at_pace_s"}))
@pytest.mark.parametrize("value", [None, "0.1", math.nan, math.inf, -1.0, True, 1e300])
def test_what_is_not_known_is_never_a_zero(name: str, value: Any) -> None:
    """A phase that is missing, no number or out of range makes no spend at all."""
    assert spend_of({**TOLD, name: value}, "A", "B") is None
    assert spend_of({key: each for key, each in TOLD.items() if key != name}, "A", "B") is None


def test_no_bytes_and_parts_longer_than_the_whole_make_none() -> None:
    """An older hook tells no bytes; a clock that jumped tells such parts."""
    assert spend_of({**TOLD, "state_bytes": 0}, "A", "B") is None
    assert spend_of({**TOLD, "total_s": 1.0}, "A", "B") is None
    assert spend_of({**TOLD, "groups_s": 0.9}, "A", "B") is None


def test_waiting_for_the_checkpoint_before_is_not_the_switch_s_own() -> None:
    """It is taken out of the save, once; more of it than the save took makes no spend."""
    found, without = (spend_of({**TOLD, **more}, "A", "B") for more in ({"settle_s": 0.2}, {}))
    assert found is not None
    assert without is not None
    assert (found.save_s, without.save_s) == (0.3, 0.5)
    assert found.agree_s == without.agree_s
    for odd in (0.6, None, "0.1", math.nan, -1.0):
        assert spend_of({**TOLD, "settle_s": odd}, "A", "B") is None


def test_without_a_pace_the_first_step_is_not_known() -> None:
    """Also where it is told to have been before the switch had ended."""
    for odd in (None, 1.0, "soon", math.nan):
        found = spend_of({**TOLD, "at_pace_s": odd}, "A", "B")
        assert found is not None
        assert found.first_s is None


ODD = st.one_of(st.none(), st.floats(), st.integers(), st.sampled_from(["", "1", [], {}]))


@given(st.dictionaries(st.sampled_from(sorted(TOLD)), ODD))
def test_no_evidence_makes_it_fail(odd: dict[str, Any]) -> None:
    """Whatever a job says."""
    found = spend_of({**TOLD, **odd}, "A", "B")
    assert found is None or all(
        math.isfinite(each) and each >= 0.0
        for each in (found.save_s, found.build_s, found.groups_s, found.agree_s)
    )
