"""Several processes on one journal: each write is there once, and of rivals one wins."""

import json
import subprocess
import sys

from tests.builders.runs import T0, order, put_order, register
from wattmesh.controller.journal.journal import Journal

WRITER = """
import sys
from dataclasses import replace
from tests.builders.runs import T0, order, progress, put_order, after
from tests.journal.test_ledger import COUNTER, ENERGY, SLOT
from wattmesh.controller.journal.journal import Journal

journal, name = Journal.open(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for n in range(40):
    journal.events.add(name, str(n), T0)
    row = replace(ENERGY, gpu_uuid=name, slot_start=T0 + n * SLOT, slot_end=T0 + (n + 1) * SLOT)
    journal.ledger.book([row], [replace(COUNTER, gpu_uuid=name, energy_mj=n)])
won = [n for n in range(40) if put_order(journal, order(1, f"{name}-{n}", run=f"run-{n}"))]
print(won, flush=True)
"""


def start(journal: Journal, name: str) -> subprocess.Popen[str]:
    """Start one writer; it waits for a line."""
    url = journal.database.url.render_as_string(hide_password=False)
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, url, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_write_everything_once(journal: Journal) -> None:
    """Nothing is lost to a lock, and a run gets one order, whoever is faster."""
    register(journal)
    assert journal.leadership.acquire("w", 600.0) == 1
    names = ("one", "two")
    writers = [start(journal, name) for name in names]
    for each in writers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    won = [each.communicate("go\n", timeout=60)[0] for each in writers]
    assert [each.returncode for each in writers] == [0, 0]
    assert sorted(n for line in won for n in json.loads(line)) == list(range(40))
    told = [(each.kind, each.detail) for each in journal.events.list(limit=1000)]
    assert sorted(told) == sorted((name, str(n)) for name in names for n in range(40))
    assert {each.energy_mj for each in journal.ledger.totals()} == {2 * 40 * 5_000}
    assert {each.energy_mj for each in journal.ledger.baselines().values()} == {39}


def test_two_processes_may_ask_to_lead_an_empty_journal(journal: Journal) -> None:
    """One leads, the other stands by; neither fails."""
    script = (
        "import sys; from wattmesh.controller.journal.journal import Journal\n"
        "print(Journal.open(sys.argv[1]).leadership.acquire(sys.argv[2], 60.0))"
    )
    url = journal.database.url.render_as_string(hide_password=False)
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", script, url, name], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    answers = [each.communicate(timeout=60)[0].strip() for each in rivals]
    assert sorted(answers) == ["1", "None"]


def test_an_order_stays_one_when_two_daemons_think_that_they_lead(journal: Journal) -> None:
    """The second of them took the lease; what the first wrote before is held against both."""
    register(journal)
    assert journal.leadership.acquire("one", 600.0) == 1
    assert put_order(journal, order(1))
    journal.leadership.release("one", 1)
    other = Journal.open(journal.database.url.render_as_string(hide_password=False))
    assert other.leadership.acquire("two", 600.0) == 2
    assert not put_order(other, order(2, "p2"), T0)
    held = other.switches.open("r")
    assert held is not None
    assert held.switch_id == "p1"
    other.close()
