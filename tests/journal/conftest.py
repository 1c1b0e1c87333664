"""A migrated journal of each kind."""

from collections.abc import Iterator

import pytest

from wattmesh.controller.journal.journal import Journal
from wattmesh.migrations.upgrade import upgrade


@pytest.fixture
def journal(journal_url: str) -> Iterator[Journal]:
    """An empty journal at the head revision."""
    upgrade(journal_url)
    opened = Journal.open(journal_url)
    yield opened
    opened.close()
