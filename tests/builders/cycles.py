"""Live cycles on a real journal: their settings, both ports, and the run that they decide about."""

from datetime import datetime, timedelta
from typing import Any

from tests.builders.carbon import intensities
from tests.builders.points import catalogue, point
from tests.builders.runs import T0, UID, A, B, progress, register, transition
from wattmesh.controller.cycle.act import JournalActor
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.cycle.cycle import Cycle, CycleReport
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.cycle.isolation import Isolation
from wattmesh.controller.cycle.journal_snapshot import CycleSettings, JournalObservation
from wattmesh.controller.cycle.observe import JournalObserver, run_view
from wattmesh.controller.cycle.plans import Plans, with_plans
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.outages import Launches
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.policies.decision import Decision, Mode, Observation, PolicySettings, RunView
from wattmesh.policies.rules.decide import decide
from wattmesh.reconfig.catalogue import Catalogue, SwitchCost
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality

SIGNAL = Signal(provider="csv", zone="GB")
FACTS = SignalFacts(signal=SIGNAL, interval_s=1800.0, stale_after_s=7200.0)
HALF_HOUR = timedelta(minutes=30)
CATALOGUE = catalogue(
    point("A", A, 1000.0, 1600.0),
    point("B", B, 550.0, 710.0),
    job="llm",
    tokens_total=10_000_000,
    switch=SwitchCost(layout_s=30.0, layout_energy_j=10_000.0, source="measured"),
    global_batch=0,
    seq_len=0,
)


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


def think(seen: Observation, plans: Plans) -> tuple[Observation, tuple[Decision, ...]]:
    """Decide about what is seen with the newest plans; give the observation with them, too."""
    planned = with_plans(seen, plans)
    return planned, decide(planned)


def turn(
    journal: Journal, *, at: datetime = T0, fleet: Fleet | None = None, **changes: Any
) -> CycleReport:
    """Run one cycle of a daemon that has just started and leads; `changes` to its settings."""
    epoch = journal.leadership.acquire("test", 60.0)
    facts: dict[str, Any] = {"policy": PolicySettings(dwell_s=600.0), "facts": FACTS}
    return live(journal, acting(**facts | changes), epoch, fleet=fleet).run(at)


def introduce(
    journal: Journal, catalogue: Catalogue = CATALOGUE, *, gpus: tuple[str, ...] = ()
) -> None:
    """Register one live run at point A that has five hours, and let it report its first step."""
    plan = RunPlan(catalogue=catalogue, deadline=T0 + timedelta(hours=5))
    register(journal, plan=plan, gpus=gpus, tokens_total=10_000_000, boundary_every=20, host="")
    report(journal, step=1)


def store_day(journal: Journal, *, high_first: bool) -> None:
    """Store intensities: two dirty hours, then clean ones (or the other way round)."""
    dirty, clean = (300.0, 60.0) if high_first else (60.0, 300.0)
    values = [dirty] * 4 + [clean] * 44
    journal.carbon.store(intensities(SIGNAL, values, T0, HALF_HOUR, quality=Quality.FORECAST))
    journal.carbon.fetched(SIGNAL, T0, ok=True)


def dirty_day(
    journal: Journal, catalogue: Catalogue = CATALOGUE, *, gpus: tuple[str, ...] = ()
) -> Journal:
    """Give the journal with one live run, before two dirty hours and a clean day."""
    introduce(journal, catalogue, gpus=gpus)
    store_day(journal, high_first=True)
    return journal


def report(
    journal: Journal,
    *,
    step: int,
    layout: Layout = A,
    at: datetime | None = None,
    attempt: int = 1,
) -> None:
    """Let the run report progress, `step` seconds after it began unless `at` says when."""
    progress(
        journal,
        now=at or T0 + timedelta(seconds=step),
        tokens=step * 1000,
        incarnation=f"i{attempt}",
        attempt=attempt,
        seq=step,
        step=step,
        samples=step * 8,
        loss=2.0,
        layout=layout,
        ranks=tuple(range(layout.world_size)),
        boundary_every=20,
    )


def step_switch(
    journal: Journal, state: SwitchState, *, at_s: float = 30.0, **changes: Any
) -> None:
    """Let the run report one step of its open switch, `at_s` after T0."""
    switch = journal.switches.history("r")[0]
    facts: dict[str, Any] = {"epoch": switch.epoch, "evidence": {}}
    told = transition(state, switch.switch_id, **facts | changes)
    journal.switches.record(told, owner_uid=UID, now=T0 + timedelta(seconds=at_s))
