"""A wall clock that is stepped, either way and back: nothing is deleted, closed or settled by it.

The whole daemon in this process over a real journal, its clocks stepped and its parts turned by
hand, as `tests/daemon/test_wiring.py` does it.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.builders import messages
from tests.builders.journals import migrate
from tests.builders.runs import order, put_order
from tests.daemon.clocks import SteppedClock
from tests.daemon.process import ask
from tests.daemon.whole.test_life import CARBON, trace
from tests.journal.test_ledger import EMISSION, ENERGY
from wattmesh.controller.daemon.loop_bodies import Housekeeping
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.daemon.wiring import Parts
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.process import kernel_clock
from wattmesh.controller.process.trusted_time import HOLD_S, MARK_S, TrustedTime
from wattmesh.controller.process.wall_clock import ClockRecord
from wattmesh.controller.settings.read import parse
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Transition

DAY_S = 86_400.0
TIME_ERROR = 5
"""What adjtimex gives of a clock that is not synchronised."""
HOUR = timedelta(hours=1)
STEPS = (3600.0, -3600.0, 400 * DAY_S, -400 * DAY_S)

SETTINGS = """\
mode = "act"
[journal]
url = "{url}"
[api]
socket = "{folder}/w.sock"
[metrics]
listen = ""
[loops]
cycle_s = 60
sample_s = 60
[budget.cluster]
grams = 100.0
period = "day"
[runs.llama-8b]
catalogue = "catalogue.toml"
deadline_after_s = 86400
"""


@dataclass(slots=True)
class Site:
    """One machine: its clocks, its journal, and the daemon that runs there now."""

    folder: Path
    url: str
    clock: SteppedClock
    parts: Parts
    periods: PeriodRoll = field(init=False)

    def __post_init__(self) -> None:
        """Make the job that has a memory."""
        self.periods = PeriodRoll(self.journal, self.parts.loop_facts)

    @property
    def journal(self) -> Journal:
        """The daemon's journal."""
        return self.parts.journal

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass and everything have a turn: leases, cycle, accounts, jobs."""
        self.clock.pass_s(seconds)
        self.parts.leases.turn()
        self.parts.cycle.turn()
        self.parts.accounts.turn()
        self.roll()

    def roll(self) -> None:
        """Let the jobs run that delete, close and settle: before any loop has looked."""
        Housekeeping(self.journal, self.parts.loop_facts).turn()
        self.periods.turn()

    def call(self, method: str, target: str, body: Any = None) -> Any:
        """Ask the daemon."""
        answer = ask(self.parts.loop_facts.settings.api.socket, method, target, body)
        assert answer.status == 200, answer.body
        return answer.body

    def trouble(self) -> str:
        """Give what status calls out."""
        return " ".join(self.call("GET", "/v1/status")["trouble"])

    def restart(self, *, kill: bool = False, reboot: bool = False) -> None:
        """End the daemon, cleanly or not, and start the next one."""
        if kill:
            self.parts.api.stop()
            self.journal.close()
        else:
            self.parts.stop()
        if reboot:
            self.clock.boot, self.clock.monotonic_s = "boot-2", 5.0
        self.parts = started(self.folder, self.url, self.clock)
        self.periods = PeriodRoll(self.journal, self.parts.loop_facts)


def started(folder: Path, url: str, clock: SteppedClock) -> Parts:
    """Start a daemon that leads and serves, every loop left to the test."""
    text = SETTINGS.format(folder=folder, url=url) + CARBON.replace("compress = 3600\n", "")
    settings = parse(text, where=folder / "wattmesh.toml")
    parts = Parts(settings, folder / "wattmesh.toml", clock.clock)
    parts.api.start()
    parts.leases.turn()
    return parts


@contextmanager
def site_at(folder: Path, url: str) -> Iterator[Site]:
    """A site with a journal of half a year, the newest slot of it measured just now."""
    clock = SteppedClock()
    (folder / "catalogue.toml").write_text(messages.CATALOGUE)
    trace(folder)
    migrate(url)
    site = Site(folder, url, clock, started(folder, url, clock))
    try:
        book(site)
        yield site
    finally:
        site.parts.stop()


@pytest.fixture
def site(tmp_path: Path, journal_url: str) -> Iterator[Site]:
    """A site on a journal of each kind."""
    with site_at(tmp_path, journal_url) as found:
        yield found


def book(site: Site) -> None:
    """Book a slot of each of the last 80 days, priced in the site's own signal, and events."""
    signals = site.parts.loop_facts.signals
    assert signals.accounting is not None
    rows = []
    for day in range(80):
        at = site.clock.wall.replace(minute=0) - day * 24 * HOUR - HOUR
        rows.append(
            replace(
                EMISSION,
                run="",
                line="idle",
                slot_start=at,
                slot_end=at + HOUR,
                signal=str(signals.accounting.signal),
                quality="measured",
            )
        )
        site.journal.events.add("old", f"day {day}", at)
    joules = [
        replace(ENERGY, run="", line="idle", slot_start=row.slot_start, slot_end=row.slot_end)
        for row in rows
    ]
    site.journal.ledger.book(joules, [])
    site.journal.ledger.emit(rows)


def kept(site: Site) -> dict[str, Any]:
    """Give everything that a wrong clock could delete, close or settle."""
    journal = site.journal
    return {
        "slots": len(journal.ledger.energy()),
        "old events": len([each for each in journal.events.list(1000) if each.kind == "old"]),
        "ended periods": sorted(
            each.detail for each in journal.events.list(1000) if each.kind == "period"
        ),
        "closed": journal.budgets.closed_after(datetime.min.replace(tzinfo=site.clock.wall.tzinfo)),
        "plans": journal.budgets.plans("cluster", site.clock.wall - timedelta(days=3000)),
    }


def test_no_step_and_back_deletes_closes_or_settles(site: Site) -> None:
    """An hour or 400 days, either way: not before a loop has looked, not meanwhile, not after.

    The twin: the same jobs do all of it where 400 days really pass.
    """
    site.turn()
    site.turn(60.0)
    before = kept(site)
    assert before["ended periods"]
    assert before["plans"]
    for step_s in STEPS:
        for each_s in (step_s, -step_s):
            site.clock.step_wall(each_s)
            site.roll()
            assert kept(site) == before, each_s
            site.turn(15.0)
            assert kept(site) == before, each_s
            way = "forward" if each_s > 0 else "back"
            assert f"The wall clock was stepped {way} by" in site.trouble()
    site.turn(HOLD_S - 60.0)
    assert "so nothing is deleted, closed or settled for" in site.trouble()
    site.turn(60.0)
    assert "stepped" not in site.trouble()
    assert kept(site) == before
    site.turn(400 * DAY_S)
    after = kept(site)
    assert after["old events"] == 0
    assert after["slots"] < before["slots"]
    assert after["ended periods"] != before["ended periods"]
    assert len(after["plans"]) > len(before["plans"])


@pytest.mark.parametrize("kill", [False, True])
def test_a_step_is_not_forgotten_by_a_restart(tmp_path: Path, kill: bool) -> None:
    """Neither after a clean stop nor after kill -9, nor over a reboot; the hour goes on."""
    with site_at(tmp_path, f"sqlite:///{tmp_path}/journal.db") as site:
        site.turn()
        site.clock.step_wall(400 * DAY_S)
        site.turn(1.0)
        before = kept(site)
        site.clock.pass_s(HOLD_S / 2)
        site.restart(kill=kill)
        site.turn()
        assert "stepped forward by 400 d" in site.trouble()
        left_s = site.parts.loop_facts.trusted.held_s()
        assert left_s == pytest.approx(HOLD_S / 2, abs=60.0)
        site.restart(kill=kill, reboot=True)
        site.turn()
        # A clean stop wrote down what was left; after kill -9 more of it may be.
        assert left_s - 1.0 <= site.parts.loop_facts.trusted.held_s() <= HOLD_S
        assert kept(site) == before
        site.turn(HOLD_S)
        assert site.parts.loop_facts.trusted.doubt() == ""
        assert kept(site) != before


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S])
def test_a_deadline_that_is_counted_from_a_launch_under_a_wrong_clock(
    tmp_path: Path, step_s: float
) -> None:
    """Put right with the clock, like all that tells when the run began.

    The twins: one that was launched before keeps its own, and one that is launched after as well.
    """
    with site_at(tmp_path, f"sqlite:///{tmp_path}/journal.db") as site:
        launched: dict[str, datetime] = {}
        for number, each_s in enumerate((0.0, step_s, -step_s)):
            site.clock.step_wall(each_s)
            site.turn(5.0)
            run = f"{messages.RUN[:-1]}{number}"
            launched[run] = site.clock.wall - timedelta(seconds=step_s * (number == 1))
            body = messages.register(run=run, incarnation=f"i{number}")
            site.call("POST", f"/v1/runs/{run}/register", body)
        site.turn(HOLD_S + MARK_S)
        site.clock.step_wall(-3600.0)
        site.turn(5.0)
        for run, at in launched.items():
            row = site.journal.runs.find(run, site.clock.wall)
            assert row is not None
            assert (row.registered_at, row.deadline) == (at, at + timedelta(seconds=DAY_S)), run
            assert site.journal.stays.of(run)[0].at == at
            (launch,) = site.journal.stays.launches(run)
            assert launch.start == at


CAP_STEPS = {
    "two hours forward": (7200.0, False),
    "400 days forward": (400 * DAY_S, False),
    "400 days forward, and a restart": (400 * DAY_S, True),
    "an hour back": (-3600.0, False),
    "400 days back, and a restart": (-400 * DAY_S, True),
}


def test_a_step_neither_ends_nor_prolongs_a_power_cap(tmp_path: Path) -> None:
    """It ends by the time that passes; one that was over does not begin anew.

    The twin: what is ordered after the step holds by the clock as it reads then.
    """
    with site_at(tmp_path, f"sqlite:///{tmp_path}/journal.db") as site:
        for name, (step_s, restart) in CAP_STEPS.items():
            site.turn()
            capped(site, 100 * DAY_S)
            site.turn(50 * DAY_S)
            assert in_force(site) == 1000.0
            site.call("POST", "/v1/powercap/end", {})
            capped(site, 1800.0)
            site.turn(1.0)
            site.clock.step_wall(step_s)
            if restart:
                site.turn(MARK_S)
                site.restart(kill=True)
            site.turn(900.0)
            assert in_force(site) == 1000.0, name
            site.turn(900.0)
            assert in_force(site) is None, name
            capped(site, 300.0)
            site.turn(200.0)
            assert in_force(site) == 1000.0, name
            assert "was ended" in site.call("POST", "/v1/powercap/end", {})["done"], name
            site.turn(1.0)
            assert in_force(site) is None, name
            site.clock.step_wall(-step_s)
            site.turn(HOLD_S + MARK_S)


def capped(site: Site, lasts_s: float) -> None:
    """Cap all boards, as an operator does who reads the clock as it is."""
    now, epoch = site.clock.wall, site.parts.loop_facts.lead.epoch or 0
    until = now + timedelta(seconds=lasts_s)
    site.journal.caps.order(1000.0, until, by="ana", reason="hot", now=now, epoch=epoch)


def in_force(site: Site) -> float | None:
    """Give what nodes are told and people are shown, which must be one story."""
    snapshot, shown = site.parts.loop_facts.snapshot, site.call("GET", "/v1/powercap")["cap"]
    told = snapshot.cap.row.cap_w if snapshot is not None and snapshot.cap is not None else None
    assert told == (shown["cap_w"] if shown else None)
    return told


AWAY = {
    "an hour forward": (3600.0, 60.0, "boot-1", "stepped forward by 1 h"),
    "an hour back": (-3600.0, 60.0, "boot-1", "stepped back by 1 h"),
    "400 days back and a day away": (-400 * DAY_S, DAY_S, "boot-1", "stepped back by 400 d"),
    "nothing": (0.0, 40 * DAY_S, "boot-1", ""),
    "a reboot": (0.0, 600.0, "boot-2", ""),
    "a reboot that lost a year": (-365 * DAY_S, 600.0, "boot-2", "earlier than the newest entry"),
    "a reboot that won a year": (365 * DAY_S, 600.0, "boot-2", "later than the newest entry"),
    "no boot is named": (-7200.0, 600.0, "", "earlier than the newest entry"),
}


def test_a_step_while_no_daemon_ran_is_noticed(tmp_path: Path) -> None:
    """By what the daemon before wrote down; where it wrote nothing, by the newest entry."""
    with site_at(tmp_path, f"sqlite:///{tmp_path}/journal.db") as site:
        site.turn()
        for name, (step_s, away_s, boot, words) in AWAY.items():
            site.clock.boot = "boot-1"
            site.restart(kill=True)
            site.turn(HOLD_S + MARK_S)
            assert site.parts.loop_facts.trusted.doubt() == "", name
            before = kept(site)
            site.clock.pass_s(away_s)
            site.clock.step_wall(step_s)
            site.clock.boot = boot
            site.clock.monotonic_s -= 0.0 if boot == "boot-1" else 9e9
            site.restart(kill=True)
            said = site.parts.loop_facts.trusted.doubt()
            assert bool(said) is bool(words), (name, said)
            assert words in said, (name, said)
            site.turn()
            assert (kept(site) == before) or not words, name
            site.clock.step_wall(-step_s)
        events = [each.detail for each in site.journal.events.list(1000)]
        assert any("while no daemon ran" in each for each in events)


def test_a_journal_without_a_mark_is_asked_for_its_newest_entry(journal_url: str) -> None:
    """One from before there were marks, or of a machine that never ran a daemon."""
    migrate(journal_url)
    journal, clock = Journal.open(journal_url), SteppedClock()
    trusted = TrustedTime(clock.clock)
    trusted.await_journal()
    assert "is not read yet" in trusted.doubt()
    trusted.keep(journal.clock_marks)
    assert trusted.doubt() == ""
    mark = journal.clock_marks.newest()
    assert mark == ClockRecord(at=clock.wall, monotonic_s=clock.monotonic_s, boot_id="boot-1")
    with journal.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM clock_marks")
    journal.events.add("x", "x", clock.wall + 400 * timedelta(days=1))
    trusted = TrustedTime(clock.clock)
    trusted.await_journal()
    trusted.keep(journal.clock_marks)
    assert "400 d earlier than the newest entry of the journal" in trusted.doubt()
    journal.close()


def test_an_unsynchronised_clock_seals_nothing(site: Site) -> None:
    """While the kernel says so; its operator may vouch for it, and silence says nothing."""
    site.turn()
    before = kept(site)
    site.clock.synchronised = False
    site.turn(100 * DAY_S)
    assert kept(site) == before
    assert "The kernel says that the wall clock is not synchronised" in site.trouble()
    settings = site.parts.loop_facts.settings
    vouched = settings.journal.model_copy(update={"trust_clock": True})
    for believed, told in (
        (settings, None),
        (settings.model_copy(update={"journal": vouched}), False),
    ):
        site.parts.loop_facts.settings, site.clock.synchronised = believed, told
        assert site.parts.loop_facts.trusted.doubt() == ""
    site.turn()
    assert kept(site) != before


def test_the_kernel_is_asked_and_where_it_may_not_be_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag itself; under a filter what timedatectl says, once a minute; else nothing."""
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    assert state < 0 or kernel_clock.flag() is (state != TIME_ERROR)
    monkeypatch.setattr(kernel_clock, "NUMBERS", {})  # as where the call is refused
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "timedatectl"
    for answer, means in (("yes", True), ("no", False), ("", None)):
        program.write_text(f"#!/bin/sh\necho {answer}\n")
        program.chmod(0o755)
        monkeypatch.setattr(kernel_clock, "_timedated", kernel_clock._Timedated())
        assert kernel_clock.synchronised() is means
        program.unlink()
        assert kernel_clock.synchronised() is means
    monkeypatch.setattr(kernel_clock, "_timedated", kernel_clock._Timedated())
    assert kernel_clock.synchronised() is None


@pytest.mark.parametrize("step_s", STEPS)
def test_a_run_lives_through_a_step_and_back(tmp_path: Path, step_s: float) -> None:
    """It stays live, keeps its deadline and its open switch, and its leader leads on."""
    with site_at(tmp_path, f"sqlite:///{tmp_path}/journal.db") as site:
        path, clock = f"/v1/runs/{messages.RUN}", site.clock
        site.call("POST", f"{path}/register", messages.register())
        epoch = site.parts.loop_facts.lead.epoch
        assert put_order(site.journal, order(1, "p", messages.RUN), site.clock.wall)
        site.turn()
        (run,) = site.call("GET", "/v1/status")["runs"]
        for number, each_s in enumerate((step_s, -step_s), 1):
            clock.step_wall(each_s)
            site.turn(5.0)
            site.call("POST", f"{path}/heartbeat", messages.heartbeat())
            body = messages.progress(seq=number, step=number)
            site.call("POST", f"{path}/progress", body)
            if number == 1:
                begun = Transition.from_json(messages.transition("p", 1, SwitchState.ANNOUNCED))
                site.journal.switches.record(begun, owner_uid=0, now=clock.wall)
            site.turn(5.0)
            (seen,) = site.call("GET", "/v1/status")["runs"]
            assert (seen["state"], seen["deadline"]) == ("live", run["deadline"])
            assert seen["switch"] is not None
        assert site.parts.loop_facts.lead.epoch == epoch
        assert len(site.journal.switches.history(messages.RUN)) == 1
        # Beyond the hour it is given up like any other that takes too long.
        site.turn(HOLD_S)
        site.call("POST", f"{path}/heartbeat", messages.heartbeat())
        site.turn(700.0)
        assert site.journal.switches.open(messages.RUN) is None
