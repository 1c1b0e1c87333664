"""Wishes are repeated to the actuator, and repeating prolongs nothing."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.agent.obeying import left
from wattmesh.telemetry.desired import Desired, LeaseKind, Wish

UNTIL = datetime(2026, 12, 1, tzinfo=UTC)


def economy(gpu: str, lease_s: float) -> Wish:
    """Wish a clock for so long."""
    return Wish(gpu_uuid=gpu, kind=LeaseKind.ECONOMY, holder="run", clock_mhz=1200, lease_s=lease_s)


def duty(gpu: str) -> Wish:
    """Cap a GPU until a moment."""
    return Wish(gpu_uuid=gpu, kind=LeaseKind.OBLIGATION, holder="breaker", cap_w=400.0, until=UNTIL)


def wished(*wishes: Wish) -> Desired:
    """Wish for a node."""
    return Desired(node="n1", epoch=3, serial="s", wishes=wishes)


@given(st.floats(1.0, 1000.0), st.floats(0.0, 2000.0))
def test_a_lease_counts_from_the_moment_it_was_heard(lease_s: float, age_s: float) -> None:
    """However often it is repeated; ended, nothing is said any more."""
    found = left(wished(economy("GPU-1", lease_s), duty("GPU-2")), age_s)
    if lease_s <= age_s:
        assert found is None
        return
    assert found is not None
    (thrift, kept) = found.wishes
    assert thrift.lease_s == lease_s - age_s
    assert kept == duty("GPU-2")


def test_of_several_leases_the_ended_ones_are_left_out() -> None:
    """And the others are still said."""
    found = left(wished(economy("GPU-1", 10.0), economy("GPU-2", 60.0)), 30.0)
    assert found is not None
    assert [(wish.gpu_uuid, wish.lease_s) for wish in found.wishes] == [("GPU-2", 30.0)]


def test_what_is_not_wished_any_more_is_said_at_any_age() -> None:
    """It gives GPUs back, and prolongs nothing."""
    assert left(wished(), 1e6) == wished()
    assert left(wished(duty("GPU-1")), 1e6) == wished(duty("GPU-1"))
