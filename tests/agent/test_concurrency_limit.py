"""The calls that one node's relay passes on at the same time, in all and of one user."""

from wattmesh.controller.agent.relay import MOST_CALLS, MOST_CALLS_PER_USER
from wattmesh.telemetry.concurrency_limit import ConcurrencyLimit


def test_one_users_waiting_calls_leave_room_for_others() -> None:
    """260 of one user take a user's share and no more; what is given back can be taken again."""
    places = ConcurrencyLimit(MOST_CALLS, MOST_CALLS_PER_USER)
    assert sum(places.take(1003) for _ in range(260)) == MOST_CALLS_PER_USER
    assert places.take(1001)
    places.give_back(1003)
    assert places.take(1003)
    assert not places.take(1003)
    others = sum(places.take(uid) for uid in range(2000, 2600))
    assert others == MOST_CALLS - MOST_CALLS_PER_USER - 1
    assert not places.take(1001)
