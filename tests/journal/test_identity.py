"""Which journal it is: made once, kept by every leader, and never that of a copy."""

import subprocess
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import make_url

from tests.builders.runs import order, put_order
from tests.postgresql import Server, find_programs
from wattmesh.controller.journal.database import identity
from wattmesh.controller.journal.database.identity import APART
from wattmesh.controller.journal.database.values import to_us
from wattmesh.controller.journal.energy.coverage import extend
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import Fenced, RetryLater
from wattmesh.migrations.upgrade import upgrade
from wattmesh.telemetry.energy.ledger import CounterBaseline, Span
from wattmesh.telemetry.energy.unobserved import unread


def test_the_first_leader_makes_it_and_every_other_keeps_it(journal: Journal) -> None:
    """A UUID; before anybody led there is none."""
    assert identity.read(journal.database).journal == ""
    assert journal.leadership.acquire("one", 60.0) == 1
    made = journal.leadership.journal
    assert str(uuid.UUID(made)) == made
    journal.leadership.release("one", 1)
    other = Journal(journal.database)
    assert other.leadership.acquire("two", 60.0) == 2
    assert other.leadership.journal == made
    assert identity.read(journal.database).epoch == 2


def test_a_copy_becomes_another_journal_and_nobody_of_before_may_write(journal: Journal) -> None:
    """Its epochs are far above, so that what fences on epochs alone (runs) takes its orders."""
    assert journal.leadership.acquire("one", 600.0) == 1
    before = journal.leadership.journal
    with pytest.raises(RetryLater, match="one leads this journal: stop every daemon"):
        identity.renew(journal.database)
    assert identity.read(journal.database).journal == before
    journal.leadership.release("one", 1)
    made = identity.renew(journal.database)
    assert made == identity.read(journal.database)
    assert (made.came_from, made.epoch) == (before, 1 + APART)
    assert made.journal not in ("", before)
    with pytest.raises(Fenced):
        put_order(journal, order(1))
    assert journal.leadership.acquire("one", 60.0) == 2 + APART
    assert journal.leadership.journal == made.journal


def test_what_was_booked_between_a_copy_and_its_restore_is_not_taken_for_read(
    journal: Journal,
) -> None:
    """A meter that goes on leaves a hole there: its joules were lost, and are not zero."""
    began = datetime.now(UTC) - timedelta(hours=3)
    copied, later = began + timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)

    def booked(until: datetime) -> tuple[Span, ...]:
        counter = CounterBaseline(
            gpu_uuid="g0",
            energy_mj=1,
            at=until,
            monotonic_s=0.0,
            boot_id="b",
            source="nvml",
            booked_mj=0,
            unobserved_ms=0,
            recovered_ms=0,
            since_us=to_us(began),
        )
        with journal.database.writing() as connection:
            extend(connection, [counter], copied_us=identity.copied_until_us(connection))
        return journal.coverage.covered()["g0"]

    journal.leadership.acquire("one", 60.0)
    journal.leadership.release("one", 1)
    assert booked(copied) == ((began, copied),)
    identity.renew(journal.database)
    first, second = booked(later)
    assert first == (began, copied)
    assert second[1] == later
    assert timedelta() <= datetime.now(UTC) - second[0] < timedelta(hours=1)
    assert unread((began, later), (first, second), later) == [(copied, second[0])]
    assert booked(later + timedelta(hours=1)) == (first, (second[0], later + timedelta(hours=1)))


def test_pg_dump_and_pg_restore_then_renew(postgresql_server: Server, postgresql_url: str) -> None:
    """The commands of docs/operations.md; what was restored has every row, and is told apart."""
    programs = find_programs()
    assert programs is not None
    upgrade(postgresql_url)
    journal = Journal.open(postgresql_url)
    journal.leadership.acquire("one", 60.0)
    journal.leadership.release("one", 1)
    put_order(journal, replace(order(1), switch_id="kept"))
    whose = journal.leadership.journal
    journal.close()
    with postgresql_server.fresh_database() as empty:
        dump = [str(programs / "pg_dump"), "--format=custom", f"--dbname={plain(postgresql_url)}"]
        load = [str(programs / "pg_restore"), "--exit-on-error", f"--dbname={plain(empty)}"]
        dumped = subprocess.run(dump, check=True, capture_output=True)
        subprocess.run(load, check=True, input=dumped.stdout)
        restored = Journal.open(empty)
        assert restored.switches.open("r") is not None
        # pg_restore alone would leave two journals of one identity.
        assert identity.read(restored.database).journal == whose
        made = identity.renew(restored.database)
        assert (made.came_from, made.journal != whose) == (whose, True)
        restored.close()


def plain(url: str) -> str:
    """Give the address as PostgreSQL's own programs take it."""
    parsed = make_url(url)
    return parsed.set(drivername="postgresql").render_as_string(hide_password=False)
