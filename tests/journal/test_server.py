"""A PostgreSQL server that ends our connections, holds a lock, or is not there."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from tests import postgresql
from tests.builders.journals import fresh
from tests.builders.runs import T0, register
from wattmesh.controller.journal.database import engine
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import JournalUnavailable


@pytest.fixture
def server(postgresql_url: str) -> Iterator[Journal]:
    """A journal on PostgreSQL."""
    with closing(fresh(postgresql_url)) as opened:
        yield opened


def address(journal: Journal) -> str:
    """Give the journal's address as psycopg takes it."""
    url = journal.database.url
    return f"host={url.query['host']} user={url.username} dbname={url.database}"


def test_connections_that_the_server_ended_are_opened_anew(
    server: Journal, postgresql_server: postgresql.Server
) -> None:
    """A restart of the server costs no report: each connection is tried before it is used."""
    register(server)
    postgresql_server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{server.database.url.database}'"
    )
    assert len(server.runs.all(T0)) == 1


def test_a_lock_that_another_holds_is_said_and_passes(
    server: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting ends after the same time as on SQLite, with the same sentence."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 1.0)
    impatient = Journal.open(server.database.url.render_as_string(hide_password=False))
    with psycopg.connect(address(server)) as other:
        other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(JournalUnavailable, match="is locked by another process"):
            register(impatient)
    register(impatient)
    impatient.close()


def test_a_server_that_hangs_is_waited_for_so_long_and_no_longer(
    server: Journal, postgresql_server: postgresql.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes our bytes and never answers: one sentence after the limit, and it comes back."""
    monkeypatch.setattr(engine, "ANSWER_LIMIT_S", 0.5)
    monkeypatch.setattr(engine, "CONNECT_TIMEOUT_S", 2)
    hasty = Journal.open(server.database.url.render_as_string(hide_password=False))
    with postgresql_server.hanging(), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(hasty.events.list)
        while hasty.database.unanswered_s() == 0.0:
            assert not asked.done()
        with pytest.raises(JournalUnavailable, match=r"does not answer \(.*timeout expired"):
            asked.result()
    assert hasty.database.unanswered_s() == 0.0
    assert hasty.events.list() == ()
    hasty.close()


def test_sums_see_one_state_of_the_journal(server: Journal) -> None:
    """What another commits between two queries of one reading is not seen by the second."""
    with server.database.reading() as connection:
        count = "SELECT count(*) FROM events"
        assert connection.exec_driver_sql(count).scalar() == 0
        server.events.add("between", "committed by another connection", T0)
        assert connection.exec_driver_sql(count).scalar() == 0
    assert len(server.events.list()) == 1


def test_reading_cannot_write(server: Journal) -> None:
    """The sabotaged twin of every query: the server itself refuses."""
    with (
        pytest.raises(JournalUnavailable, match="read-only transaction"),
        server.database.reading() as connection,
    ):
        connection.exec_driver_sql("DELETE FROM events")


def test_a_database_that_does_not_exist_is_said(postgresql_server: postgresql.Server) -> None:
    """The server answers, but has no such database."""
    with pytest.raises(JournalUnavailable, match="create it"):
        Journal.open(postgresql_server.url("nowhere"))


def test_a_commit_is_on_disk_whatever_the_servers_default(server: Journal) -> None:
    """Synchronous commit is asked for by every connection."""
    with server.database.writing() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_a_server_that_refuses_says_what_would_help(
    server: Journal, postgresql_server: postgresql.Server
) -> None:
    """A user without rights, an unknown one, a database that takes nobody: no word of a folder."""
    database = server.database.url.database
    whole = server.database.url
    postgresql_server.execute("DROP ROLE IF EXISTS poor")
    postgresql_server.execute("CREATE ROLE poor LOGIN")

    def said(user: str = "wattmesh") -> str:
        url = whole.set(username=user).render_as_string(hide_password=False)
        with pytest.raises(JournalUnavailable) as raised:
            Journal.open(url)
        return str(raised.value)

    try:
        assert "refuses us" in said("poor")
        assert "OWNER" in said("poor")
        assert "journal.password_file" in said("nobody-knows-me")
        postgresql_server.execute(f"ALTER DATABASE {database} CONNECTION LIMIT 0")
        assert "takes no connection" in said("poor")
        postgresql_server.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
        assert "takes no connection" in said("poor")
    finally:
        postgresql_server.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
        postgresql_server.execute(f"ALTER DATABASE {database} CONNECTION LIMIT -1")
        postgresql_server.execute("DROP ROLE poor")


def test_a_replica_is_named_as_one(server: Journal) -> None:
    """What takes no writes is a replica: the setting that names the primary."""

    def write() -> None:
        with server.database.writing() as connection:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
            connection.exec_driver_sql("DELETE FROM runs")

    with pytest.raises(JournalUnavailable, match=r"name the primary in journal\.url"):
        write()
