"""A migrated journal of each kind."""

from collections.abc import Iterator

import pytest

from tests.migrated import migrate
from wattmesh.controller.journal.journal import Journal


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    """An empty journal at the head revision."""
    migrate(journal_url)
    opened = Journal.open(journal_url)
    yield opened
    opened.close()
