"""One leader at a time, and an epoch that rises with every new one."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import Fenced


def test_a_held_lease_is_not_given_twice(journal: Journal) -> None:
    """The holder itself may take it again under the same epoch."""
    assert journal.leadership.acquire("one", 60.0) == 1
    assert journal.leadership.acquire("two", 60.0) is None
    assert journal.leadership.acquire("one", 60.0) == 1
    assert journal.leadership.renew("one", 1, 60.0)
    assert not journal.leadership.renew("two", 1, 60.0)


def test_an_expired_lease_goes_to_the_next_with_a_higher_epoch(journal: Journal) -> None:
    """And the one before cannot renew it."""
    assert journal.leadership.acquire("one", 60.0) == 1
    journal.leadership.release("one", 1)
    row = journal.leadership.current()
    assert row is not None
    assert row.expired
    assert abs(datetime.now(UTC) - row.expires_at) < timedelta(minutes=1), "until when it led"
    assert journal.leadership.acquire("two", 60.0) == 2
    assert not journal.leadership.renew("one", 1, 60.0)


def test_a_lease_from_a_clock_that_was_stepped_back_does_not_hold(journal: Journal) -> None:
    """Nobody takes a lease for so long: its holder died while the clock was an hour ahead."""
    assert journal.leadership.current() is None
    assert journal.leadership.acquire("one", 3610.0) == 1
    assert journal.leadership.acquire("two", 10.0) == 2
    assert journal.leadership.acquire("one", 10.0) is None


def test_who_led_before_does_not_finish_what_it_began(journal: Journal) -> None:
    """Stopped between two transactions, or in one: it is not written. The twin without it is."""
    epoch = journal.leadership.acquire("one", 60.0)
    assert epoch == 1
    now = datetime(2026, 8, 27, 12, tzinfo=UTC)

    def take_over() -> int | None:
        journal.leadership.release("one", 1)
        return journal.leadership.acquire("two", 60.0)

    with journal.leadership.acting(epoch), ThreadPoolExecutor() as another:
        journal.ledger.close_run("a", {}, now)
        assert another.submit(take_over).result() == 2
        with pytest.raises(Fenced):
            journal.ledger.close_run("b", {}, now)
    assert set(journal.ledger.closed_runs()) == {"a"}
    journal.ledger.close_run("c", {}, now)
    assert set(journal.ledger.closed_runs()) == {"a", "c"}


def test_who_does_not_know_who_leads_writes_nothing(journal: Journal) -> None:
    """Before anybody led it may; once one has led, only in the epoch that was read."""
    now = datetime(2026, 8, 27, 12, tzinfo=UTC)
    assert journal.leadership.epoch() == 0
    with journal.leadership.acting(0):
        journal.ledger.close_run("a", {}, now)
    assert journal.leadership.acquire("one", 60.0) == journal.leadership.epoch() == 1
    for unknown in (None, 0):
        with journal.leadership.acting(unknown), pytest.raises(Fenced):
            journal.ledger.close_run("b", {}, now)
    with journal.leadership.acting(1):
        journal.ledger.close_run("c", {}, now)
    assert set(journal.ledger.closed_runs()) == {"a", "c"}
