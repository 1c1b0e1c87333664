"""PostgreSQL absent at first, without our tables, hanging, locked: one daemon lives through all."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests import postgresql
from tests.builders import messages
from tests.daemon.process import SETTINGS, Answer, DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from tests.daemon.whole.test_faults import report
from wattmesh.migrations.upgrade import upgrade

CROWD = 40
PATIENCE_S = 20.0
"""Less than any limit after which the journal itself is given up: only memory answers sooner."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-away-") as name:
        yield Path(name)


def settings(folder: Path, url: str) -> str:
    """Settings of a daemon whose journal is that database."""
    return SETTINGS.format(folder=folder, more="").replace(f"sqlite:///{folder}/journal.db", url)


def status(running: DaemonProcess) -> Answer:
    """Ask for the screen, and wait for no database."""
    return running.get("/v1/status", timeout_s=PATIENCE_S)


def test_a_daemon_waits_for_its_database_and_outlives_it(
    folder: Path, postgresql_server: postgresql.Server
) -> None:
    """READY without it, then every state is said with what to do, and it goes on by itself."""
    away = folder / "pg"
    with postgresql_server.fresh_database() as url:
        elsewhere = url.replace(str(postgresql_server.socket_folder), str(away))
        with daemon(folder, text=settings(folder, elsewhere)) as running:
            absent(running)
            away.symlink_to(postgresql_server.socket_folder)
            said = "has no tables yet: run `wattmesh db upgrade`"
            wait_for(lambda: said in str(running.status()["trouble"]), "the empty database")
            assert register_status(running) == 503
            upgrade(url)
            wait_for(lambda: running.get("/readyz").status == 200, "readyz")
            running.register()
            wait_for(lambda: running.status()["runs"], "the run on the screen")
            assert running.status()["trouble"] == []
            with postgresql_server.hanging():
                hangs(running)
            wait_for(lambda: running.get("/readyz").status == 200, "readyz after the hang")
            wait_for(lambda: running.status()["journal"]["state"] == "ok", "a fresh screen")
            with psycopg.connect(str(make_url(url).set(drivername="postgresql"))) as other:
                other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
                hangs(running)
            wait_for(lambda: running.get("/readyz").status == 200, "readyz to recover")
            wait_for(lambda: report(running, 7) == 200, "reports to be taken")
            wait_for(lambda: running.status()["runs"][0]["step"] == 7, "a fresh screen")
            assert running.stop() == 0
            assert "bug" not in running.log


def register_status(running: DaemonProcess) -> int:
    """Let a run introduce itself; give the status."""
    return running.post(f"/v1/runs/{messages.RUN}/register", messages.register()).status


def absent(running: DaemonProcess) -> None:
    """It serves, says what is wrong everywhere, and takes no report."""
    running.wait_told("STATUS=Holding every run: the journal postgresql")
    assert running.get("/healthz").status == 200
    assert running.get("/readyz").status == 503
    view = status(running).body
    assert view["never_read"]
    assert view["journal"]["state"] == "unavailable"
    assert "does not answer" in view["trouble"][0]
    assert "wattmesh goes on by itself" in view["trouble"][0]
    assert register_status(running) == 503


def hangs(running: DaemonProcess) -> None:
    """The first screen comes from memory, and so do those of a crowd; heartbeats are taken."""
    first = status(running).body
    assert first["journal"]["state"] in ("slow", "unavailable")
    words = ("has not answered", "does not answer", "is locked")
    assert any(each in str(first["trouble"]) for each in words)
    assert [each["name"] for each in first["runs"]] == ["llama-8b"]
    with ThreadPoolExecutor(CROWD) as pool:
        answers = list(pool.map(lambda _: status(running), range(CROWD)))
    assert {each.status for each in answers} == {200}
    beaten = running.post(f"/v1/runs/{messages.RUN}/heartbeat", messages.heartbeat())
    assert beaten.status == 200
    assert running.get("/healthz").status == 200
