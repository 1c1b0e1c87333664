"""What the controller refuses: found row by row, kept back, offered again; the rest goes on."""

import random
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.agent.delivery.ledgers import T0, Controller, amounts, counter, row
from tests.agent.delivery.outboxes import _closed, opened
from tests.agent.test_api import look, settings
from tests.api.conftest import Served, open_folder, served
from wattmesh.controller.agent.link import ControllerLink
from wattmesh.controller.agent.loop_bodies import Delivering, Newest, facts
from wattmesh.controller.agent.metrics import AgentMetrics
from wattmesh.controller.agent.outbox import AgentOutbox
from wattmesh.controller.agent.refusals import KeptBack
from wattmesh.controller.process.loops import Clock
from wattmesh.controller.status.status import status
from wattmesh.telemetry.energy.delivery import MOST_ROWS, EnergyBatch
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.ledger import EnergyRow
from wattmesh.telemetry.energy.sampler import Sample

__all__ = ["_closed", "open_folder", "served", "settings"]

LONG = "r" * 65
"""A run's name for which the journal has no room."""

HOUR = timedelta(hours=1)

RULES = Path(__file__).parents[3] / "integrations/prometheus/rules/agent.yml"


class Strict(Controller):
    """Refuses batches with a row that it does not like, whole, as the daemon does."""

    def __init__(self, bad: Callable[[EnergyRow], bool]) -> None:
        """Take what is refused."""
        super().__init__()
        self.bad = bad
        self.calls = 0

    def answer(self, outbox: AgentOutbox, batch: EnergyBatch) -> bool:
        """Take a batch or refuse it, and tell; say whether it was taken."""
        self.calls += 1
        if any(map(self.bad, batch.rows)):
            outbox.refused(batch, "it is bad")
            return False
        self.take(batch)
        outbox.acknowledged(batch)
        return True


def deliver(outbox: AgentOutbox, controller: Strict, most: int = 10_000) -> None:
    """Deliver until there is nothing to offer."""
    for _ in range(most):
        batch = outbox.batch()
        if batch is None:
            return
        controller.answer(outbox, batch)


def test_single_rows_are_kept_back_and_all_others_delivered(tmp_path: Path) -> None:
    """Three bad rows among thousands: found in few calls, kept whole, the counters follow."""
    outbox = opened(tmp_path)
    count = 2 * MOST_ROWS
    places = {7, 8, 2000}
    names = {f"G{place}" for place in places}
    strict = Strict(lambda each: each.gpu_uuid in names)
    outbox.book([row(at, gpu_uuid=f"G{at}") for at in range(count)], [counter(5, "G1")])
    deliver(outbox, strict)
    assert amounts(strict.rows) == (1000 * (count - 3), 0, 0)
    assert strict.calls < 300
    kept = outbox.kept_back()
    assert (kept.rows, kept.energy_mj, kept.why) == (3, 3000, "it is bad")
    assert strict.baselines["G1"].energy_mj == 5
    outbox.book([row(count)], [])
    deliver(outbox, strict)
    assert len(strict.rows) == count - 2


def test_what_is_kept_back_is_offered_each_hour_and_after_a_restart(tmp_path: Path) -> None:
    """Not before: a controller that refuses is not asked all the time; once taken, never again."""
    now: list[datetime] = [T0]
    outbox = opened(tmp_path, now=lambda: now[0])
    strict = Strict(lambda each: each.run == LONG)
    outbox.book([row(run=LONG), row(1)], [])
    deliver(outbox, strict)
    calls = strict.calls
    outbox.book([row(run=LONG, energy_mj=1500), row(1)], [])
    deliver(outbox, strict)
    assert strict.calls == calls
    now[0] += HOUR
    deliver(outbox, strict)
    assert strict.calls == calls + 1
    now[0] -= 3 * HOUR  # the clock was set back: still within an hour
    deliver(outbox, strict)
    assert strict.calls == calls + 2
    outbox.close()
    strict.bad = lambda each: False
    again = opened(tmp_path, now=lambda: now[0])
    assert again.kept_back().energy_mj == 1500
    deliver(again, strict)
    assert amounts(strict.rows) == (2500, 0, 0)
    assert again.kept_back().rows == 0
    deliver(again, strict)
    assert amounts(strict.rows) == (2500, 0, 0)


def test_a_controller_that_refuses_everything_costs_nothing(tmp_path: Path) -> None:
    """Two versions that do not understand each other: all of it is delivered once they do."""
    outbox, strict = opened(tmp_path), Strict(lambda each: True)
    for step in range(3):
        outbox.book([row(step, gpu_uuid=f"G{gpu}") for gpu in range(30)], [])
        deliver(outbox, strict)
    assert outbox.kept_back().rows == 90
    outbox.close()
    strict.bad = lambda each: False
    deliver(opened(tmp_path), strict)
    assert amounts(strict.rows) == (90_000, 0, 0)


@pytest.mark.parametrize("first", [0, None, 1000])
def test_a_known_zero_and_an_unknown_amount_survive_a_refusal(
    tmp_path: Path, first: int | None
) -> None:
    """Taken back, a row is as it was before it was frozen: unknown is unknown, 0 is 0."""
    outbox, strict = opened(tmp_path), Strict(lambda each: True)
    outbox.book([row(energy_mj=first, unobserved_ms=4, upper_mj=6)], [])
    deliver(outbox, strict)
    outbox.close()
    strict.bad = lambda each: False
    again = opened(tmp_path)
    deliver(again, strict)
    (found,) = strict.rows
    assert (found.energy_mj, found.unobserved_ms, found.upper_mj) == (first, 4, 6)
    again.book([row(energy_mj=1200)], [])
    deliver(again, strict)
    assert amounts(strict.rows) == (1200, 0, 0)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_between_everything_counts_once(tmp_path: Path, seed: int) -> None:
    """Rows that grow, refusals, lost answers, restarts, an outbox at its limit: the sums agree."""
    dice = random.Random(seed)
    strict = Strict(lambda each: dice.random() < 0.1)
    limit_mib, kept = (1, 64)[seed % 2], dict[int, int]()
    outbox = opened(tmp_path, limit_mib=limit_mib)
    for step in range(25):
        begin = step * (400 if limit_mib == 1 else 3)
        grown = {at: kept.get(at, 0) + dice.randrange(9) for at in range(begin, begin + 5)}
        more = 400 if limit_mib == 1 else 5
        kept |= grown | {at: 1 for at in range(begin + 5, begin + more)}
        outbox.book([row(at, energy_mj=kept[at]) for at in range(begin, begin + more)], [])
        if dice.random() < 0.2:
            outbox.close()
            outbox = opened(tmp_path, limit_mib=limit_mib)
        batch = outbox.batch()
        if batch is not None and dice.random() < 0.3:
            strict.take(batch)  # its answer gets lost; a batch that was taken is not refused
            strict.bad = lambda each: False
        for _ in range(dice.randrange(4)):
            batch = outbox.batch()
            if batch is not None:
                strict.answer(outbox, batch)
                strict.bad = lambda each: dice.random() < 0.1
    strict.bad = lambda each: False
    while (batch := outbox.batch()) is not None:
        strict.answer(outbox, batch)
    outbox.close()
    deliver(opened(tmp_path, limit_mib=limit_mib), strict)
    assert amounts(strict.rows) == (sum(kept.values()), 0, 0)


def test_a_refusal_that_forgets_what_was_sent_would_be_seen(tmp_path: Path) -> None:
    """The sabotaged twin: rows that stay marked as sent are never delivered."""
    outbox, strict = opened(tmp_path), Strict(lambda each: True)
    outbox.book([row()], [])
    deliver(outbox, strict)
    with outbox._file.writing() as connection:
        connection.execute("UPDATE rows SET sent_energy_mj = energy_mj")
    outbox.close()
    strict.bad = lambda each: False
    deliver(opened(tmp_path), strict)
    assert amounts(strict.rows) != (1000, 0, 0)


def test_a_file_from_before_is_taken_over(tmp_path: Path) -> None:
    """An agent that knew no refusals has left it."""
    outbox = opened(tmp_path)
    outbox.book([row()], [])
    outbox.close()
    with sqlite3.connect(tmp_path / "agent.db") as raw:
        raw.execute("DROP TABLE refusals")
    raw.close()
    strict = Strict(lambda each: False)
    deliver(opened(tmp_path), strict)
    assert amounts(strict.rows) == (1000, 0, 0)


def test_a_real_daemon_gets_the_rest_and_tells_of_what_it_refuses(
    served: Served, tmp_path: Path
) -> None:
    """Over HTTP: one batch goes on, one row waits, and status, metrics and sums all say so."""
    served.clock.wall = T0 + timedelta(days=3)
    outbox = opened(tmp_path)
    newest = Newest(sample=Sample(), claims={})
    clock = Clock()
    exporter = DeviceExporter()
    delivering = Delivering(
        outbox,
        ControllerLink(f"unix://{served.socket}"),
        newest,
        clock,
        lambda: facts(newest, exporter, boot_id="boot-1", deliver_s=10.0),
        node="n1",
    )
    outbox.book([*(row(at) for at in range(100)), row(run=LONG, energy_mj=7000)], [])
    for _ in range(8):
        delivering.turn()
    assert sum(each.energy_mj or 0 for each in served.journal.ledger.energy()) == 100_000
    assert newest.kept_back.rows == 1
    registry = CollectorRegistry()
    registry.register(AgentMetrics(newest))
    text = generate_latest(registry).decode()
    assert "wattmesh_agent_refused_rows 1.0" in text
    assert "wattmesh_agent_refused_joules 7.0" in text
    served.loop_facts.fleet = replace(served.loop_facts.fleet, nodes=served.journal.nodes.all())
    look(served)
    (said,) = (
        each for each in status(served.journal, served.loop_facts).trouble if "refuses" in each
    )
    what, _, advice = said.partition(": ")
    assert what.startswith("n1 keeps back ledger rows that this daemon refuses, 1 with 7 J")
    assert "run has 65 letters, at most 64 fit" in what
    assert advice.startswith("install the same version")


def firing(rules: str, newest: Newest) -> list[str]:
    """Name the alerts whose expression, `metric > number`, holds of an agent's samples."""
    samples = {
        each.name: each.value
        for metric in AgentMetrics(newest).collect()
        for each in metric.samples
    }
    found = re.findall(r"alert: (\w+)\n +expr: (\w+) > ([\d.]+)\n", rules)
    assert len(found) == rules.count("- alert:")
    return [name for name, metric, least in found if samples.get(metric, 0.0) > float(least)]


def test_rows_that_are_refused_raise_an_alert() -> None:
    """Silence while all is taken; the sabotaged twin never fires."""
    rules = RULES.read_text(encoding="utf-8")
    newest = Newest(sample=Sample(), claims={})
    assert firing(rules, newest) == []
    newest.kept_back = KeptBack(rows=1, energy_mj=7, why="it is bad")
    assert firing(rules, newest) == ["WattmeshRowsRefused"]
    assert firing(rules.replace("_refused_rows", "_refusal_rows"), newest) == []
