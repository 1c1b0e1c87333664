"""A daemon that has everything to show: a run that was switched, budgets, a cap, a plan, devices.

What all of its joules, and of its intensities, are can be chosen.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tests.api.conftest import Served
from tests.builders import observations
from tests.builders.accounts import (
    SLOT_S,
    A,
    B,
    Life,
    book,
    energy,
    intensity,
    moved,
    slot,
)
from tests.builders.carbon import slots
from tests.builders.runs import CATALOGUE
from tests.cycle.test_caps import node
from wattmesh.controller.cycle.capping import apply
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.cycle.fleet import FleetSnapshot
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.journal.carbon.forecasts import Forecast
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.loop_facts import NewestSample, NewestTurn, Signals
from wattmesh.controller.settings.model import BudgetSection
from wattmesh.policies.decision import (
    Action,
    Decision,
    Mode,
    PlanStep,
    PlanView,
    Rung,
)
from wattmesh.reconfig.catalogue import Catalogue, SwitchCost
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.energy.ledger import DeviceTotal
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import Component, PowerReading, Quality

NESO = Signal(provider="neso", zone="GB")
REASON = "switching from A to B: it saves 0.6 kg by 16:30, the switch costs 1.1 kg"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What everything is.

    Attributes:
        joules: quality of readings and rows. `grams`: of intensities.
        catalogue: of the run. `unread`: GPUs of it that nobody reads.
    """

    joules: str
    grams: Quality = Quality.MEASURED
    catalogue: Catalogue
    unread: tuple[str, ...] = ()
    signal: Signal = NESO


MEASURED = replace(
    CATALOGUE,
    simulated=(),
    points=tuple(replace(each, sources={}) for each in CATALOGUE.points),
    switch=SwitchCost(layout_s=0.0, layout_energy_j=4000.0, source="measured"),
)
SIMULATED = World(
    joules="simulated",
    catalogue=replace(
        CATALOGUE,
        switch=SwitchCost(layout_s=0.0, layout_energy_j=4000.0, source="simulated"),
        embodied_g_per_gpu_hour=10.0,
    ),
)
ASSUMED = replace(
    MEASURED,
    points=tuple(replace(each, sources={"power_w": "assumed"}) for each in MEASURED.points),
    switch=SwitchCost(layout_s=0.0, layout_energy_j=4000.0),
)
ESTIMATED = World(joules="estimated", grams=Quality.PROVISIONAL, catalogue=ASSUMED, unread=("g3",))


def lived(served: Served, world: World) -> Life:
    """Let a run train six slots at A, switch to B, and train six slots there."""
    journal = served.journal
    values = [100.0 + 37 * (number % 5) for number in range(60)]
    intensity(journal, values, quality=world.grams, signal=world.signal)
    life = Life(
        journal=journal,
        power_w=320.0,
        rate=900.0,
        unread=world.unread,
        quality=world.joules,
        signal=world.signal,
    )
    plan = RunPlan(catalogue=world.catalogue, deadline_after_s=3000.0)
    life.begin(plan=plan, tokens_total=1_500_000)
    life.live(6)
    moved(journal, served.loop_facts.lead.epoch or 0, begun=slot(6), ended=slot(7))
    life.layout, life.power_w, life.rate, life.slots = B, 150.0, 500.0, 7
    read = [gpu for gpu in life.gpus if gpu not in world.unread]
    rows = [energy(6, 3_000_000, gpu_uuid=gpu, quality=world.joules) for gpu in read]
    for number, line in enumerate(("idle", "idle_after_release", "unattributed", "profiling")):
        own = {"run": "", "incarnation": "", "line": line, "gpu_uuid": f"h{number}"}
        rows += [energy(at, 900_000, quality=world.joules, **own) for at in (2, 8)]
    book(journal, *rows)
    life.live(6)
    served.clock.pass_s(13 * SLOT_S)
    return life


def readings(served: Served, world: World) -> tuple[PowerReading, ...]:
    """What every device tells: four GPUs and a processor."""
    now = served.clock.wall
    told: dict[str, Any] = {
        "at": now,
        "monotonic_s": served.clock.monotonic_s,
        "power_w": 300.0,
        "energy_mj": 5_000,
        "clock_mhz": 1300,
        "power_limit_w": 700.0,
        "source": "nvml",
        "quality": Quality(world.joules),
    }
    gpus = [PowerReading(gpu_uuid=f"g{number}", **told) for number in range(4)]
    cpu = PowerReading(
        gpu_uuid="cpu:n1:package-0", component=Component.CPU, **told | {"source": "rapl"}
    )
    return (*gpus, cpu)


def everything(served: Served, world: World) -> None:
    """Let a daemon have everything to show."""
    lived(served, world)
    loop_facts, now = served.loop_facts, served.clock.wall
    facts = SignalFacts(signal=world.signal, interval_s=SLOT_S, stale_after_s=5400.0)
    loop_facts.signals = Signals(decision=facts, accounting=facts)
    served.journal.carbon.fetched(world.signal, now, ok=True)
    limits = {"cluster": BudgetSection(grams=3.0), "llm": BudgetSection(grams=90.0)}
    loop_facts.settings = loop_facts.settings.model_copy(update={"budget": limits})
    told = readings(served, world)
    loop_facts.sampled = NewestSample(
        monotonic_s=served.clock.monotonic_s, sample=Sample(readings=told)
    )
    loop_facts.exporter.observe(
        Sample(readings=told), {each.gpu_uuid: DeviceTotal(booked_mj=9_000) for each in told}
    )
    decided(served, world, expected(served, world))
    capped(served, world)
    PeriodRoll(served.journal, loop_facts).turn()
    served.cycle.turn()


def expected(served: Served, world: World) -> int:
    """Keep an issue of a forecast; give its id."""
    now = served.clock.wall
    issue = Forecast(
        signal=world.signal,
        rung=Rung.ISSUED,
        source=world.signal.provider,
        issued_at=now,
        fetched_at=now,
        slots=slots([150.0] * 4, now),
    )
    served.journal.forecasts.store(issue)
    return served.journal.forecasts.newest(world.signal)[0].id


def decision(**changes: Any) -> Decision:
    """What was decided about the run."""
    values: dict[str, Any] = {
        "run": "r",
        "action": Action.HOLD,
        "kind": "gain_too_small",
        "reason": REASON,
        "current": "A",
        "target": "B",
        "predicted_g": 600.0,
        "switch_cost_g": 1100.0,
        "plan_bound_g": 4000.0,
        "slack_s": 60.0,
    }
    return Decision(**values | changes)


def decided(served: Served, world: World, forecast: int) -> None:
    """Let a cycle have decided with a plan."""
    now, made = served.clock.wall, decision()
    served.journal.decisions.record([made], now=now, epoch=1, mode=Mode.ACT, forecast=forecast)
    plan = PlanView(
        made_at=now,
        digest="d",
        origin="B",
        steps=(PlanStep(start=now, end=now + timedelta(hours=9), point="A"),),
        price_mu=2.0e-4 / 3.6,
        grams=2900.0,
        bound_g=2890.0,
        gap=0.003,
        budget="the budget of 3 g cannot be kept: the rest of the work takes at least 2.89 kg",
    )
    seen = observations.observation(
        observations.run(
            run="r", name="llm", catalogue=world.catalogue, plan=plan, current=None, layout=A
        ),
        now=now,
        grid=observations.slots([300.0, 100.0], start=now),
    )
    report = CycleReport(at=now, sentence=f"llm: {REASON}.", decisions=(made,), observation=seen)
    served.loop_facts.turned = NewestTurn(monotonic_s=served.clock.monotonic_s, report=report)


def capped(served: Served, world: World) -> None:
    """Let an operator have capped the power, and a node have refused rows."""
    loop_facts, now = served.loop_facts, served.clock.wall
    told = node(at=now)
    devices = {gpu: {**each, "quality": world.joules} for gpu, each in told.devices.items()}
    refused = {"rows": 2, "energy_j": 12.0, "why": "its line is unknown"}
    loop_facts.fleet = replace(
        loop_facts.fleet,
        nodes=(replace(told, devices=devices, facts={**told.facts, "refused": refused}),),
    )
    until = (now + timedelta(hours=2)).isoformat()
    answer = served.post("/v1/powercap", {"cap_w": 1200.0, "until": until, "reason": "hot"})
    assert answer.status == 200, answer.body
    row, before = served.journal.caps.standing(now)[0], loop_facts.turned
    assert row is not None
    assert before is not None
    assert before.report.observation is not None
    _, cap = apply(before.report.observation, row, loop_facts.fleet.nodes, ())
    loop_facts.snapshot = FleetSnapshot.of(
        served.clock.monotonic_s,
        served.journal.runs.all(now),
        loop_facts.fleet.nodes,
        frozen="",
        cap=cap,
    )
    loop_facts.turned = replace(before, report=replace(before.report, cap=cap))
