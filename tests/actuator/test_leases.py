"""How long wishes hold, whatever happens to clocks and to whoever wished them."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.actuator.worlds import NOW, T0, duty, heard, later, thrift
from wattmesh.telemetry.desired import Desired, LeaseKind

ECONOMY = ("GPU-0", LeaseKind.ECONOMY)
OBLIGATION = ("GPU-0", LeaseKind.OBLIGATION)


def test_an_economy_lease_ends_after_it_was_last_heard() -> None:
    """It holds for lease_s, and each time it is heard it begins anew."""
    first = heard(thrift(clock=1200, lease_s=30))
    assert ECONOMY in first.live(later(29.9)).leases
    assert ECONOMY not in first.live(later(30)).leases
    again = first.hear(
        Desired(node="n1", epoch=1, serial="s", wishes=(thrift(clock=1200, lease_s=30),)), later(20)
    )
    assert ECONOMY in again.live(later(49)).leases
    assert ECONOMY not in again.live(later(50)).leases


@given(step_s=st.floats(-1e6, 1e6), left_s=st.floats(1, 1e5))
def test_a_stepped_wall_clock_neither_ends_nor_prolongs_an_obligation(
    step_s: float, left_s: float
) -> None:
    """Its end was turned into boot time when it was heard; hearing it again does not move it."""
    wish = duty(cap=400, seconds=left_s)
    kept = heard(wish)
    before, after = later(left_s * 0.999), later(left_s * 1.001)
    for moment, live in ((before, True), (after, False)):
        stepped = replace(moment, wall=moment.wall + timedelta(seconds=step_s))
        assert (OBLIGATION in kept.live(stepped).leases) is live
        again = kept.hear(Desired(node="n1", epoch=1, serial="s", wishes=(wish,)), stepped)
        assert (OBLIGATION in again.live(stepped).leases) is live


@given(off_s=st.floats(0, 7200), skew_s=st.floats(-1e6, 1e6))
def test_a_reboot_leaves_an_obligation_what_is_left_of_it_and_never_more(
    off_s: float, skew_s: float
) -> None:
    """After a reboot only the wall clock is known; wrong as it may be, the lease never grows."""
    kept = heard(duty(cap=400, seconds=3600))
    woken = replace(NOW, wall=T0 + timedelta(seconds=off_s + skew_s), boot_s=10.0, boot_id="boot-2")
    lease = kept.after_boot(woken).leases[OBLIGATION]
    assert lease.ends_s - woken.boot_s <= 3600
    if skew_s == 0:
        assert abs(lease.ends_s - woken.boot_s - (3600 - off_s)) < 1e-3
    assert lease.after_boot(woken) == lease


def test_what_a_wish_leaves_out_is_no_longer_wished() -> None:
    """The wish for a node is whole: an obligation that it no longer names is withdrawn."""
    both = heard(thrift(clock=1200), duty(cap=400))
    none = both.hear(Desired(node="n1", epoch=2, serial="t", wishes=()), NOW)
    assert len(both.leases) == 2
    assert not none.leases
    assert none.epoch == 2


def test_a_changed_end_is_a_new_obligation() -> None:
    """An operator who moves the end is obeyed."""
    kept = heard(duty(cap=400, seconds=100))
    moved = kept.hear(
        Desired(node="n1", epoch=1, serial="t", wishes=(duty(cap=400, seconds=500),)), later(50)
    )
    assert OBLIGATION in moved.live(later(400)).leases
    assert OBLIGATION not in moved.live(later(501)).leases
