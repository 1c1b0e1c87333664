"""An operator's power cap in the cycle: one row in the journal, obligations for every board."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.runs import T0, register
from tests.cycle.test_clocks import GPUS, journal, turn
from wattmesh.controller.accounting.measured_points import capped_spans
from wattmesh.controller.cycle.cap_held import HOLDER, CapNow, sentence
from wattmesh.controller.cycle.capping import boards, working
from wattmesh.controller.cycle.clocks import desired
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.errors import Fenced
from wattmesh.policies.decision import Mode
from wattmesh.telemetry.desired import Applied, Desired, GpuControl, LeaseKind

__all__ = ["journal"]
UNTIL = T0 + timedelta(hours=2)
CONTROL = GpuControl(gpu_uuid="", settable=True, limit_w=700.0, floor_w=250.0)


def node(
    gpus: tuple[str, ...] = GPUS, *, at: Any = T0, changes: Mapping[str, Any] | None = None
) -> NodeRow:
    """A node whose boards may draw 700 W each; `changes` to what its actuator says."""
    told = [replace(CONTROL, gpu_uuid=gpu, **(changes or {})) for gpu in gpus]
    return NodeRow(
        node="n1",
        boot_id="b",
        last_seen_at=at,
        devices={gpu: {"at": at.isoformat(), "power_limit_w": 700.0} for gpu in gpus},
        facts={"applied": Applied(mode="enforce", epoch=1, gpus=tuple(told)).to_json()},
    )


def order(journal: Journal, cap_w: float, **changes: Any) -> Any:
    """Order a cap as the leader."""
    epoch = journal.leadership.acquire("test", 60.0) or 0
    facts: dict[str, Any] = {"by": "ana", "reason": "hot", "now": T0, "epoch": epoch}
    return journal.caps.order(cap_w, changes.pop("until", UNTIL), **facts | changes)


def cap_of(report: CycleReport) -> CapNow:
    """The cap that a turn kept."""
    assert report.cap is not None
    return report.cap


def wished(report: CycleReport, *, mode: Mode = Mode.ACT, frozen: str = "") -> Desired:
    """What the node hears."""
    return desired("n1", GPUS, (), epoch=1, mode=mode, frozen=frozen, cap=report.cap)


def test_a_cap_becomes_obligations_that_last_as_long_as_it(journal: Journal) -> None:
    """In the next turn, in every mode, frozen or not; the run's own slower clock first."""
    order(journal, 1200.0)
    report = turn(journal, nodes=(node(),))
    assert cap_of(report).plan.meets
    for heard in (wished(report), wished(report, mode=Mode.OBSERVE), wished(report, frozen="no")):
        assert {wish.gpu_uuid for wish in heard.wishes} == set(GPUS)
        for wish in heard.wishes:
            assert wish.kind is LeaseKind.OBLIGATION
            assert (wish.holder, wish.until, wish.clock_mhz) == (HOLDER, UNTIL, 1305)
        assert sum(wish.cap_w or 0.0 for wish in heard.wishes) <= 1200.0
    assert cap_of(report).slowed == {"llm": "A"}
    assert report.decisions[0].current == "S"
    assert "power cap of 1.2 kW" in report.sentence


def test_the_same_facts_give_the_same_wish_again_and_again(journal: Journal) -> None:
    """What boards hold by then changes nothing: nothing swings."""
    order(journal, 1200.0)
    first = wished(turn(journal, nodes=(node(),)))
    held = node(changes={"cap_w": 275.625, "clock_mhz": 1305})
    again = wished(turn(journal, at=T0 + timedelta(seconds=5), nodes=(replace(held),)))
    assert again == first


def test_after_its_end_nothing_is_wished_and_the_run_is_where_it_was(journal: Journal) -> None:
    """Nobody has to end it; ended by hand it is over at once."""
    soon = T0 + timedelta(seconds=5)
    order(journal, 1200.0, until=soon)
    later = turn(journal, at=soon, nodes=(node(at=soon),))
    assert later.cap is None
    assert wished(later).wishes == ()
    assert later.decisions[0].current == "A"
    order(journal, 1200.0)
    epoch = journal.leadership.acquire("test", 60.0) or 0
    ended = journal.caps.end(by="bo", now=T0, epoch=epoch)
    assert [each.cap_w for each in ended] == [1200.0]
    assert turn(journal, nodes=(node(),)).cap is None
    newest = journal.caps.list()[0]
    assert (newest.ended_by, newest.ended_at) == ("bo", T0)
    assert journal.caps.end(by="bo", now=T0, epoch=epoch) == ()


def test_a_newer_cap_takes_the_place_of_the_one_before(journal: Journal) -> None:
    """Rows stay, one is in force."""
    assert order(journal, 1200.0) is None
    before = order(journal, 2000.0, by="bo", now=T0 + timedelta(minutes=1))
    assert before.cap_w == 1200.0
    assert [each.cap_w for each in journal.caps.list()] == [2000.0, 1200.0]
    in_force = journal.caps.standing(T0 + timedelta(minutes=2))[0]
    assert in_force is not None
    assert in_force.cap_w == 2000.0


def test_only_the_leader_writes_caps(journal: Journal) -> None:
    """A daemon that was replaced orders and ends nothing."""
    order(journal, 1200.0)
    with pytest.raises(Fenced):
        order(journal, 5.0, epoch=99)
    with pytest.raises(Fenced):
        journal.caps.end(by="x", now=T0, epoch=99)
    assert len(journal.caps.list()) == 1


def test_what_is_not_heard_counts_in_full_and_is_wished_for_all_the_same(journal: Journal) -> None:
    """A node that comes back must not be told that nothing is wished."""
    order(journal, 1200.0)
    silent = node(at=T0 - timedelta(hours=1))
    report = turn(journal, nodes=(silent,))
    plan = cap_of(report).plan
    assert not plan.meets
    assert plan.bound_w == 2800.0
    assert plan.deaf == GPUS
    assert {wish.gpu_uuid for wish in wished(report).wishes} == set(GPUS)
    assert report.decisions[0].current == "A"
    assert "cannot be kept" in sentence(cap_of(report), T0)


def test_a_board_whose_limit_nobody_tells_counts_like_the_largest_and_is_named(
    journal: Journal,
) -> None:
    """Two of four have no limit; with those of the others known, nothing is said."""
    order(journal, 1200.0)
    mute = node(GPUS[2:], changes={"limit_w": None, "floor_w": None})
    mute = replace(mute, node="n2", devices={gpu: {"at": T0.isoformat()} for gpu in GPUS[2:]})
    found = cap_of(turn(journal, nodes=(node(GPUS[:2]), mute)))
    assert found.plan.untold == GPUS[2:]
    said = f"No node tells the power limit of {GPUS[2]} and 1 more GPU; a GPU without one counts"
    assert said in sentence(found, T0)
    assert "No node tells" not in sentence(cap_of(turn(journal, nodes=(node(),))), T0)


def test_a_cap_is_not_called_kept_where_no_limit_is_known(journal: Journal) -> None:
    """No watts are told either: unknown is never zero."""
    order(journal, 1200.0)
    mute = node(changes={"limit_w": None, "floor_w": None})
    mute = replace(mute, devices={gpu: {"at": T0.isoformat()} for gpu in GPUS})
    found = cap_of(turn(journal, nodes=(mute,)))
    assert not found.plan.meets
    said = sentence(found, T0)
    assert said.startswith("Whether the power cap of 1.2 kW until ")
    assert (
        f"is unknown: no GPU's limit is known. No node tells the power limit of {GPUS[0]}" in said
    )
    assert " 0 W" not in said


def test_what_only_a_registration_names_takes_no_watts_from_others(journal: Journal) -> None:
    """It is told with the cap, by number: such boards may draw all the same."""
    order(journal, 1200.0)
    before = cap_of(turn(journal, nodes=(node(),)))
    assert "does not know" not in sentence(before, T0)
    named = (*(f"GPU-none-{n}" for n in range(3)), GPUS[0])
    later = T0 + timedelta(seconds=1)
    plan = RunPlan()
    register(journal, now=later, uid=7, plan=plan, run="a", name="x", incarnation="i-a", gpus=named)
    after = cap_of(turn(journal, at=later, nodes=(node(at=later),)))
    assert (after.plan.boards, after.plan.bound_w) == (before.plan.boards, before.plan.bound_w)
    assert after.unreported == named[:3]
    assert "does not know of GPU-none-0 and 2 more GPUs, which runs name" in sentence(after, T0)


def test_a_board_in_thermal_trouble_keeps_the_cap_that_it_has() -> None:
    """No economy wish would be obeyed there now, but the obligation is in force."""
    hot = node(changes={"settable": False, "cap_w": 300.0})
    lost = node(changes={"settable": False, "cap_w": 300.0, "trouble": "it does not answer"})
    assert all(each.obeys for each in boards((hot,), T0))
    assert not any(each.obeys for each in boards((lost,), T0))
    assert {each.limit_w for each in boards((hot,), T0)} == {700.0}


def test_a_run_that_fell_silent_is_taken_to_train_on_for_an_hour(journal: Journal) -> None:
    """Its boards are no idle ones; of a run that is long gone they are."""
    rows = journal.runs.all(T0 + timedelta(minutes=30))
    assert rows[0].state == "lost"
    assert working(rows, T0 + timedelta(minutes=30)) == {"r": GPUS}
    assert working(rows, T0 + timedelta(hours=2)) == {}


def announce(journal: Journal, cap_w: float, start: Any, until: Any) -> None:
    """Announce a cap as the leader."""
    epoch = journal.leadership.acquire("test", 60.0) or 0
    journal.caps.announce(cap_w, start, until, by="grid", reason="peak", epoch=epoch)


def test_an_announced_cap_holds_from_its_own_time_and_the_lower_of_two_counts(
    journal: Journal,
) -> None:
    """Until then no board is held; while it holds it stands beside the one in force before."""
    start, until = T0 + timedelta(minutes=30), T0 + timedelta(minutes=60)
    order(journal, 2000.0)
    announce(journal, 1200.0, start, until)
    early = turn(journal, nodes=(node(),))
    assert cap_of(early).row.cap_w == 2000.0
    (told,) = early.observation.runs[0].caps_ahead if early.observation else ()
    assert (told.cap_w, told.start, told.until, told.point) == (1200.0, start, until, "S")
    epoch = journal.leadership.acquire("test", 60.0) or 0
    assert [each.cap_w for each in early.caps_ahead] == [1200.0]
    at = [T0, start - timedelta(seconds=1), start, until - timedelta(seconds=1), until]
    assert [_in_force_w(journal, each) for each in at] == [2000, 2000, 1200, 1200, 2000]
    journal.caps.end(by="bo", now=start, epoch=epoch)
    assert _in_force_w(journal, until - timedelta(seconds=1)) is None


def _in_force_w(journal: Journal, at: Any) -> float | None:
    found = journal.caps.standing(at)[0]
    return found.cap_w if found else None


def test_a_step_of_the_clock_begins_an_announced_cap_early_rather_than_late(
    journal: Journal,
) -> None:
    """It begins when either clock says so, and ends only when both do."""
    start, until, hour = T0 + timedelta(hours=1), T0 + timedelta(hours=2), timedelta(hours=1)
    announce(journal, 1200.0, start, until)
    assert journal.caps.standing(start, unstepped=start - hour)[0] is not None
    assert journal.caps.standing(start - hour, unstepped=start)[0] is not None
    assert journal.caps.standing(until, unstepped=start)[0] is not None
    assert journal.caps.standing(T0, unstepped=T0)[0] is None
    assert journal.caps.standing(until, unstepped=until)[0] is None


def test_what_is_announced_can_be_taken_back_and_what_is_in_force_stays(journal: Journal) -> None:
    """Only by the leader; a row stays, and gives no time that counts as capped."""
    order(journal, 2000.0)
    announce(journal, 1200.0, T0 + timedelta(minutes=30), UNTIL)
    announce(journal, 1100.0, T0 + timedelta(minutes=20), UNTIL)
    with pytest.raises(Fenced):
        journal.caps.withdraw(by="x", now=T0, epoch=99)
    epoch = journal.leadership.acquire("test", 60.0) or 0
    gone = journal.caps.withdraw(by="bo", now=T0, epoch=epoch)
    assert [each.cap_w for each in gone] == [1100.0, 1200.0]
    assert journal.caps.withdraw(by="bo", now=T0, epoch=epoch) == ()
    assert _in_force_w(journal, T0 + timedelta(minutes=40)) == 2000.0
    assert len(journal.caps.list()) == 3
    assert capped_spans(journal) == ((T0, UNTIL),)
