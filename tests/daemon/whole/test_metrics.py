"""The figures for Prometheus: from the journal, across restarts, and without waiting for it."""

import http.client
import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import messages
from tests.builders.accounts import (
    SLOT_S,
    B,
    Life,
    book,
    energy,
    finish,
    intensity,
    moved,
    slot,
)
from tests.builders.carbon import intensities
from tests.builders.journals import fresh_file
from tests.builders.runs import CATALOGUE
from tests.daemon.clocks import SteppedClock
from tests.daemon.waiting import wait_for
from wattmesh.controller.accounting.saving import run_saving
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.loop_facts import LoopFacts, Signals
from wattmesh.controller.metrics import scrapes
from wattmesh.controller.metrics.figures import FigureReader
from wattmesh.controller.metrics.metrics import MetricsServer
from wattmesh.controller.process.loops import Loop
from wattmesh.controller.process.scheduler import Jobs
from wattmesh.controller.settings.read import Settings
from wattmesh.errors import FixInput
from wattmesh.reconfig.catalogue import SwitchCost
from wattmesh.reconfig.wire.messages import Register
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.energy.ledger import EnergyRow
from wattmesh.telemetry.readings import Quality

SIGNAL = Signal(provider="neso", zone="GB")
REPORTED = Signal(provider="static", zone="GB", factor="lifecycle")
OTHER = "6d1c9d0e-0000-4000-8000-000000000002"
MOVED = RunPlan(
    catalogue=replace(CATALOGUE, switch=SwitchCost(layout_s=0.0), simulated=()),
    deadline_after_s=3000.0,
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def clock() -> SteppedClock:
    """A clock that stands still."""
    return SteppedClock()


@pytest.fixture
def journal(sqlite_journal: Journal, clock: SteppedClock) -> Journal:
    """A journal with one run, 3.6 kJ and a gram."""
    booked(sqlite_journal, clock)
    return sqlite_journal


def booked(journal: Journal, clock: SteppedClock, energy_mj: int = 3_600_000) -> None:
    """Book one slot of one GPU in both ledgers."""
    now = clock.wall
    message = Register.from_json(messages.register())
    journal.runs.register(message, owner_uid=0, now=now, epoch=1, plan=RunPlan())
    slot = {
        "run": messages.RUN,
        "gpu_uuid": "SIM-1",
        "slot_start": now - timedelta(minutes=30),
        "slot_end": now,
    }
    row = EnergyRow(
        incarnation="incarnation-1",
        energy_mj=energy_mj,
        unobserved_ms=1500,
        upper_mj=0,
        source="simulated",
        quality="simulated",
        line="run",
        **slot,  # type: ignore[arg-type]
    )
    journal.ledger.book([row], [])
    grams = EmissionRow(
        scenario="actual",
        signal=str(SIGNAL),
        quality="measured",
        energy_mj=energy_mj,
        g_milli_per_kwh=1_000_000,
        carbon_ug=1_000_000,
        first_carbon_ug=1_000_000,
        line="run",
        **slot,  # type: ignore[arg-type]
    )
    journal.ledger.emit([grams])


def server(journal: Journal, clock: SteppedClock) -> MetricsServer:
    """Serve the figures on any free port."""
    loop_facts = LoopFacts(clock=clock.clock, settings=Settings(), started_s=clock.monotonic_s)
    facts_of = SignalFacts(signal=SIGNAL, interval_s=1800.0, stale_after_s=5400.0)
    reported = replace(facts_of, signal=REPORTED)
    loop_facts.signals = Signals(decision=facts_of, accounting=facts_of, reports=(reported,))
    loop = Loop("cycle", 5.0, lambda: None, clock.clock)
    loop.turn()
    loop_facts.loops["cycle"] = lambda: loop.state
    made = MetricsServer(("127.0.0.1", 0), journal, loop_facts, Jobs())
    made.start()
    return made


def text(served: MetricsServer) -> str:
    """Scrape as Prometheus does."""
    assert served.port is not None
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request("GET", "/metrics")
    said = connection.getresponse().read().decode()
    connection.close()
    return said


def scrape(served: MetricsServer) -> Samples:
    """Scrape and read every sample."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text(served))
        for sample in family.samples
    }


def first_scrape(served: MetricsServer) -> Samples:
    """Scrape until the ledger's figures are there: the first ones come when they are reckoned."""
    return scrape_until(served, lambda told: "wattmesh_energy_joules_total" in told)


def scrape_until(served: MetricsServer, met: Callable[[set[str]], bool]) -> Samples:
    """Scrape until the names of what is told meet a condition: a busy machine sums up late."""
    found: list[Samples] = []

    def there() -> bool:
        found.append(scrape(served))
        return met({name for name, _ in found[-1]})

    wait_for(there, "the figures")
    return found[-1]


def value(samples: Samples, name: str, **labels: str) -> float:
    """Give the one sample with these labels."""
    wanted = set(labels.items())
    (found,) = [v for (n, given), v in samples.items() if n == name and wanted <= set(given)]
    return found


def test_a_signal_of_reports_has_a_poll_state_and_no_rung(
    journal: Journal, clock: SteppedClock
) -> None:
    """No decision rests on it, so no alert for what decisions rest on may fire for it."""
    served = server(journal, clock)
    samples = first_scrape(served)
    served.stop()
    journal.close()
    states = {(name, dict(labels).get("signal")) for name, labels in samples}
    for name in ("wattmesh_grid_signal_rung", "wattmesh_grid_signal_usable"):
        assert (name, str(SIGNAL)) in states
        assert (name, str(REPORTED)) not in states
    assert ("wattmesh_grid_poll_state", str(REPORTED)) in states


def test_counters_are_the_ledgers_sums_and_survive_a_restart(
    journal: Journal, clock: SteppedClock
) -> None:
    """A second daemon over the same journal goes on counting where the first one stood."""
    for _ in range(2):
        served = server(journal, clock)
        samples = first_scrape(served)
        assert value(samples, "wattmesh_energy_joules_total", run="llama-8b", line="run") == 3600.0
        assert value(samples, "wattmesh_unobserved_seconds", run="llama-8b") == 1.5
        name = "wattmesh_carbon_first_reported_grams_total"
        assert value(samples, name, line="run", signal=str(SIGNAL)) == 1.0
        served.stop()
    journal.close()


def test_a_loop_that_never_ended_a_turn_has_an_age(journal: Journal, clock: SteppedClock) -> None:
    """A first cycle that hangs is as old as the daemon, so that its alert fires."""
    served = server(journal, clock)
    state = Loop("cycle", 5.0, lambda: None, clock.clock).state
    served._collector._loop_facts.loops["cycle"] = lambda: state
    clock.monotonic_s += 400.0
    samples = scrape(served)
    served.stop()
    journal.close()
    assert value(samples, "wattmesh_loop_progress_age_seconds", loop="cycle") == 400.0


def test_a_bug_in_reading_the_sums_is_told(
    journal: Journal, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it every series of runs stands still, or is not there, and no alert fires."""
    monkeypatch.setattr(FigureReader, "read", lambda self: 1 / 0)
    served = server(journal, clock)

    def told() -> bool:
        samples = scrape(served)
        name = "wattmesh_loop_turns_total"
        return value(samples, name, loop="figures", outcome="bug") > 0

    wait_for(told, "the bug")
    served.stop()
    journal.close()


def test_two_runs_of_one_name_stay_two_series(journal: Journal, clock: SteppedClock) -> None:
    """A name comes again; joules, tokens and states of both stand side by side, by id."""
    second = {**messages.register(), "run": OTHER, "incarnation": "incarnation-2"}
    message = Register.from_json(second)
    journal.runs.register(message, owner_uid=0, now=clock.wall, epoch=1, plan=RunPlan())
    (held,) = journal.ledger.energy(run=messages.RUN)
    journal.ledger.book([replace(held, run=OTHER, gpu_uuid="SIM-2", energy_mj=5_000)], [])
    served = server(journal, clock)
    samples = first_scrape(served)
    served.stop()
    journal.close()
    for name, told in (
        ("wattmesh_energy_joules_total", (3600.0, 5.0)),
        ("wattmesh_run_tokens_total", (0.0, 0.0)),
        ("wattmesh_run_config_info", (1.0, 1.0)),
    ):
        found = [value(samples, name, run="llama-8b", run_id=run) for run in (messages.RUN, OTHER)]
        assert tuple(found) == told
    assert value(samples, "wattmesh_energy_flag", run_id=OTHER, flag="simulated") == 1.0
    assert value(samples, "wattmesh_energy_flag", run_id=OTHER, flag="estimated") == 0.0


def test_a_saving_stays_when_its_run_has_finished(tmp_path: Path, clock: SteppedClock) -> None:
    """As a band where some of it was dark, with baseline, signal, boundary and flags."""
    journal = fresh_file(tmp_path / "other.db")
    intensity(journal, [100.0 + 37 * (number % 5) for number in range(60)], signal=SIGNAL)
    life = Life(journal=journal, power_w=320.0, rate=900.0, signal=SIGNAL)
    life.begin(plan=MOVED, tokens_total=1_500_000)
    life.live(6)
    moved(journal, journal.leadership.acquire("d", 60.0) or 0, begun=slot(6), ended=slot(7))
    life.layout, life.power_w, life.rate, life.slots = B, 150.0, 500.0, 7
    book(journal, *(energy(6, 3_000_000, gpu_uuid=gpu) for gpu in life.gpus))
    life.unread = ("g3",)
    life.live(6)
    finish(journal, now=slot(13), tokens=life.tokens)
    clock.pass_s(20 * SLOT_S)
    life.books.price(clock.wall)
    served = server(journal, clock)
    samples = first_scrape(served)
    served.stop()
    row = journal.runs.find("r", clock.wall)
    assert row is not None
    assert row.state == "finished"
    found = run_saving(journal, row)
    journal.close()
    labels = {
        "run": "llm",
        "run_id": "r",
        "baseline": "A",
        "signal": str(SIGNAL),
        "boundary": "it",
        "flags": "estimated",
    }
    low = value(samples, "wattmesh_carbon_saved_grams", **labels)
    high = value(samples, "wattmesh_carbon_saved_high_grams", **labels)
    assert (low * 1e6, high * 1e6) == pytest.approx((found.saved_ug, found.high_ug))
    assert low < high
    ends = [
        value(samples, "wattmesh_carbon_saved_cluster_grams", end=end, signal=str(SIGNAL))
        for end in ("low", "high")
    ]
    assert ends == pytest.approx([low, high])


def test_a_scrape_never_waits_for_a_journal_that_is_gone(
    journal: Journal, clock: SteppedClock, tmp_path: Path
) -> None:
    """The last known figures are served at once while the database is away."""
    served = server(journal, clock)
    before = first_scrape(served)
    (tmp_path / "journal.db").rename(tmp_path / "away.db")
    began = time.monotonic()
    after = scrape(served)
    assert time.monotonic() - began < 15
    name = "wattmesh_energy_joules_total"
    assert value(after, name, run="llama-8b") == value(before, name, run="llama-8b") == 3600.0
    served.stop()
    journal.close()


def test_a_silent_signal_ages_and_loses_its_value(journal: Journal, clock: SteppedClock) -> None:
    """The intensity is shown while its interval lasts; its age grows, and usable falls to 0."""
    now = clock.wall
    (point,) = intensities(SIGNAL, [212.0], now, timedelta(minutes=30))
    later = now + timedelta(hours=1)
    ahead = replace(point, start=point.end, end=later, quality=Quality.FORECAST)
    journal.carbon.store([point, ahead])
    journal.carbon.fetched(SIGNAL, now, ok=True)
    served = server(journal, clock)
    grid = "wattmesh_grid_carbon_intensity_grams_per_kilowatt_hour"
    samples = scrape_until(served, lambda told: grid in told)
    assert value(samples, grid, zone="GB", quality="measured") == 212.0
    assert value(samples, "wattmesh_grid_signal_usable") == 1.0
    clock.pass_s(7200.0)
    samples = scrape_until(served, lambda told: grid not in told)
    assert value(samples, "wattmesh_grid_signal_age_seconds") == 7200.0
    assert value(samples, "wattmesh_grid_signal_usable") == 0.0
    served.stop()
    journal.close()


def test_names_follow_the_practice(journal: Journal, clock: SteppedClock) -> None:
    """Base units in the names, a help line each, counters end in _total, and no creation times."""
    served = server(journal, clock)
    said = text(served)
    assert "_created" not in said
    names = re.findall(r"^# TYPE (\S+) (\S+)$", said, re.MULTILINE)
    assert len(names) > 15
    for name, kind in names:
        assert name.startswith("wattmesh_")
        assert (kind == "counter") == name.endswith("_total")
        assert f"# HELP {name} " in said
        assert not re.search(r"_(kwh|kg|ms|mj|ug|mhz|hours)(_|$)", name)
    served.stop()
    journal.close()


def test_an_address_in_use_is_a_sentence(journal: Journal, clock: SteppedClock) -> None:
    """A taken port names the setting; no address means no server at all."""
    served = server(journal, clock)
    loop_facts = LoopFacts(clock=clock.clock, settings=Settings(), started_s=0.0)
    other = MetricsServer(("127.0.0.1", served.port or 0), journal, loop_facts, Jobs())
    with pytest.raises(FixInput, match=r"change metrics\.listen"):
        other.start()
    served.stop()
    off = MetricsServer(None, journal, loop_facts, Jobs())
    off.start()
    assert off.port is None
    off.stop()
    journal.close()


def test_who_connects_and_says_nothing_is_bounded_and_cut(
    journal: Journal, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too many is closed as it comes; the rest ends with its limit, and scrapes go on."""
    served = server(journal, clock)
    for limit_s, first in ((600.0, scrapes.MOST_OF_ONE), (0.3, 0)):
        monkeypatch.setattr(scrapes, "LIMIT_S", limit_s)
        with ExitStack() as held:
            silent = [held.enter_context(half(served)) for _ in range(scrapes.MOST_OF_ONE + 4)]
            for client in silent[first:]:
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""
        wait_for(lambda: scraped(served), "places to be free again")
    served.stop()


def half(served: MetricsServer) -> socket.socket:
    """Connect, and send half a request."""
    client = socket.create_connection(("127.0.0.1", served.port or 0), 30.0)
    with suppress(OSError):
        client.sendall(b"GET /metr")
    return client


def scraped(served: MetricsServer) -> bool:
    """Whether a scrape is answered."""
    try:
        return "wattmesh_" in text(served)
    except (OSError, http.client.HTTPException):
        return False
