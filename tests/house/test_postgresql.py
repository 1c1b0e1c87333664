"""The PostgreSQL fixture gives empty databases and leaves nothing behind."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests import postgresql


def test_journal_address_answers(journal_url: str) -> None:
    """The address of either kind opens and is empty."""
    engine = create_engine(journal_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE only_mine (n integer)"))
    engine.dispose()


def test_journal_address_is_fresh(journal_url: str) -> None:
    """A second test does not see the first one's table, so the same name is free again."""
    engine = create_engine(journal_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE only_mine (n integer)"))
    engine.dispose()


def test_server_stops_with_its_block() -> None:
    """Process and folder are gone when the block ends."""
    programs = postgresql.find_programs()
    if programs is None:
        pytest.skip(postgresql.MISSING)
    with postgresql.running(programs) as server:
        assert Path(f"/proc/{server.process_id}").exists()
    assert not Path(f"/proc/{server.process_id}").exists()
    assert not server.socket_folder.exists()
