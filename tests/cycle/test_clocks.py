"""The clock wished for a run's GPUs: committed before anybody sets it, and taken back in time."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.actuator import worlds
from tests.builders import cycles
from tests.builders.cycles import CATALOGUE, dirty_day, report, step_switch
from tests.builders.points import point
from tests.builders.runs import T0, A, B, register
from wattmesh.controller.cycle import cycle
from wattmesh.controller.cycle.clocks import (
    BEAT_S,
    LEASE_S,
    back_s,
    desired,
    due_clock,
    lapsed,
    trouble,
)
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.cycle.fleet import Fleet, GpusRead
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import stays
from wattmesh.controller.journal.runs.run_store import RunPlan, RunRow, RunStore
from wattmesh.errors import Fenced, InputInvalid
from wattmesh.policies.decision import Action, Decision, Mode, Observation
from wattmesh.policies.rules.decide import decide
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.desired import Desired, GpuControl

GPUS = tuple(f"GPU-{n}" for n in range(4))
CONTROLS = {gpu: GpuControl(gpu_uuid=gpu, settable=True) for gpu in GPUS}
FAST = replace(point("A", A, 1000.0, 1600.0), clock_mhz=1980)
SLOW = replace(point("S", A, 850.0, 1050.0), clock_mhz=1305)
SMALL = replace(point("B", B, 300.0, 1500.0), clock_mhz=1500)
WITH_CLOCKS = replace(CATALOGUE, points=(FAST, SLOW, SMALL))


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """A run on four GPUs, unlocked, before two dirty hours and a clean day."""
    return dirty_day(journal, WITH_CLOCKS, gpus=GPUS)


def read(*lately: str, also: tuple[str, ...] = ()) -> GpusRead:
    """The run's GPUs are known, and others too; so many were read lately."""
    return GpusRead(known=frozenset((*GPUS, *also)), lately=frozenset(lately))


def turn(journal: Journal, *, at: Any = T0, **changes: Any) -> CycleReport:
    """Run one cycle of a daemon that leads and hears all actuators."""
    known: dict[str, Any] = {"gpus": read(*GPUS), "controls": CONTROLS}
    known |= {name: changes.pop(name) for name in ("gpus", "controls", "nodes") if name in changes}
    return cycles.turn(journal, at=at, fleet=Fleet(**known), **changes)


def row(journal: Journal) -> RunRow:
    """The run as the journal has it."""
    found = journal.runs.find("r", T0)
    assert found is not None
    return found


def wished(journal: Journal, mode: Mode = Mode.ACT, frozen: str = "") -> Desired:
    """What the node would hear."""
    rows = journal.runs.all(T0)
    return desired("n1", GPUS, rows, epoch=7, mode=mode, frozen=frozen)


def test_a_dirty_hour_lowers_the_clock_of_every_gpu_of_the_run(journal: Journal) -> None:
    """The intent is a row; the wish follows from it, for all GPUs of the run alike."""
    said = turn(journal)
    assert said.decisions[0].action is Action.CLOCK
    assert row(journal).clock_mhz == 1305
    found = row(journal).point
    assert found is not None
    assert found.id == "S"
    wishes = wished(journal).wishes
    assert [(wish.gpu_uuid, wish.clock_mhz, wish.lease_s) for wish in wishes] == [
        (gpu, 1305, LEASE_S) for gpu in GPUS
    ]
    assert Desired.from_json(wished(journal).to_json()) == wished(journal)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_outside_act_nothing_is_wished(journal: Journal, mode: Mode) -> None:
    """Neither committed nor, from before, still heard by a node."""
    turn(journal, mode=mode)
    assert row(journal).clock_mhz is None
    turn(journal)
    assert wished(journal).wishes
    assert not wished(journal, mode=mode).wishes
    turn(journal, mode=mode)
    assert row(journal).clock_mhz is None


def test_a_freeze_takes_the_clock_back(journal: Journal) -> None:
    """Hands off means that nothing of ours stays on the GPUs."""
    turn(journal)
    journal.runs.freeze("r", reason="look", by="op", now=T0)
    assert not wished(journal).wishes
    turn(journal)
    assert row(journal).clock_mhz is None


def test_one_gpu_that_cannot_be_held_frees_all(journal: Journal) -> None:
    """The ranks of one run wait for each other."""
    turn(journal)
    broken = CONTROLS | {"GPU-2": GpuControl(gpu_uuid="GPU-2", trouble="somebody else set it")}
    said = turn(journal, controls=broken)
    assert row(journal).clock_mhz is None
    assert "GPU GPU-2 cannot be set: somebody else set it" in said.decisions[0].reason
    turn(journal)
    assert row(journal).clock_mhz is None  # the clock was changed a moment ago
    later = T0 + timedelta(seconds=901)
    report(journal, step=2, at=later)
    turn(journal, at=later)
    assert row(journal).clock_mhz == 1305


def test_below_full_coverage_no_clock_is_set_but_one_that_stands_is_kept(journal: Journal) -> None:
    """Nobody could say what a new one does; taking one back would be an act as well."""
    said = turn(journal, gpus=read(*GPUS[:3]))
    assert row(journal).clock_mhz is None
    assert "the power of only 3 of 4 GPUs is seen" in said.decisions[0].reason
    turn(journal)
    turn(journal, gpus=read(*GPUS[:3]))
    assert row(journal).clock_mhz == 1305


def test_what_others_name_or_tell_holds_no_run(journal: Journal) -> None:
    """A stranger's run names GPUs that nobody reads, a strange node told of 500 once: law 13."""
    plan = RunPlan(catalogue=WITH_CLOCKS, deadline=T0 + timedelta(hours=5))
    named = tuple(f"GPU-none-{n}" for n in range(4))
    register(
        journal,
        uid=7,
        plan=plan,
        run="s",
        name="stranger",
        incarnation="i-s",
        gpus=named,
        tokens_total=0,
        boundary_every=0,
        capabilities=(),
    )
    told = tuple(f"GPU-bad-{n}" for n in range(500))
    said = {each.run: each for each in turn(journal, gpus=read(*GPUS, also=told)).decisions}
    assert said["r"].action is Action.CLOCK
    assert "the power of only 0 of 4 GPUs is seen" in said["s"].reason


USED = [
    (("G0", "G1"), (0, 1), (2, 2), []),
    (("G0", "G2"), (0, 1), (1, 2), []),
    (("G0", "none"), (0, 1), (1, 2), ["none"]),
    (("G0", "none"), (0,), (1, 1), []),
    (("G0", ""), (0, 1), (1, 1), []),
    ((), (0, 1), (2, 3), []),
    (("", ""), (0, 1), (2, 3), []),
]


def test_a_run_is_judged_by_the_gpus_that_its_own_ranks_use(journal: Journal) -> None:
    """Read, silent, never read, parked, without a name; a run without any by the site's."""
    known = GpusRead(known=frozenset({"G0", "G1", "G2"}), lately=frozenset({"G0", "G1"}))
    for gpus, ranks, counted, unread in USED:
        held = replace(row(journal), gpus=gpus, ranks=ranks)
        assert (known.of(held), known.unread(held)) == (counted, unread), (gpus, ranks)


def test_a_deadline_takes_the_clock_back_though_no_clock_can_be_set(journal: Journal) -> None:
    """To let a lock go nobody is needed: neither all eyes nor an actuator that obeys."""
    turn(journal)
    assert row(journal).clock_mhz == 1305
    late = T0 + timedelta(seconds=7700)
    report(journal, step=2, at=late)
    said = turn(journal, at=late, gpus=read(*GPUS[:3]))
    assert (said.decisions[0].action, said.decisions[0].kind) == (Action.CLOCK, "deadline")
    assert row(journal).clock_mhz == 1980


@pytest.mark.parametrize(
    ("step_share", "write_every_s"), [(0.1, 60.0), (0.03, 60.0), (0.5, 2.0), (1.0, 0.0)]
)
def test_a_clock_that_nobody_wishes_any_more_is_back_in_the_time_the_guard_counts_on(
    step_share: float, write_every_s: float
) -> None:
    """By the actuator's own rules, from the lowest clock, under load, just after a write."""
    settings = replace(worlds.SETTINGS, step_share=step_share, write_every_s=write_every_s)
    board = worlds.gpu(worlds.facts(), lock_mhz=210)
    beats = 0
    board = replace(board, watch=replace(board.watch, wrote_s=worlds.NOW.boot_s))
    while board.held.lock_mhz is not None:
        beats += 1
        at_s = worlds.NOW.boot_s + beats * BEAT_S
        for act in worlds.decide(board, settings=settings, now_s=at_s).acts:
            held = replace(board.held, lock_mhz=act.clock_mhz)
            board = replace(board, held=held, watch=replace(board.watch, wrote_s=at_s))
    assert LEASE_S + beats * BEAT_S <= back_s(step_share, write_every_s)


def test_a_daemon_that_lost_its_epoch_wishes_nothing(journal: Journal) -> None:
    """The intent is committed under the leader's epoch or not at all."""
    journal.leadership.acquire("test", 60.0)
    with pytest.raises(Fenced):
        journal.runs.wish_clocks({"r": 1305}, now=T0, epoch=999)
    assert row(journal).clock_mhz is None


@pytest.mark.parametrize(("target", "commits"), [("S", 1), ("gone", 2)])
def test_all_clocks_are_wished_for_at_once_and_one_that_cannot_be_stops_no_other(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, target: str, commits: int
) -> None:
    """One commit for all runs; if that fails, one for each, and what failed is one run's."""
    plan = RunPlan(catalogue=WITH_CLOCKS, deadline=T0 + timedelta(hours=5))
    for name in ("s", "t"):
        register(
            journal, plan=plan, run=name, name=name, incarnation=name, host="",
            gpus=tuple(f"{name}-{gpu}" for gpu in GPUS), tokens_total=10_000_000,
        )  # fmt: skip
    targets = {"r": "S", "s": "S", "t": target}

    def decided(seen: Observation) -> tuple[Decision, ...]:
        return tuple(
            replace(each, action=Action.CLOCK, target=targets[each.run], kind="test")
            for each in decide(seen)
        )

    wished: list[tuple[str, ...]] = []
    wish_clocks = RunStore.wish_clocks

    def noted(store: RunStore, wishes: Mapping[str, int | None], **others: Any) -> None:
        wished.append(tuple(sorted(wishes)))
        wish_clocks(store, wishes, **others)

    monkeypatch.setattr(stays, "_TOGETHER", 2)
    monkeypatch.setattr(RunStore, "wish_clocks", noted)
    monkeypatch.setattr(cycle, "decide", decided)
    turn(journal)
    clocks = {each.run: each.clock_mhz for each in journal.runs.all(T0)}
    assert clocks == {"r": 1305, "s": 1305, "t": 1305 if target == "S" else None}
    assert len(wished) == commits
    assert {each: journal.stays.of(each)[-1].clock_mhz for each in clocks} == clocks


def test_clocks_wished_for_together_are_all_written_or_none(journal: Journal) -> None:
    """A run that is not known takes the others back with it."""
    epoch = journal.leadership.acquire("test", 60.0)
    assert epoch is not None
    with pytest.raises(InputInvalid, match="run gone is not known"):
        journal.runs.wish_clocks({"r": 1305, "gone": 1305}, now=T0, epoch=epoch)
    assert row(journal).clock_mhz is None
    assert {each.clock_mhz for each in journal.stays.of("r")} == {None}


def test_the_clock_follows_a_confirmed_switch(journal: Journal) -> None:
    """Layout first, clock when the run has said that it trains there."""
    journal.runs.order_point("r", "B", reason="", by="op")
    turn(journal)
    switch = journal.switches.open("r")
    assert switch is not None
    assert due_clock(row(journal), switch) is None
    step_switch(journal, SwitchState.CONFIRMED)
    report(journal, step=21, layout=B)
    turn(journal, at=T0 + timedelta(seconds=31))
    assert row(journal).clock_mhz == 1500
    found = row(journal).point
    assert found is not None
    assert found.id == "B"


def test_what_keeps_a_clock_from_being_set_is_said_in_order(journal: Journal) -> None:
    """The most basic lack first."""
    run = row(journal)
    assert trouble(run, CONTROLS, (4, 4)) == ""
    assert "did not say which GPUs" in trouble(replace(run, gpus=("",)), CONTROLS, (4, 4))
    assert "for 4 of its 4 GPUs" in trouble(run, {}, (4, 4))
    idle = {gpu: GpuControl(gpu_uuid=gpu) for gpu in GPUS}
    assert "do not act" in trouble(run, idle, (4, 4))
    assert "power of only 3 of its 4 GPUs is seen" in trouble(run, CONTROLS, (3, 4))
    assert not lapsed(run, {}, mode=Mode.OBSERVE, frozen="")
