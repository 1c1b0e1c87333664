"""What tests of carbon signals open."""

import pytest

from wattmesh.controller.journal.journal import Journal


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """An empty journal, on one database: its tables are the business of tests/journal."""
    return sqlite_journal
