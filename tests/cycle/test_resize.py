"""A run that goes on in another size, on a real journal: ordered, queued, there, back, or lost."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.builders.cycles import CATALOGUE, report, step_switch, store_day, turn, view
from tests.builders.runs import T0, UID, A, B, progress, register, transition
from tests.cycle import test_sleep
from tests.cycle.test_sleep import Wants, another_daemon, later, order, row
from wattmesh.controller.cycle import observe
from wattmesh.controller.cycle.fleet import holder
from wattmesh.controller.cycle.plans import with_plans
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.status.waiting import queued_line
from wattmesh.policies.decision import RESIZES, SUSPENDS, Action, PolicySettings
from wattmesh.policies.menu import REST_S, why_not
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import REFUSED, SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

ABLE = ("in_place", "parking", "restart", SUSPENDS, RESIZES)
SECOND = {"incarnation": "i2", "attempt": 2}
AT = later(5)
"""When it leaves."""
BACK_AT = later(15)
"""From when on the old size may begin."""
GIVES_BACK = replace(
    CATALOGUE, release=Release.RELEASED, switch=replace(CATALOGUE.switch, reacquire_s=600.0)
)
LEAVING = (SwitchState.ANNOUNCED, SwitchState.CHECKPOINTING, SwitchState.STOPPING)
ARRIVING = (
    SwitchState.LAUNCHING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
)
FOUR, TWO = ("g0", "g1", "g2", "g3"), ("h0", "h1")


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """A journal of each kind with one live run at A whose launcher holds launches of any size."""
    plan = RunPlan(catalogue=GIVES_BACK, deadline=T0 + timedelta(hours=9))
    register(
        journal, plan=plan, gpus=FOUR, tokens_total=10_000_000, boundary_every=20, capabilities=ABLE
    )
    report(journal, step=1)
    store_day(journal, high_first=True)
    return journal


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Wants:
    """What the planner says from now on; at first: B."""
    wants = Wants("B", T0 + timedelta(hours=4))
    monkeypatch.setattr(observe, "with_plans", lambda seen, plans: with_plans(seen, wants))
    return wants


def leave(journal: Journal, at: datetime = AT, **changes: Any) -> bool:
    """Let the run say that it leaves for the ordered size."""
    facts = {
        "reason": "restart",
        "wakes_at": BACK_AT.isoformat(),
        "held_as": "Slurm job 8 of alps, or Slurm job 7 of alps",
    }
    return test_sleep.leave(journal, at, **facts | changes)


def arrive(
    journal: Journal, at: datetime, layout: Layout = B, gpus: tuple[str, ...] = TWO, **changes: Any
) -> None:
    """Let the next launch register."""
    facts: dict[str, Any] = {
        **SECOND,
        "supersedes": "i1",
        "capabilities": ABLE,
        "layout": layout,
        "ranks": tuple(range(layout.world_size)),
        "world_size": layout.world_size,
        "gpus": gpus,
        "step": 20,
        "tokens": 20_000,
        "boundary_every": 20,
        "tokens_total": 10_000_000,
    }
    register(journal, now=at, **facts | changes)


def go_away(journal: Journal) -> None:
    """Order B, and let the run leave for it."""
    turn(journal, at=T0 + timedelta(seconds=2))
    for state in LEAVING:
        step_switch(journal, state, at_s=295.0)
    assert leave(journal)


def stand(journal: Journal, at_s: float, layout: Layout = B) -> None:
    """Let the launch prove what was ordered."""
    for state in ARRIVING:
        done: dict[str, Any] = {"evidence": {"total_s": 40.0}, "layout": layout}
        extra = done if state is SwitchState.CONFIRMED else {}
        step_switch(journal, state, at_s=at_s, **SECOND, **extra)


def test_a_plan_that_wants_another_size_becomes_an_order_for_another_job(
    journal: Journal, plans: Wants
) -> None:
    """It names exactly the ranks, how long their launch may wait, and says so in words."""
    said = turn(journal, at=T0 + timedelta(seconds=2)).decisions[0]
    made = order(journal)
    assert (made.mode, made.point, made.layout, made.ranks) == (SwitchMode.RESIZE, "B", B, (0, 1))
    assert made.waits_s == 600.0
    assert said.action is Action.SWITCH
    assert "it goes on as another job, which is counted to wait 10 min for its GPUs" in said.reason


@pytest.mark.parametrize(
    ("able", "job", "mode"),
    [
        (ABLE[:-1], GIVES_BACK, SwitchMode.IN_PLACE),  # torchrun on one host parks ranks
        (ABLE, CATALOGUE, SwitchMode.IN_PLACE),  # a job that keeps its GPUs parks them
        (ABLE, replace(GIVES_BACK, switch=CATALOGUE.switch), None),  # nobody knows how long
    ],
)
def test_only_a_launcher_that_can_is_asked_for_another_size(
    journal: Journal, plans: Wants, able: tuple[str, ...], job: Any, mode: SwitchMode | None
) -> None:
    """And only of a job that gives its GPUs back, once it is known how long others take to come."""
    deadline = T0 + timedelta(hours=9)
    register(
        journal,
        plan=RunPlan(catalogue=job, deadline=deadline),
        run="other",
        name="other",
        incarnation="j1",
        gpus=(),
        tokens_total=10_000_000,
        boundary_every=20,
        capabilities=able,
    )
    report_as = {"run": "other", "incarnation": "j1"}
    for each in (1, 2):
        _progress(journal, each, **report_as)
    (said,) = [d for d in turn(journal, at=T0 + timedelta(seconds=3)).decisions if d.run == "other"]
    made = journal.switches.open("other")
    assert (made.order.mode if made else None) == mode, said.reason


def _progress(journal: Journal, step: int, **changes: Any) -> None:
    progress(
        journal,
        now=T0 + timedelta(seconds=step),
        tokens=step * 1000,
        step=step,
        seq=step,
        boundary_every=20,
        **changes,
    )


def test_a_run_that_waits_for_its_size_is_queued_and_not_lost(
    journal: Journal, plans: Wants
) -> None:
    """Not while either launch may wait; after that a person is called, and it may still come.

    The switch stays open meanwhile, however long its time limit, and the run owns no GPU.
    """
    go_away(journal)
    waiting = row(journal, later(14))
    assert (waiting.state, waiting.asleep_at, waiting.wakes_at) == ("queued", None, BACK_AT)
    for minutes in (6, 14, 24, 39):
        (said,) = turn(journal, at=later(minutes), switch_timeout_s=60.0).decisions
        assert (said.action, said.kind) == (Action.HOLD, "queued")
        assert row(journal, later(minutes)).state == "queued"
    assert "Slurm job 8 of alps, or Slurm job 7 of alps starts it" in said.reason
    assert order(journal).mode is SwitchMode.RESIZE
    owner = holder(waiting)
    assert (owner.gpus, owner.released, owner.idles) == ((), FOUR, False)
    assert "or Slurm job 7 of alps starts it" in queued_line(waiting, later(14))
    assert view(journal, later(14)).queued_s == 540.0
    late = later(15 + 10 + 15.1)
    assert row(journal, late).state == "lost"
    assert turn(journal, at=late).decisions == ()
    assert journal.switches.history("r")[0].state is SwitchState.FAILED
    arrive(journal, late)
    assert row(journal, late).state == "live"


def test_what_it_waited_is_no_time_of_the_switch_and_no_outage(
    journal: Journal, plans: Wants
) -> None:
    """The launch has its whole time limit; baselines do not stop for the wait."""
    go_away(journal)
    arrive(journal, later(20))
    turn(journal, at=later(20.3), switch_timeout_s=60.0)
    assert order(journal).mode is SwitchMode.RESIZE
    stand(journal, 60 * 26.0)
    report(journal, step=21, layout=B, at=later(26.9), attempt=2)
    there = row(journal, later(27))
    assert (there.state, there.layout, there.world_size) == ("live", B, 2)
    assert (there.held_as, there.outage_from) == ("", None)
    done = journal.switches.history("r")[0]
    assert (done.state, done.total_s) == (SwitchState.CONFIRMED, 40.0)
    first, second = journal.stays.launches("r")
    assert (first.end, first.ours, first.gave_back, second.start) == (AT, True, True, later(20))
    shown = view(journal, later(27))
    assert (shown.outage_share, shown.failed_switches) == (0.0, 0)
    assert (shown.switches[0].origin, shown.switches[0].target) == ("A", "B")


@pytest.mark.parametrize(
    ("gpus", "released"),
    [
        (("g0", "g1"), ("g2", "g3")),
        (TWO, ("g0", "g1")),  # two idle that were idle before, elsewhere
        (("h0", "h1", "h2", "h3"), ()),
    ],
)
def test_as_many_gpus_are_given_back_as_the_run_has_fewer(
    journal: Journal, plans: Wants, gpus: tuple[str, ...], released: tuple[str, ...]
) -> None:
    """They are taken from the cluster's saving while they idle, wherever the new launch is."""
    go_away(journal)
    layout = B if len(gpus) == 2 else A
    arrive(journal, later(20), layout=layout, gpus=gpus)
    assert row(journal, later(20)).released == released


def test_a_launch_that_comes_back_in_the_old_size_has_rolled_back(
    journal: Journal, plans: Wants
) -> None:
    """One failure is counted, nobody is called, and it trains on; the second one freezes it."""
    go_away(journal)
    arrive(journal, later(16), layout=A, gpus=FOUR)
    step_switch(
        journal,
        SwitchState.ROLLED_BACK,
        at_s=16 * 60.0,
        **SECOND,
        detail="it never began",
        layout=A,
    )
    report(journal, step=21, at=later(16.9), attempt=2)
    back = row(journal, later(17))
    assert (back.state, back.layout, back.frozen) == ("live", A, "")
    assert journal.switches.open("r") is None
    assert view(journal, later(17)).failed_switches == 1
    assert back.released == ()


def test_a_run_that_was_frozen_meanwhile_trains_on_in_what_it_comes_back_in(
    journal: Journal, plans: Wants
) -> None:
    """A freeze stops nobody who has left; nothing more is ordered."""
    go_away(journal)
    journal.runs.freeze("r", reason="by hand", by="anna", now=later(6))
    (said,) = turn(journal, at=later(7)).decisions
    assert said.kind == "queued"
    arrive(journal, later(8))
    stand(journal, 8.2 * 60)
    turn(journal, at=later(9))
    assert (row(journal, later(9)).layout, journal.switches.open("r")) == (B, None)


def test_a_restart_in_one_size_is_no_queue(journal: Journal, plans: Wants) -> None:
    """A launch that names nobody who holds the next one is back within seconds, or lost."""
    turn(journal, at=T0 + timedelta(seconds=2))
    leave(journal, held_as="", wakes_at=None, left_at=None)
    assert row(journal, AT + timedelta(seconds=31)).state == "lost"


def test_a_time_that_is_no_time_hides_nobody(journal: Journal, plans: Wants) -> None:
    """A job that names the year 9999 is lost after two months."""
    turn(journal, at=T0 + timedelta(seconds=2))
    leave(journal, wakes_at="9999-01-01T00:00:00Z")
    assert row(journal, T0 + timedelta(days=30)).state == "queued"
    assert row(journal, T0 + timedelta(days=63)).state == "lost"


@pytest.mark.parametrize("told", range(len(LEAVING) + 1 + 1 + len(ARRIVING) + 1))
def test_a_daemon_that_dies_after_any_report_of_a_resize_loses_nothing(
    journal: Journal, plans: Wants, told: int
) -> None:
    """For each prefix of what is written the run trains in the end, once, in the ordered size.

    The daemon is away from that moment until two hours later; then it hears the rest, in order, and
    cycles run before, between and after.
    """
    turn(journal, at=T0 + timedelta(seconds=2))
    switch_id, back = order(journal).switch_id, later(125)

    def step(state: SwitchState, at_s: float, **facts: Any) -> Any:
        made = transition(state, switch_id, epoch=1, **facts)

        def write(now: Journal) -> None:
            at = T0 + timedelta(seconds=at_s) if now is journal else back
            now.switches.record(made, owner_uid=UID, now=at)

        return write

    bare: dict[str, Any] = {"evidence": {}, "layout": None}
    writes: list[Any] = [step(each, 295.0, **bare) for each in LEAVING]
    writes.append(lambda now: leave(now, now=AT if now is journal else back))
    writes.append(lambda now: arrive(now, later(20) if now is journal else back))
    for each in ARRIVING:
        done = {"evidence": {"total_s": 40.0}, "layout": B}
        writes.append(step(each, 1210.0, **SECOND, **(done if each in ARRIVING[-1:] else bare)))
    for write in writes[:told]:
        write(journal)
    anew = another_daemon(journal, back)
    turn(anew, at=back)
    for write in writes[told:]:
        write(anew)
        turn(anew, at=back)
    there = row(anew, back)
    assert (there.layout, there.attempt, there.world_size, there.frozen) == (B, 2, 2, "")
    (done_switch,) = anew.switches.history("r")
    # An order of which nobody told that it was taken is given up after its time.
    ended = SwitchState.CONFIRMED if told else SwitchState.ABANDONED
    assert (done_switch.switch_id, done_switch.state) == (switch_id, ended)
    assert view(anew, back).failed_switches == 0
    assert anew.switches.open("r") is None
    anew.close()


def test_a_launcher_that_refuses_is_asked_again_later_and_freezes_nothing(
    journal: Journal, plans: Wants
) -> None:
    """A checkpoint for each refusal would be dear; an operator's order does not wait for that."""
    refusal = {REFUSED: "Slurm does not answer"}
    for number in range(3):
        at_s = 5.0 + number * (REST_S + 60.0)
        report(journal, step=2 + number, at=T0 + timedelta(seconds=at_s))
        (said,) = turn(journal, at=T0 + timedelta(seconds=at_s)).decisions
        assert (said.action, said.target) == (Action.SWITCH, "B"), said.reason
        step_switch(journal, SwitchState.ROLLED_BACK, at_s=at_s + 5.0, evidence=refusal)
        rests = T0 + timedelta(seconds=at_s + 10.0)
        report(journal, step=2 + number, at=rests)
        (said,) = turn(journal, at=rests).decisions
        assert said.action is Action.HOLD, said.reason
        assert len(journal.switches.history("r")) == number + 1
    shown = view(journal, rests)
    assert (shown.failed_switches, shown.frozen, shown.refused_s) == (0, "", 5.0)
    why = why_not(GIVES_BACK.points[1], shown, PolicySettings())
    assert why.endswith("would not hold its next launch 5 s ago (Slurm does not answer)")
    journal.runs.order_point("r", "B", by="anna", reason="by hand")
    (ordered,) = turn(journal, at=rests).decisions
    assert (ordered.action, ordered.kind) == (Action.SWITCH, "operator"), ordered.reason
