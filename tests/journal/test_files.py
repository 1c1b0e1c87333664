"""SQLite files that are replaced, damaged, or on a disk that is full."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.builders.journals import fresh_file
from tests.builders.runs import T0, register
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import JournalUnavailable

MANY_PAGES = 1_000_000


def kinds(path: Path) -> list[str]:
    """Read the events of a file with SQLite alone."""
    connection = sqlite3.connect(path)
    found = [row[0] for row in connection.execute("SELECT kind FROM events ORDER BY id")]
    connection.close()
    return found


def test_what_is_acknowledged_is_in_the_file_at_the_path(tmp_path: Path) -> None:
    """Another file was put in its place: later commits go there, not to the one moved away."""
    path, other = tmp_path / "journal.db", tmp_path / "other.db"
    journal = fresh_file(path)
    fresh_file(other).close()
    journal.events.add("before", "in the first file", T0)
    journal.events.list()
    path.rename(tmp_path / "moved.db")
    for tail in ("-wal", "-shm"):
        path.with_name(path.name + tail).rename(tmp_path / f"moved.db{tail}")
    other.rename(path)
    journal.events.add("after", "in the second", T0)
    assert [each.kind for each in journal.events.list()] == ["after"]
    journal.close()
    assert kinds(path) == ["after"]
    assert kinds(tmp_path / "moved.db") == ["before"]


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    """Bytes that are no database: a good copy must be put in its place."""
    path = tmp_path / "journal.db"
    fresh_file(path).close()
    size = path.stat().st_size
    path.write_bytes(os.urandom(size))
    with pytest.raises(JournalUnavailable, match=r"is damaged .* put a good copy"):
        Journal.open(f"sqlite:///{path}")


class SmallDisk:
    """A file system of one MiB; where we may mount none, SQLite's page limit stands for it."""

    def __init__(self, folder: Path) -> None:
        """Mount it, if we may."""
        self.folder = folder
        self._ballast = folder / "ballast"
        self._pages = MANY_PAGES
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0

    def crowd(self, journal: Journal) -> None:
        """Leave little space."""
        if self.mounted:
            self._ballast.write_bytes(bytes(shutil.disk_usage(self.folder).free // 2))
            return
        event.listen(journal.database.engine, "checkout", self._limit)
        with journal.database.reading() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        self._pages = pages + 50

    def relieve(self) -> None:
        """Give the space back."""
        self._pages = MANY_PAGES
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)

    def _limit(self, connection: Any, _record: object, _proxy: object) -> None:
        connection.execute(f"PRAGMA max_page_count={self._pages}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk that is easily filled."""
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = SmallDisk(folder)
    yield disk
    disk.close()


def fill(journal: Journal) -> int:
    """Add events until the disk is full; give how many were acknowledged."""
    for number in range(10_000):
        try:
            journal.events.add(f"e{number}", "x" * 2000, T0)
        except JournalUnavailable as error:
            assert "its disk is full; free some space there" in str(error)  # noqa: PT017
            return number
    raise AssertionError("the disk never filled")


def test_a_full_disk_loses_nothing_that_was_acknowledged(small_disk: SmallDisk) -> None:
    """It is said; when there is space again, everything is there and writing goes on."""
    path = small_disk.folder / "journal.db"
    journal = fresh_file(path)
    register(journal)
    small_disk.crowd(journal)
    acknowledged = fill(journal)
    assert acknowledged > 0
    assert len(journal.runs.all(T0)) == 1  # reading goes on
    small_disk.relieve()
    journal.events.add("after", "works again", T0)
    journal.close()
    assert kinds(path) == [*(f"e{number}" for number in range(acknowledged)), "after"]
