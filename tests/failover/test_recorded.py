"""What version 0.1.0 left and says: its journal in the middle of a switch, its hook's calls.

Written down by that version's own journal and wire types (tests/failover/data). The daemon that
reads this must go on from the one and answer the other; a release writes down its own beside them.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.api.conftest import Served, open_folder, served, settings
from tests.builders import messages, runs
from wattmesh.controller.journal.database.schema import bring_up_to_date
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Order

__all__ = ["open_folder", "served", "settings"]

DATA = Path(__file__).parent / "data"
REST = (SwitchState.LOADED, SwitchState.VERIFIED, SwitchState.CONFIRMED)


def test_a_journal_of_the_version_before_goes_on_in_the_middle_of_a_switch(tmp_path: Path) -> None:
    """It is upgraded; the same order is open, the rest of it is heard, and epochs go on."""
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript((DATA / "journal-0.1.0.sql").read_text())
    bring_up_to_date(f"sqlite:///{path}")
    with closing(Journal.open(f"sqlite:///{path}")) as journal:
        switch = journal.switches.open("r")
        assert switch is not None
        assert (switch.state, switch.order) == (SwitchState.REBUILDING, runs.order(1))
        assert journal.leadership.acquire("newer", 60.0) == 2
        for state in REST:
            journal.switches.record(runs.transition(state), owner_uid=runs.UID, now=runs.T0)
        assert journal.switches.open("r") is None
        (row,) = journal.runs.all(runs.T0)
        assert row.layout == runs.B


def test_a_hook_of_the_version_before_is_understood(served: Served) -> None:
    """Each call that it makes is taken, and each field that it reads is in the answer."""
    for line in json.loads((DATA / "hook-0.1.0.json").read_text()):
        target = f"/v1/runs/{messages.RUN}/{line['call']}"
        if line["call"] == "order":
            order(served)
            answer = served.get(target)
        else:
            answer = served.post(target, line["body"])
        assert answer.status == 200, (line["call"], answer.body)
        assert set(line["answer"]) <= set(answer.body), line["call"]
    row = served.journal.switches.history(messages.RUN)[0]
    assert row.state is SwitchState.CONFIRMED
    assert served.journal.runs.all(served.clock.wall)[0].state == "finished"


def order(served: Served) -> None:
    """Order what the recorded hook carries out."""
    made = Order(
        switch_id="PLAN",
        epoch=1,
        run=messages.RUN,
        attempt=1,
        point="B",
        layout=Layout(tp=2),
        ranks=(0, 1),
        not_before_step=1,
        valid_until_step=99,
    )
    assert runs.put_order(served.journal, made, served.clock.wall)
    served.changes.ring()
