"""A whole daemon in this process, its clock stepped and its loops turned by hand."""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.builders import messages
from tests.builders.carbon import intensities
from tests.builders.journals import empty_journal
from tests.builders.runs import order, put_order
from tests.daemon.clocks import SteppedClock
from tests.daemon.process import ask
from tests.daemon.waiting import wait_for
from tests.daemon.whole.test_life import CARBON, trace
from wattmesh.controller.daemon import wiring
from wattmesh.controller.daemon.loop_bodies import PollDuty
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.daemon.wiring import Parts
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.liveness import BEHIND_S
from wattmesh.controller.settings.read import parse
from wattmesh.controller.signals.forecaster import Forecaster
from wattmesh.controller.signals.poller import Poller
from wattmesh.errors import NoData
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Transition
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.fake_nvml import FakeNvml

SETTINGS = """\
mode = "{mode}"
[journal]
url = "sqlite:///{folder}/journal.db"
[api]
socket = "{folder}/w.sock"
[metrics]
listen = ""
[loops]
cycle_s = 60
sample_s = 60
[power]
source = "nvml"
library = "{folder}/gpus/libnvidia-ml.so.1"
[policy]
switch_timeout_s = 600
[runs.llama-8b]
catalogue = "catalogue.toml"
deadline_after_s = 86400
"""

Start = Callable[..., Parts]


@pytest.fixture
def clock() -> SteppedClock:
    """A clock that stands still."""
    return SteppedClock()


@pytest.fixture
def start(tmp_path: Path, clock: SteppedClock) -> Iterator[Start]:
    """Build a daemon over this test's folder; what was started is stopped."""
    parts: list[Parts] = []

    def build(mode: str = "act", more: str = "") -> Parts:
        (tmp_path / "catalogue.toml").write_text(messages.CATALOGUE)
        (tmp_path / "journal.db").write_bytes(empty_journal())
        trace(tmp_path)
        FakeNvml.create(tmp_path / "gpus", 4, update_ms=0)
        text = SETTINGS.format(folder=tmp_path, mode=mode) + more
        settings = parse(text, where=tmp_path / "wattmesh.toml")
        parts.append(Parts(settings, tmp_path / "wattmesh.toml", clock.clock))
        return parts[-1]

    yield build
    for each in parts:
        each.stop()
    shutil.rmtree(tmp_path / "gpus", ignore_errors=True)


def serve(parts: Parts) -> None:
    """Lead and serve, with every loop left to the test."""
    parts.leases.turn()
    parts.api.start()


def call(parts: Parts, method: str, target: str, body: Any = None) -> Any:
    """Ask the daemon, whose lease is renewed as its loop would."""
    if parts.loop_facts.lead.epoch is not None:
        parts.leases.turn()
    answer = ask(parts.loop_facts.settings.api.socket, method, target, body)
    assert answer.status == 200, answer.body
    return answer.body


def gpus(parts: Parts) -> tuple[str, ...]:
    """Name the GPUs."""
    parts.sampler.turn()
    sampled = parts.loop_facts.sampled
    assert sampled is not None
    return tuple(each.gpu_uuid for each in sampled.sample.readings)


def register(parts: Parts) -> None:
    """Let a run on all four devices introduce itself, as this process, which computes on them."""
    library = parts.loop_facts.settings.power.library
    assert library is not None
    for gpu in FakeNvml.open(library.parent).gpus:
        gpu.process(os.getpid())
    body = messages.register(gpus=gpus(parts), host=socket.gethostname(), pid=os.getpid())
    call(parts, "POST", f"/v1/runs/{messages.RUN}/register", body)


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_stepped_wall_clock_is_an_event_and_fails_no_switch(
    start: Start, clock: SteppedClock, step_s: float
) -> None:
    """An hour either way: an event row, a sentence in status, and the open switch goes on."""
    parts = start()
    serve(parts)
    register(parts)
    assert put_order(parts.journal, order(1, "p", messages.RUN), clock.wall)
    parts.cycle.turn()
    clock.pass_s(5.0)
    clock.step_wall(step_s)
    call(parts, "POST", f"/v1/runs/{messages.RUN}/progress", messages.progress())
    parts.cycle.turn()
    switch = parts.journal.switches.open(messages.RUN)
    assert switch is not None
    assert switch.state is SwitchState.ORDERED
    view = call(parts, "GET", "/v1/status")
    assert any("The wall clock was stepped" in each for each in view["trouble"])
    assert view["runs"][0]["switch"]["age_s"] >= 0.0
    (event,) = [each for each in parts.journal.events.list(10) if each.kind == "clock_step"]
    assert f"({abs(step_s):.0f} s)" in event.detail
    clock.pass_s(3600.0)
    call(parts, "POST", f"/v1/runs/{messages.RUN}/progress", messages.progress(seq=2))
    parts.cycle.turn()
    assert not any("stepped" in each for each in call(parts, "GET", "/v1/status")["trouble"])


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_heartbeats_survive_a_stepped_clock_and_are_written_down(
    start: Start, clock: SteppedClock, tmp_path: Path, step_s: float
) -> None:
    """An hour either way makes nobody lost, or live for longer; the journal knows at the end."""
    parts = start()
    serve(parts)
    register(parts)

    def beat() -> None:
        call(parts, "POST", f"/v1/runs/{messages.RUN}/heartbeat", messages.heartbeat())

    def state() -> str:
        parts.cycle.turn()
        return str(call(parts, "GET", "/v1/status")["runs"][0]["state"])

    def written() -> float:
        """Seconds that the journal is behind the newest heartbeat."""
        other = Journal.open(f"sqlite:///{tmp_path}/journal.db")
        (row,) = other.runs.all(clock.wall)
        other.close()
        return (beaten - row.last_seen_at).total_seconds()

    for _ in range(12):
        clock.pass_s(20.0)
        beat()
        assert state() == "live"
    beaten = clock.wall
    assert 0.0 <= written() <= BEHIND_S
    clock.step_wall(step_s)
    assert state() == "live"
    clock.pass_s(31.0)
    assert state() == "lost"
    beat()
    beaten = clock.wall
    parts.stop()
    assert written() == 0.0


def test_who_has_lost_the_lead_judges_by_the_journal(start: Start, clock: SteppedClock) -> None:
    """It hears no heartbeat any more: what it remembers would make every run lost.

    Leading again, it has heard nobody yet: what lives has one limit to say so.
    """
    # Leases end by the database's clock, with which this one must agree.
    clock.wall = datetime.now(UTC)
    parts = start()
    serve(parts)
    register(parts)
    clock.pass_s(40.0)
    call(parts, "POST", f"/v1/runs/{messages.RUN}/heartbeat", messages.heartbeat())
    epoch = parts.loop_facts.lead.epoch
    assert epoch is not None
    parts.journal.leadership.release(parts.loop_facts.lead.leader, epoch)
    assert parts.journal.leadership.acquire("another", 20.0) == epoch + 1
    parts.leases.turn()
    assert parts.loop_facts.lead.epoch is None
    (row,) = parts.journal.runs.all(clock.wall)
    assert (row.state, row.last_seen_at) == ("live", clock.wall - timedelta(seconds=40))
    parts.journal.leadership.release("another", epoch + 1)
    parts.leases.turn()
    assert parts.loop_facts.lead.epoch == epoch + 2
    assert parts.journal.runs.all(clock.wall)[0].state == "live"
    clock.pass_s(31.0)
    assert parts.journal.runs.all(clock.wall)[0].state == "lost"
    call(parts, "POST", f"/v1/runs/{messages.RUN}/heartbeat", messages.heartbeat())
    (row,) = parts.journal.runs.all(clock.wall)
    assert (row.state, row.last_seen_at) == ("live", clock.wall)


def test_a_switch_that_takes_too_long_by_the_true_clock_fails(
    start: Start, clock: SteppedClock
) -> None:
    """The twin: without a step the same switch is given up after its time."""
    parts = start()
    serve(parts)
    register(parts)
    assert put_order(parts.journal, order(1, "p", messages.RUN), clock.wall)
    parts.journal.switches.record(reported(SwitchState.ANNOUNCED), owner_uid=0, now=clock.wall)
    parts.cycle.turn()
    clock.pass_s(3600.0)
    call(parts, "POST", f"/v1/runs/{messages.RUN}/progress", messages.progress())
    parts.cycle.turn()
    assert parts.journal.switches.open(messages.RUN) is None


def reported(state: SwitchState) -> Transition:
    """Report one step of the switch under way."""
    return Transition.from_json(messages.transition("p", 1, state))


def test_energy_is_neither_lost_nor_doubled_by_a_stepped_clock(
    start: Start, clock: SteppedClock
) -> None:
    """Ten samples with an hour's step in the middle book the joules of ten samples."""
    parts = start()
    serve(parts)
    register(parts)
    parts.cycle.turn()
    for index in range(10):
        clock.pass_s(60.0)
        clock.step_wall(-3600.0 if index == 5 else 0.0)
        parts.sampler.turn()
    rows = parts.journal.ledger.energy()
    assert sum(row.unobserved_ms for row in rows) == 0
    assert all(row.energy_mj is not None and row.energy_mj >= 0 for row in rows)
    assert {row.run for row in rows if row.line == "run"} == {messages.RUN}


def test_a_run_is_charged_for_its_gpus_from_its_registration(
    start: Start, clock: SteppedClock
) -> None:
    """Claims follow the journal: before it registered, and after it finished, GPUs are idle."""
    parts = start()
    serve(parts)
    assert parts.loop_facts.snapshot is None
    parts.cycle.turn()
    assert holders(parts) == set()
    register(parts)
    parts.cycle.turn()
    assert holders(parts) == {messages.RUN}
    clock.pass_s(60.0)
    call(parts, "POST", f"/v1/runs/{messages.RUN}/finish", messages.finish())
    parts.cycle.turn()
    assert holders(parts) == set()


def holders(parts: Parts) -> set[str]:
    """Name the runs that hold a device."""
    snapshot = parts.loop_facts.snapshot
    claims = snapshot.claims if snapshot else None
    assert claims is not None
    return {claim.run for claim in claims.values()}


def test_polls_run_and_the_signal_is_shown(start: Start) -> None:
    """The accounting signal is polled at its rhythm, and is the decision signal by default."""
    parts = start(more=CARBON)
    parts.start()
    wait_for(
        lambda: call(parts, "GET", "/v1/carbon/now")["carbon"]["age_s"] is not None, "a first poll"
    )
    now = call(parts, "GET", "/v1/carbon/now")
    assert now["carbon"] == now["accounting"]
    assert any(each.job.startswith("carbon csv:GB") for each in parts.jobs.totals())


def test_in_mode_observe_nothing_is_ever_ordered(start: Start, clock: SteppedClock) -> None:
    """Observed and accounted, and the run's line says so."""
    parts = start(mode="observe")
    serve(parts)
    register(parts)
    parts.cycle.turn()
    assert parts.journal.switches.history(messages.RUN) == ()
    view = call(parts, "GET", "/v1/status")
    assert view["mode"] == "observe"
    assert view["runs"][0]["activity"] == "observed"
    assert "GPU power" in view["simulated"]
    assert view["power"]["simulated"] is True
    assert view["power"]["gpus"] == 4


def test_an_ended_budget_period_is_closed_once(start: Start, clock: SteppedClock) -> None:
    """The first hour of a new day closes the day before with its grams, and only once."""
    parts = start(more='[budget.cluster]\ngrams = 10.0\nperiod = "day"\n')
    serve(parts)
    roll = PeriodRoll(parts.journal, parts.loop_facts)
    for _ in range(3):
        roll.turn()
    clock.pass_s(86_400.0)
    roll.turn()
    said = [each.detail for each in parts.journal.events.list(10) if each.kind == "period"]
    assert sorted(said) == [
        "2026-11-19 of budget cluster ended: 0 g of 10 g (0%), UTC.",
        "2026-11-20 of budget cluster ended: 0 g of 10 g (0%), UTC.",
    ]


FURTHER = """\
[[carbon.accounting_fallback]]
provider = "csv"
zone = "FR"
file = "fr.csv"
compress = 3600
scale = 1.0
"""


def day_before(signal: Signal, until: datetime) -> list[CarbonPoint]:
    """Tell of two days of a recording that plays 3600 times as fast."""
    step = timedelta(seconds=0.5)
    values = [200.0 + n % 48 for n in reversed(range(96))]
    return intensities(signal, values, until - 96 * step, step, at=until)


def test_only_what_is_decided_or_booked_with_is_forecast_and_any_signal_for_who_asks(
    start: Start, tmp_path: Path, clock: SteppedClock
) -> None:
    """A fallback is polled and never forecast; `carbon forecast` makes one when it is asked for."""
    trace(tmp_path)
    text = (tmp_path / "trace.csv").read_text()
    (tmp_path / "fr.csv").write_text(text.replace(",GB,", ",FR,"))
    parts = start(more=CARBON + FURTHER)
    home, further = (each.signal for each in parts.loop_facts.signals.all)
    parts.start()
    wait_for(lambda: parts.journal.carbon.known_until(further) is not None, "the fallback")
    wait_for(lambda: parts.journal.forecasts.newest(home), "its forecast")
    parts.journal.carbon.store(day_before(further, clock.wall))
    assert parts.journal.forecasts.newest(further) == ()
    shown = call(parts, "GET", "/v1/carbon/forecast?signal=csv:FR")
    assert shown["signal"] == str(further)
    assert shown["slots"]
    assert "No decision rests on this signal" in shown["sentence"]
    assert parts.journal.forecasts.newest(further) == ()
    assert call(parts, "GET", f"/v1/carbon/forecast?signal={home}")["signal"] == str(home)
    asked = ask(parts.loop_facts.settings.api.socket, "GET", "/v1/carbon/forecast?signal=csv")
    assert (asked.status, "or several" in asked.body["error"]) == (404, True)


def test_a_carbon_feed_that_stops_is_said_everywhere(start: Start, clock: SteppedClock) -> None:
    """When the recording ends runs hold, and the sentence, the status and readers say why."""
    parts = start(more=CARBON)
    serve(parts)
    register(parts)
    source = parts.accounting_source
    forecaster = Forecaster(parts.journal, source.signal, source.series)
    poll = PollDuty(Poller(source, parts.journal), forecaster, parts.loop_facts, parts.cycle.wake)
    poll.turn()
    parts.cycle.turn()
    assert call(parts, "GET", "/v1/status")["carbon"]["trouble"] == ""
    clock.pass_s(3600.0)
    call(parts, "POST", f"/v1/runs/{messages.RUN}/progress", messages.progress())
    with pytest.raises(NoData):
        poll.turn()
    parts.cycle.turn()
    view = call(parts, "GET", "/v1/status")
    assert "csv was last heard" in view["carbon"]["trouble"]
    assert "trace.csv ended" in view["carbon"]["trouble"]
    assert any("Every run holds until the signal is back" in each for each in view["trouble"])
    assert "csv was last heard" in view["cycle"]["sentence"]
    assert view["runs"][0]["activity"] == "holding"


def test_a_journal_that_hangs_does_not_hold_up_the_end(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The service manager kills after 60 s: the last rows are waited for once, and not for long."""
    parts, answers = start(), threading.Event()
    serve(parts)
    monkeypatch.setattr(wiring, "LAST_WORDS_S", 0.2)
    released = parts.journal.leadership.release

    def hang(holder: str, epoch: int) -> None:
        assert answers.wait(60.0)
        released(holder, epoch)

    monkeypatch.setattr(parts.journal.leadership, "release", hang)
    try:
        parts.stop()
        assert "the lease runs out by itself" in caplog.text
    finally:
        answers.set()
