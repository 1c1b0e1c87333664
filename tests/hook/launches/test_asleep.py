"""A run put to sleep by the real daemon: with its supervisor and ranks, and a daemon that dies."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from tests.hook.harness import Run, Zygote, worst_difference
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

Undisturbed = Callable[[int, str], dict[int, float]]

STEPS = 40
WAITS = (10, 15, 20, 25, 30)
"""Steps at which the run waits for a mark; orders are taken there, at its save steps."""

CATALOGUE = """\
[job]
name = "tiny"
tokens_total = {tokens}
reference = "A"
release = "held"
[switch]
layout_s = 1.0
layout_energy_j = 1.0
source = "measured"
[switch.pairs]
A = {{ paused = {{ seconds = 0.2, energy_j = 1.0 }} }}
paused = {{ A = {{ seconds = 1.0, energy_j = 1.0 }}, B = {{ seconds = 1.0, energy_j = 1.0 }} }}
[[point]]
id = "A"
gpus = 2
layout = {{ dp_shard = 2 }}
tokens_per_s = 400.0
power_w = 600.0
equivalence = "exact"
evidence = "validated"
[[point]]
id = "B"
gpus = 2
layout = {{ tp = 2 }}
tokens_per_s = 360.0
power_w = 590.0
equivalence = "numerical"
evidence = "validated"
"""
SETTINGS = """\
[policy]
sleep = "{sleep}"
longest_sleep_s = {longest_s}
dwell_s = 3600
clock_dwell_s = 60
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
compress = 12
[runs.tiny]
catalogue = "catalogue.toml"
deadline_after_s = 4000
"""


class Job:
    """A run under its supervisor in a thread of this process, and the daemon's journal."""

    def __init__(self, run: Run, folder: Path) -> None:
        """Prepare; nothing runs yet."""
        self.run = run
        self.journal = Journal.open(f"sqlite:///{folder / 'journal.db'}")
        self.status: int | None = None
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def _supervise(self) -> None:
        self.status = self.run.supervised()

    def start(self) -> None:
        """Start the supervisor."""
        self._thread.start()

    def end(self) -> int | None:
        """Let the run go on to its end; give the supervisor's exit status."""
        for step in WAITS:
            self.go(step)
        self._thread.join(30.0)
        return self.status

    def go(self, step: int) -> None:
        """Let the run take a step that it waits for."""
        (self.run.out / f"go-{step}").touch()

    def reached(self, step: int) -> None:
        """Wait until the run stands before a step."""
        wait_for(lambda: self._steps() >= step - 1, f"step {step}; {self.run.log()}")

    def _steps(self) -> int:
        return max((line["step"] for line in self.run.lines()), default=0)

    def until_asleep(self) -> SwitchRow:
        """Give the run one boundary after the other until it has taken the order to sleep.

        It asks for orders in its own time, so a boundary may come before it has heard of one.
        """
        for step in WAITS:
            wait_for(partial(self._at_or_leaving, step), f"step {step}")
            wait_for(self.orders, f"an order; {self.decisions()}", 30.0)
            with suppress(AssertionError):
                wait_for(self._taken, "an order that is taken", 2.0)
            if self._taken():
                break
            self.go(step)
        wait_for(lambda: self.ended(SwitchState.CONFIRMED), f"sleep; {self.run.log()}", 45.0)
        newest = self.newest()
        assert newest is not None
        return newest

    def _at_or_leaving(self, step: int) -> bool:
        return self._steps() >= step - 1 or self._taken()

    def _taken(self) -> bool:
        newest = self.newest()
        return newest is not None and newest.state is not SwitchState.ORDERED

    def decisions(self) -> list[str]:
        """Give what was decided lately, newest first."""
        return [each.reason for each in self.journal.decisions.list(limit=3)]

    def orders(self) -> tuple[SwitchRow, ...]:
        """Give every order so far, newest first."""
        return self.journal.switches.history()

    def newest(self) -> SwitchRow | None:
        """Give the newest order."""
        return next(iter(self.orders()), None)

    def ended(self, state: SwitchState) -> bool:
        """Say whether the newest order ended so."""
        newest = self.newest()
        return newest is not None and newest.state is state

    def line(self, running: DaemonProcess) -> dict[str, Any]:
        """Give the run's line of the status."""
        (line,) = running.status()["runs"]
        return line  # type: ignore[no-any-return]


@pytest.fixture
def job(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A run of two ranks that stands at its save steps until it may go on."""
    waits = {str(each): f"go-{each}" for each in WAITS}
    run = Run(zygote, tmp_path, 2, steps=STEPS, boundary_every=5, wait_for=waits)
    run.with_daemon(tmp_path / "w.sock")
    monkeypatch.setenv("WATTMESH_URL", f"unix://{tmp_path / 'w.sock'}")
    tokens = STEPS * run.options.tokens_per_step
    (tmp_path / "catalogue.toml").write_text(CATALOGUE.format(tokens=tokens))
    dirty_then_clean(tmp_path)
    with serving(tmp_path, "never", 3600):
        pass  # makes the journal
    made = Job(run, tmp_path)
    yield made
    made.end()
    made.journal.close()


def dirty_then_clean(folder: Path) -> None:
    """Write a recorded day whose first half-hour (150 s of the daemon's) is dirty, the rest clean.

    What was published before is what came.
    """
    head = (
        "timestamp_utc,zone,kind,emission_factor_type,"
        "carbon_intensity_gco2eq_per_kwh,forecast_gco2_per_kwh"
    )
    grams = [900] + [20] * 47
    rows = [
        f"2023-06-14T{n // 2:02d}:{30 * (n % 2):02d}:00Z,GB,average,direct,{each},{each}"
        for n, each in enumerate(grams)
    ]
    (folder / "trace.csv").write_text("\n".join([head, *rows]) + "\n")


@contextmanager
def serving(folder: Path, sleep: str, longest_s: float) -> Iterator[DaemonProcess]:
    """Run the daemon."""
    with daemon(folder, SETTINGS.format(sleep=sleep, longest_s=longest_s)) as running:
        yield running


def test_a_plan_puts_a_run_to_sleep_and_its_alarm_wakes_it(
    job: Job, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The daemon is killed meanwhile; the one that comes back finds the run training, its own."""
    with serving(tmp_path, "measured", 8.0) as running:
        job.start()
        made = job.until_asleep()
        assert (made.order.mode, made.requested_by) == (SwitchMode.SUSPEND, "policy")
        assert "suspending A (dp2 on 2 GPUs) until" in made.reason
        running.process.kill()
        running.process.wait()
    wait_for(lambda: len(job.run.launches) == 2, f"the alarm; {job.run.said}", 45.0)
    with serving(tmp_path, "measured", 8.0) as running:
        wait_for(lambda: job.line(running)["attempt"] == 2, "the next launch", 45.0)
        assert job.line(running)["state"] == "live"
        assert job.end() == 0, (job.run.said, job.run.log())
        wait_for(lambda: job.line(running)["state"] == "finished", "its end", 60.0)
    assert worst_difference(job.run.losses(), undisturbed(STEPS, "float32")) == 0
    first, second = job.journal.stays.launches(made.run)
    assert first.ours
    assert second.start > first.end
    assert sum(each.order.mode is SwitchMode.SUSPEND for each in job.orders()) == 1


def test_an_operator_puts_it_to_sleep_and_wakes_it_elsewhere(
    job: Job, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Status says how; the daemon is killed while the run sleeps, and the next one wakes it."""
    with serving(tmp_path, "never", 3600.0) as running:
        job.start()
        job.reached(WAITS[0])
        run = job.line(running)["run"]
        answer = running.post(f"/v1/runs/{run}/switch", {"point": "paused", "reason": "quiet"})
        assert answer.status == 200, answer.body
        assert "goes to sleep at a coming boundary" in answer.body["done"]
        job.until_asleep()
        wait_for(lambda: job.line(running)["state"] == "asleep", "the sleep", 60.0)
        running.process.kill()
        running.process.wait()
    with serving(tmp_path, "never", 3600.0) as running:
        line = job.line(running)
        assert (line["state"], line["activity"]) == ("asleep", "asleep")
        assert line["sentence"].startswith("Asleep for ")
        assert "`wattmesh switch tiny A` wakes it now" in line["sentence"]
        answer = running.post(f"/v1/runs/{run}/switch", {"point": "B", "reason": "go on"})
        assert answer.status == 200, answer.body
        wait_for(lambda: len(job.run.launches) == 2, f"the order to wake; {running.log}", 60.0)
        assert job.end() == 0, (job.run.said, job.run.log())
        wait_for(lambda: job.line(running)["state"] == "finished", "its end", 60.0)
    woke, slept = job.orders()
    assert (slept.from_point, slept.to_point) == ("A", "paused")
    assert (woke.from_point, woke.to_point) == ("paused", "B")
    assert {woke.state, slept.state} == {SwitchState.CONFIRMED}
    assert {woke.requested_by, slept.requested_by} == {"operator"}
    assert job.run.layouts() == ["dp2", "tp2"]
    assert worst_difference(job.run.losses(), undisturbed(STEPS, "float32")) <= 1e-5
