"""Live cycles for tests: their settings, and both ports on a real journal."""

from datetime import datetime
from typing import Any

from wattmesh.controller.cycle.act import JournalActor
from wattmesh.controller.cycle.cycle import Cycle
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.cycle.isolation import Isolation
from wattmesh.controller.cycle.journal_snapshot import CycleSettings, JournalObservation
from wattmesh.controller.cycle.observe import JournalObserver, run_view
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.outages import Launches
from wattmesh.policies.decision import Mode, PolicySettings, RunView


def acting(**changes: Any) -> CycleSettings:
    """Mode act, without a grid signal."""
    facts: dict[str, Any] = {
        "mode": Mode.ACT,
        "policy": PolicySettings(),
        "facts": None,
        "switch_timeout_s": 600.0,
        "cycle_s": 5.0,
    }
    return CycleSettings(**facts | changes)


def view(journal: Journal, at: datetime, run: str = "r") -> RunView:
    """Show a run to the policy as a turn at `at` would."""
    row = journal.runs.find(run, at)
    assert row is not None
    return run_view(
        row,
        at,
        clock_trouble="",
        history=journal.switches.histories().of(run),
        launches=journal.outages.launches().get(run, Launches()),
    )


def live(
    journal: Journal,
    settings: CycleSettings,
    epoch: int | None,
    *,
    fleet: Fleet | None = None,
    isolation: Isolation | None = None,
) -> Cycle[JournalObservation]:
    """Make a cycle as the daemon does, that nobody plans for."""
    observer = JournalObserver(journal, lambda: settings, lambda: epoch, lambda _: fleet or Fleet())
    return Cycle(observer, JournalActor(journal, isolation))
