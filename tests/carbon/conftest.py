"""What tests of carbon signals open."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.migrated import empty_journal
from wattmesh.controller.journal.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An empty journal."""
    path = tmp_path / "journal.db"
    path.write_bytes(empty_journal())
    opened = Journal.open(f"sqlite:///{path}")
    yield opened
    opened.close()
