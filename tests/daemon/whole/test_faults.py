"""The database locked, full or gone under a running daemon: it lives, says so, and recovers."""

import http.client
import os
import re
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.builders import messages
from tests.builders.journals import empty_journal, put_back_to_0006
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from wattmesh import durable

ORDER = f"/v1/runs/{messages.RUN}/order"


def report(running: DaemonProcess, seq: int) -> int:
    """Send one report; give its status."""
    return running.post(
        f"/v1/runs/{messages.RUN}/progress", messages.progress(seq=seq, step=seq)
    ).status


def figures(running: DaemonProcess) -> str:
    """Scrape the daemon's metrics."""
    port = re.search(r"metrics on http://127.0.0.1:(\d+)/metrics", running.log)
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=10)
    connection.request("GET", "/metrics")
    said = connection.getresponse().read().decode()
    connection.close()
    return said


def suffers(running: DaemonProcess, words: str) -> None:
    """The daemon says what is wrong everywhere a person or a machine looks, and serves on."""
    wait_for(lambda: running.get("/readyz").status == 503, "readyz to notice")
    view = running.status()
    assert view["journal"]["state"] == "unavailable"

    def told() -> bool:
        return any(
            words in each and "runs train on" in each for each in running.status()["trouble"]
        )

    # What came first may be another symptom: files are moved one after the other.
    wait_for(told, "the sentence among the troubles")
    wait_for(lambda: words in running.status()["cycle"]["sentence"], "the cycle's sentence")
    assert running.get("/healthz").status == 200
    assert "wattmesh_journal_up 0.0" in figures(running)
    assert view["runs"][0]["name"] == "llama-8b"
    assert running.get(ORDER).status == 200
    assert report(running, 99) == 503


def recovers(running: DaemonProcess) -> None:
    """Without a restart everything works again, and reports are taken."""
    wait_for(lambda: running.get("/readyz").status == 200, "readyz to recover")
    wait_for(lambda: report(running, 100) == 200, "reports to be taken")
    wait_for(lambda: running.status()["trouble"] == [], "the trouble to end")
    assert "wattmesh_journal_up 1.0" in figures(running)

    def told() -> bool:
        events = running.get("/v1/events").body["events"]
        return any("The journal answers again; it had not for" in each["detail"] for each in events)

    wait_for(told, "the event that it answers again")
    assert running.stop() == 0
    assert "bug" not in running.log


def test_a_locked_database(tmp_path: Path) -> None:
    """Another process holds the write lock: reports get 503, and reading goes on."""
    with daemon(tmp_path) as running:
        running.register()
        figures(running)
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        suffers(running, "is locked by another process")
        other.execute("ROLLBACK")
        other.close()
        recovers(running)


def test_a_journal_that_another_process_has_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """READY without it; let go, it is taken over, brought up to date, and kept for the daemon."""
    path = tmp_path / "journal.db"
    path.write_bytes(empty_journal())
    with closing(sqlite3.connect(path)) as other, other:
        put_back_to_0006(other)
    restoring = durable.hold(path)
    with daemon(tmp_path) as running:
        view = running.status()
        assert view["journal"]["state"] == "unavailable"
        assert f"is being restored by process {os.getpid()}" in view["trouble"][0]
        assert "goes on by itself" in view["trouble"][0]
        assert running.get("/readyz").status == 503
        restoring.close()
        wait_for(lambda: running.get("/readyz").status == 200, "readyz")
        running.register()
        with pytest.raises(durable.Held):
            durable.hold(path)
        assert running.stop() == 0
        assert "bug" not in running.log


def test_a_database_that_is_taken_away(tmp_path: Path) -> None:
    """The file is moved away and put back: no empty journal is born in its place."""
    with daemon(tmp_path) as running:
        running.register()
        wait_for(lambda: running.status()["runs"] and "cycle: llama-8b" in running.log, "the run")
        names = [each for each in tmp_path.glob("journal.db*")]
        for each in names:
            each.rename(each.with_name(f"away-{each.name}"))
        suffers(running, "is gone; put the file")
        assert not (tmp_path / "journal.db").exists()
        for each in names:
            each.with_name(f"away-{each.name}").rename(each)
        recovers(running)


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """Writes fail in the file system: nothing is acknowledged that is not on disk."""
    with daemon(tmp_path) as running:
        running.register()
        assert report(running, 1) == 200
        running.status()
        pid = running.process.pid
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, most))
        suffers(running, "journal")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        recovers(running)


def test_nothing_acknowledged_is_lost_when_it_is_killed_in_an_outage(tmp_path: Path) -> None:
    """Killed while the database is locked: the next daemon has exactly what was acknowledged."""
    with daemon(tmp_path) as running:
        running.register()
        assert report(running, 7) == 200
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert report(running, 8) == 503
        running.stop(9)
        other.execute("ROLLBACK")
        other.close()
    with daemon(tmp_path) as running:
        (run,) = running.status()["runs"]
        assert run["step"] == 7
        assert running.stop() == 0
