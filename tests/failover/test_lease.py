"""The leader's term on its own clock, and daemons whose clock is not the database's."""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.exc import DBAPIError

from tests.builders.journals import fresh
from tests.daemon.clocks import SteppedClock
from wattmesh.controller.api.request_context import RequestContext, StandsBy
from wattmesh.controller.daemon.lease import TERM_SHARE, Lease
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.leadership import SILENT_S, check_epoch
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.process.change_signal import ChangeSignal
from wattmesh.controller.process.loops import LoopState
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.status.status import last_known
from wattmesh.errors import JournalUnavailable

LEASE_S = 10.0


class Daemon:
    """The lease of one daemon, and what its handlers ask."""

    def __init__(self, journal: Journal, name: str) -> None:
        """Stand by under a name."""
        self.clock = SteppedClock()
        self.clock.wall = datetime.now(UTC)
        self.loop_facts = LoopFacts(clock=self.clock.clock, settings=Settings(), started_s=0.0)
        self.lease = Lease(
            journal.leadership,
            self.loop_facts,
            name,
            LEASE_S,
            lambda _: None,
            liveness=journal.runs.liveness,
        )
        self.context = RequestContext(
            journal=journal,
            loop_facts=self.loop_facts,
            changes=ChangeSignal(),
            plan_for=lambda _: RunPlan(),
            wake=lambda: None,
        )


@pytest.fixture
def server(postgresql_url: str) -> Iterator[Journal]:
    """A journal on PostgreSQL."""
    with closing(fresh(postgresql_url)) as opened:
        yield opened


def test_a_leader_that_cannot_renew_acts_no_longer_than_its_term(sqlite_journal: Journal) -> None:
    """By its own monotonic clock, a margin before another may lead; heartbeats are still heard."""
    one = Daemon(sqlite_journal, "one")
    one.lease.turn()
    one.clock.pass_s(LEASE_S * TERM_SHARE - 0.1)
    assert one.context.act() == 1
    one.clock.pass_s(0.1)
    with pytest.raises(StandsBy, match="another one may lead by now"):
        one.context.act()
    assert not one.loop_facts.leading
    one.loop_facts.loops["cycle"] = lambda: LoopState(name="cycle", every_s=5.0)
    told = last_known(one.loop_facts, None, unanswered_s=LEASE_S)
    assert (told.leading, told.epoch) == (False, 1), "nor does its screen claim to lead"
    assert one.context.lead() == 1
    one.lease.turn()
    assert one.context.act() == 1


def test_a_turn_that_fails_prolongs_no_term(sqlite_journal: Journal) -> None:
    """A journal that is away renews nothing, however often it is asked."""
    one = Daemon(sqlite_journal, "one")
    one.lease.turn()
    sqlite_journal.database.admit_by(away, "")
    for _ in range(3):
        one.clock.pass_s(LEASE_S / 3)
        with pytest.raises(JournalUnavailable):
            one.lease.turn()
    with pytest.raises(StandsBy):
        one.context.act()


def away(_: object) -> None:
    """A database that does not answer."""
    raise JournalUnavailable("it is away")


@pytest.mark.parametrize("days", [400, -400])
def test_a_daemon_whose_clock_is_wrong_does_not_take_the_lead(server: Journal, days: int) -> None:
    """It says so in one sentence, and leads as soon as the clock is right."""
    one = Daemon(server, "one")
    one.clock.wall += timedelta(days=days)
    one.lease.turn()
    assert one.loop_facts.lead.epoch is None
    way = "ahead of" if days > 0 else "behind"
    assert f"clock is 400 d {way} the database's" in one.loop_facts.trusted.doubt()
    one.clock.wall = datetime.now(UTC)
    one.clock.pass_s(0.0)
    one.lease.turn()
    assert one.loop_facts.lead.epoch == 1


def test_a_leader_whose_clock_goes_wrong_keeps_the_lead_and_closes_nothing(
    server: Journal,
) -> None:
    """It goes on, because nobody else might; what is final waits. The twin beside it takes over."""
    one, two = Daemon(server, "one"), Daemon(server, "two")
    one.lease.turn()
    one.clock.wall += timedelta(hours=2)
    one.lease.turn()
    assert one.context.act() == 1
    assert one.loop_facts.trusted.doubt()
    two.lease.turn()
    assert two.loop_facts.lead.epoch is None
    one.lease.release()
    one.loop_facts.lead = replace(one.loop_facts.lead, epoch=None)
    one.lease.turn()
    assert one.loop_facts.lead.epoch is None
    two.lease.turn()
    assert two.loop_facts.lead.epoch == 2


def test_a_leader_that_says_nothing_in_a_transaction_loses_the_row(server: Journal) -> None:
    """The server ends a session that holds the lease's row in silence, and another may lead."""
    epoch = server.leadership.acquire("one", 0.1)
    assert epoch is not None
    silent = server.database.engine.connect()
    check_epoch(silent, epoch)
    shown = silent.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()
    assert shown == f"{SILENT_S}s"
    assert server.leadership.acquire("two", 60.0) == epoch + 1
    with pytest.raises(DBAPIError):
        silent.exec_driver_sql("SELECT 1")
    with suppress(DBAPIError):
        silent.close()
    with server.database.writing() as connection:
        kept = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar()
    assert kept == "30s", "only who holds the row must not be silent"
