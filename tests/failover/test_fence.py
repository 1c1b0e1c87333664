"""A daemon that was stopped, and goes on when another one leads, writes nothing any more."""

import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.clocks import SteppedClock
from tests.daemon.process import SETTINGS, DaemonProcess, daemon
from tests.daemon.test_wiring import Start, clock, register, serve, start  # noqa: F401 (fixtures)
from tests.daemon.waiting import wait_for
from tests.daemon.whole.test_life import CARBON
from tests.failover import unfenced
from wattmesh.controller.daemon.wiring import Parts
from wattmesh.controller.journal.leadership import Leadership
from wattmesh.errors import WattmeshError
from wattmesh.integrations.carbon.grid_server import GridServer

BUDGET = '[budget.cluster]\ngrams = 10.0\nperiod = "day"\n'
NESO = '[carbon.accounting]\nprovider = "neso"\nzone = "GB"\nbase_url = "{base}"\n'
WRITES = ("accounts", "carbon csv:GB:average:direct:CO2", "periods", "retention")
"""Loops and jobs that have something to write in what follows."""

NO_WRITES = {"certificate"}
"""Jobs that need no fence."""


def rows(journal: Path) -> dict[str, list[Any]]:
    """Read every table of a journal."""
    with closing(sqlite3.connect(journal)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: sorted(connection.execute(f'SELECT * FROM "{name}"'), key=repr)
            for (name,) in names.fetchall()
        }


def jobs(parts: Parts) -> dict[str, Callable[[], None]]:
    """Give what each job calls."""
    parts._housekeeping()
    parts._schedule()
    return {job.id: job.args[1] for job in parts.jobs._scheduler.get_jobs()}


@pytest.fixture
def stopped(start: Start, clock: SteppedClock, tmp_path: Path) -> Parts:  # noqa: F811
    """A daemon that led for a day and does not know yet that another one took the lead."""
    parts = start(more=CARBON + BUDGET)
    serve(parts)
    register(parts)
    jobs(parts)[WRITES[1]]()
    parts.journal.events.add("old", "beyond its retention", clock.wall - timedelta(days=1000))
    for _ in range(3):
        parts.sampler.turn()
        clock.pass_s(3600.0)
    leadership, lead = parts.journal.leadership, parts.loop_facts.lead
    assert lead.epoch is not None
    leadership.release(lead.leader, lead.epoch)
    assert leadership.acquire("another", 60.0) == lead.epoch + 1
    clock.pass_s(86_400.0)
    return parts


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "twin: unfenced"])
@pytest.mark.parametrize("name", WRITES)
def test_no_loop_writes_in_the_epoch_of_another(
    stopped: Parts, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, fenced: bool
) -> None:
    """Each begins a whole turn, in the belief that it leads. Without the fence, rows change."""
    if not fenced:
        monkeypatch.setattr(Leadership, "acting", lambda *_: nullcontext())
    loops = {"accounts": stopped.accounts.turn}
    before = rows(tmp_path / "journal.db")
    with suppress(WattmeshError):  # the recording is over by now, which it writes down
        (loops | jobs(stopped))[name]()
    assert (rows(tmp_path / "journal.db") == before) == fenced
    assert not any(loop.state.bugs for loop in stopped.loops)


def test_every_job_is_fenced_or_known_to_write_nothing(stopped: Parts) -> None:
    """So is one that somebody adds."""
    unknown = {name for name, work in jobs(stopped).items() if "Fence.of" not in work.__qualname__}
    assert unknown == NO_WRITES


@dataclass(slots=True, kw_only=True)
class HeldServer(GridServer):
    """Answers once it is told to."""

    go: threading.Event = field(default_factory=threading.Event)

    def answer(self, service: Any, request: Any) -> Any:
        """Wait, then answer as ever."""
        self.go.wait(180.0)
        return GridServer.answer(self, service, request)


def stop_between_writes(stopped: DaemonProcess) -> None:
    """Stop a daemon with a signal, outside a transaction: that would keep everybody from writing.

    A server ends such a transaction itself; a file's lock stays.
    """

    def stood() -> bool:
        stopped.process.send_signal(signal.SIGSTOP)
        with closing(sqlite3.connect(stopped.folder / "journal.db", timeout=1.0)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                stopped.process.send_signal(signal.SIGCONT)
                return False
        return True

    wait_for(stood, "a moment without a transaction")


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "twin: unfenced"])
def test_a_poll_that_was_stopped_by_a_signal_stores_nothing(
    tmp_path: Path, *, fenced: bool
) -> None:
    """Real daemons: one stands still in the middle of a poll, another leads, the first goes on."""
    folders = [tmp_path / each for each in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    url = f"{folders[0]}/journal.db"
    grid = HeldServer()
    with grid.serving():
        signals = NESO.format(base=grid.base("neso"))
        module = "wattmesh.controller.daemon" if fenced else unfenced.__name__
        with daemon(folders[0], signals, module=module) as one:
            wait_for(lambda: grid.count("neso"), "the first request of a poll")
            stop_between_writes(one)
            text = SETTINGS.format(folder=folders[1], more="")
            text = text.replace(f"{folders[1]}/journal.db", url)
            with daemon(folders[1], text=text, migrated=False) as two:
                wait_for(lambda: two.status()["leading"], "another to lead")
                assert rows(folders[0] / "journal.db")["carbon_points"] == []
                grid.go.set()
                one.process.send_signal(signal.SIGCONT)
                said = "its turn ended early" if fenced else "stored"
                wait_for(lambda: said in one.log, "the end of that poll")
                found = rows(folders[0] / "journal.db")
                assert (found["carbon_points"] == []) == fenced
                assert (found["carbon_fetches"] == []) == fenced
