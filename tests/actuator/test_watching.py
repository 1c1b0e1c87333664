"""Telling someone else's hand from a driver that was loaded again, and from the weather."""

from dataclasses import replace

import pytest

from tests.actuator.worlds import facts
from wattmesh.telemetry.actuator.rules.facts import GpuFacts, GpuWatch, LockAndCap, Reasons
from wattmesh.telemetry.actuator.rules.watching import LOOKS, WatchResult, look

CAPPED = LockAndCap(gpu_uuid="GPU-0", found_w=700.0, set_w=450.0)
LOCKED = LockAndCap(gpu_uuid="GPU-0", lock_mhz=1200)


def looks(held: LockAndCap, seen: GpuFacts, times: int) -> WatchResult:
    """Look several times, a second apart."""
    found = WatchResult(held=held, watch=GpuWatch(energy_mj=seen.energy_mj))
    for turn in range(times):
        found = look(found.held, found.watch, seen, 100.0 + turn)
    return found


def test_someone_elses_limit_is_left_alone_and_said() -> None:
    """A limit that is not ours is not ours to take back; what else is ours still is."""
    held = replace(CAPPED, lock_mhz=1200)
    found = looks(held, facts(requested_w=600.0, sm_mhz=1200), 1)
    assert found.held == replace(LOCKED)
    assert "someone else set the power limit of GPU-0 to 600 W" in found.watch.blocked


def test_a_cap_out_of_band_is_no_foreign_hand() -> None:
    """A management controller lowers what is enforced (190), not what was requested (192)."""
    found = looks(CAPPED, facts(requested_w=450.0, enforced_w=300.0), 5)
    assert found.held == CAPPED
    assert not found.watch.blocked


def test_a_clock_above_our_lock_convicts_someone_else() -> None:
    """Our lock is not in force, so there is none of ours left to take back."""
    seen = facts(sm_mhz=1900)
    assert not looks(LOCKED, seen, LOOKS - 1).watch.blocked
    found = looks(LOCKED, seen, LOOKS)
    assert "1900 MHz under our lock of 1200 MHz" in found.watch.blocked
    assert found.held.lock_mhz is None


def test_a_clock_far_below_our_lock_convicts_only_without_another_reason() -> None:
    """A lower lock of someone else shows under load, when no reason bit explains the clock."""
    found = looks(LOCKED, facts(sm_mhz=600), LOOKS)
    assert "for no reason that the driver gives" in found.watch.blocked
    assert found.watch.hands_off
    assert found.held == LOCKED  # ours all the same: given back when the lease has ended


@pytest.mark.parametrize(
    "seen",
    [
        facts(sm_mhz=600, reasons=int(Reasons.SW_POWER_CAP)),
        facts(sm_mhz=600, reasons=int(Reasons.GPU_IDLE)),
        facts(sm_mhz=600, reasons=int(Reasons.HW_THERMAL)),
        facts(sm_mhz=600, reasons=None),
        facts(sm_mhz=600, processes=()),
        facts(sm_mhz=1185),
        facts(sm_mhz=1215),
        facts(sm_mhz=None),
    ],
)
def test_what_has_another_reason_convicts_nobody(seen: GpuFacts) -> None:
    """Power caps, idleness, heat, rounding and silence are not someone else's lock."""
    found = looks(LOCKED, seen, 10)
    assert not found.watch.blocked
    assert found.held == LOCKED


def test_a_reloaded_driver_is_told_from_a_foreign_hand_by_its_counter() -> None:
    """The counter fell and the limit is the default again: nobody wrote, the driver forgot."""
    held = replace(CAPPED, lock_mhz=1200)
    watch = GpuWatch(energy_mj=9_000_000)
    found = look(held, watch, facts(energy_mj=10, sm_mhz=1980), 100.0)
    assert not found.watch.blocked
    assert found.held == LOCKED
    assert found.repeat
    assert "was reloaded" in found.note


def test_a_counter_that_only_was_reset_keeps_what_is_ours() -> None:
    """Sabotaged twin: if a fallen counter alone meant a reload, our cap would stay for ever."""
    found = look(
        CAPPED, GpuWatch(energy_mj=9_000_000), facts(energy_mj=10, requested_w=450.0), 100.0
    )
    assert found.held == CAPPED


def test_a_write_whose_end_is_unknown_convicts_nobody() -> None:
    """Between two of our writes the board may have either value."""
    held = replace(CAPPED, set_w=400.0, prior_w=700.0)
    assert not looks(held, facts(requested_w=700.0), 3).watch.blocked
    assert looks(held, facts(requested_w=650.0), 1).watch.blocked
