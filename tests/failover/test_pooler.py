"""The journal through a real pgbouncer in transaction mode: as without it."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import make_url

from tests import pgbouncer, postgresql
from tests.builders.runs import T0, register
from wattmesh.controller.journal.journal import Journal
from wattmesh.migrations.upgrade import current, upgrade

DROPS = "ignore_startup_parameters = options"
"""How many sites have it; without it pgbouncer refuses what we ask for."""


@pytest.fixture(params=["", DROPS], ids=["refuses", "drops"])
def pooler(
    request: pytest.FixtureRequest, postgresql_server: postgresql.Server
) -> Iterator[postgresql.Server]:
    """A pooler that refuses settings of a session, and one that drops them."""
    if pgbouncer.program() is None:
        pytest.skip(pgbouncer.MISSING)
    with pgbouncer.before(postgresql_server, request.param) as made:
        yield made


def test_every_transaction_has_its_limits_and_commits_on_disk(
    pooler: postgresql.Server, postgresql_url: str
) -> None:
    """On whichever session it runs; and no statement is prepared in one and used in another."""
    name = make_url(postgresql_url).database or ""
    upgrade(pooler.url(name))
    assert current(pooler.url(name)) == current(postgresql_url)
    with closing(Journal.open(pooler.url(name))) as journal:
        shown = [f"SHOW {each}" for each in ("lock_timeout", "synchronous_commit")]
        for _ in range(12):  # psycopg prepares what is asked for the sixth time
            with (
                journal.database.writing() as one,
                journal.database.reading() as two,
            ):
                assert [one.exec_driver_sql(each).scalar() for each in shown] == ["5s", "on"]
                assert [two.exec_driver_sql(each).scalar() for each in shown] == ["5s", "on"]
        register(journal)
        assert len(journal.runs.all(T0)) == 1
        epoch = journal.leadership.acquire("one", 60.0)
        assert epoch == 1
        assert journal.leadership.renew("one", epoch, 60.0)


def test_settings_of_a_session_alone_would_be_lost(pooler: postgresql.Server) -> None:
    """The sabotaged twin: asked for as to a server, they are refused or dropped."""
    asked = f"{pooler.conninfo('postgres')} options='-c lock_timeout=5s'"
    try:
        with psycopg.connect(asked) as connection:
            row = connection.execute("SHOW lock_timeout").fetchone()
    except psycopg.OperationalError as error:
        row = (str(error),)
    assert row is not None
    assert row[0] == "0" or "unsupported startup parameter" in row[0]
