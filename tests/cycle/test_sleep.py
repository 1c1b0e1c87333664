"""A run that sleeps, on a real journal: ordered, asleep, woken by order or alarm, or lost."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.builders.cycles import CATALOGUE, report, step_switch, store_day, turn, view
from tests.builders.runs import T0, UID, A, B, register, transition
from wattmesh.controller.cycle import observe
from wattmesh.controller.cycle.plans import with_plans
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan, RunRow
from wattmesh.controller.settings.model import PolicySection
from wattmesh.errors import Fenced, Refused
from wattmesh.policies.decision import (
    SUSPENDS,
    Observation,
    PlanStep,
    PlanView,
    PolicySettings,
)
from wattmesh.policies.switch_time import SwitchKind
from wattmesh.reconfig.catalogue import PAUSED
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Finish, Order, SwitchMode

ABLE = ("in_place", "parking", "restart", SUSPENDS)
SECOND = {"incarnation": "i2", "attempt": 2}
WAKES = T0 + timedelta(hours=2)
AT = T0 + timedelta(minutes=5)


def later(minutes: float) -> datetime:
    """So long after T0."""
    return T0 + timedelta(minutes=minutes)


class Wants:
    """Plans that want the run at one point, or asleep ("")."""

    def __init__(self, point: str, until: datetime = WAKES) -> None:
        """Want `point` until then."""
        self.point, self.until = point, until

    def newest(self, seen: Observation, run: object) -> PlanView:
        """Give a fresh plan."""
        steps = (
            PlanStep(start=seen.now, end=self.until, point=self.point),
            PlanStep(start=self.until, end=self.until + timedelta(hours=9), point="A"),
        )
        return PlanView(
            made_at=seen.now,
            digest="d",
            origin="A",
            steps=steps,
            price_mu=1e-4,
            grams=9.0,
            bound_g=9.0,
            gap=0.0,
        )


@pytest.fixture
def journal(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal of each kind with one live run at A whose launcher holds next launches."""
    plan = RunPlan(catalogue=CATALOGUE, deadline=T0 + timedelta(hours=9))
    register(
        journal, plan=plan, gpus=(), tokens_total=10_000_000, boundary_every=20, capabilities=ABLE
    )
    report(journal, step=1)
    store_day(journal, high_first=True)
    return journal


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Wants:
    """What the planner says from now on; at first: sleep."""
    wants = Wants("")
    monkeypatch.setattr(observe, "with_plans", lambda seen, plans: with_plans(seen, wants))
    return wants


def row(journal: Journal, at: datetime) -> RunRow:
    """The run as it stands."""
    (found,) = journal.runs.all(at)
    return found


def order(journal: Journal) -> Order:
    """The open order."""
    switch = journal.switches.open("r")
    assert switch is not None
    return switch.order


def leave(journal: Journal, at: datetime = AT, **changes: Any) -> bool:
    """Let the run say that it leaves to sleep, or as `changes` say."""
    facts: dict[str, Any] = {
        "run": "r",
        "incarnation": "i1",
        "attempt": 1,
        "step": 20,
        "tokens": 20_000,
        "reason": "suspended",
        "loss": 2.0,
        "wakes_at": WAKES.isoformat(),
        "held_as": "the supervisor of pid 4711 on node1",
        "left_at": at.isoformat(),
    }
    now = changes.pop("now", at)
    return journal.runs.finish(Finish(**facts | changes), owner_uid=UID, now=now)


def fall_asleep(journal: Journal, at: datetime = AT) -> None:
    """Order sleep, and let the run carry it out."""
    turn(journal, at=T0 + timedelta(seconds=2))
    for state in (SwitchState.ANNOUNCED, SwitchState.CHECKPOINTING, SwitchState.STOPPING):
        step_switch(journal, state, at_s=280.0)
    step_switch(journal, SwitchState.CONFIRMED, at_s=290.0, layout=None, evidence={"total_s": 12.0})
    assert leave(journal, at)


def wake(journal: Journal, at: datetime, attempt: int = 2, **changes: Any) -> None:
    """Let the next launch register."""
    facts: dict[str, Any] = {
        "incarnation": f"i{attempt}",
        "attempt": attempt,
        "supersedes": f"i{attempt - 1}",
        "capabilities": ABLE,
        "gpus": (),
        "step": 20,
        "tokens": 20_000,
        "boundary_every": 20,
        "tokens_total": 10_000_000,
    }
    register(journal, now=at, **facts | changes)


def test_a_plan_that_wants_sleep_becomes_an_order_with_an_alarm(
    journal: Journal, plans: Wants
) -> None:
    """The order keeps the layout and names the time to wake; the run trains on meanwhile."""
    said = turn(journal, at=T0 + timedelta(seconds=2))
    made = order(journal)
    assert (made.mode, made.point, made.layout) == (SwitchMode.SUSPEND, PAUSED, A)
    assert made.wakes_at == WAKES.isoformat()
    assert said.decisions[0].wakes_at == WAKES
    assert row(journal, T0).state == "live"
    turn(journal, at=T0 + timedelta(seconds=7))
    assert len(journal.switches.history("r")) == 1


def test_a_run_that_is_leaving_is_ordered_nothing(journal: Journal, plans: Wants) -> None:
    """Between the report that it sleeps and the one that it has left, an order would be in vain."""
    journal.runs.order_point("r", PAUSED, reason="quiet", by="anna")
    turn(journal, at=T0 + timedelta(seconds=2))
    step_switch(journal, SwitchState.CONFIRMED, at_s=10.0, layout=None, evidence={"total_s": 12.0})
    (said,) = turn(journal, at=T0 + timedelta(seconds=11)).decisions
    assert said.kind == "switching"
    assert len(journal.switches.history("r")) == 1


def test_by_default_no_plan_stops_a_run(journal: Journal, plans: Wants) -> None:
    """The setting that lets it is off until an operator turns it on."""
    turn(journal, at=T0 + timedelta(seconds=2), policy=PolicySection().limits())
    assert journal.switches.open("r") is None


def test_a_sleeping_run_is_neither_live_nor_lost(journal: Journal, plans: Wants) -> None:
    """Hours without a heartbeat are no reason to call anybody, until the alarm is long past."""
    fall_asleep(journal)
    slept = row(journal, later(119))
    assert (slept.state, slept.asleep_at, slept.wakes_at) == ("asleep", AT, WAKES)
    assert slept.held_as == "the supervisor of pid 4711 on node1"
    assert journal.switches.open("r") is None
    (said,) = turn(journal, at=later(60)).decisions
    assert "staying suspended" in said.reason
    shown = view(journal, later(60))
    assert shown.suspended_s == timedelta(minutes=55).total_seconds()
    assert (shown.live, shown.wakes_at) == (True, WAKES)
    assert row(journal, WAKES + timedelta(seconds=899)).state == "asleep"
    assert row(journal, WAKES + timedelta(seconds=901)).state == "lost"
    assert turn(journal, at=WAKES + timedelta(seconds=901)).decisions == ()


def test_an_alarm_wakes_it_and_its_start_is_counted(journal: Journal, plans: Wants) -> None:
    """No outage, no order, and the guard counts the start until its pace is known."""
    fall_asleep(journal)
    wake(journal, WAKES + timedelta(seconds=20))
    at = WAKES + timedelta(seconds=25)
    woken = row(journal, at)
    assert (woken.state, woken.asleep_at, woken.outage_from) == ("live", None, None)
    shown = view(journal, at)
    assert shown.outage_share == 0.0
    newest, before = shown.switches
    assert (newest.origin, newest.target, newest.complete) == (PAUSED, "A", False)
    assert (before.origin, before.target, before.kind) == ("A", PAUSED, SwitchKind.RESTART)
    assert before.complete
    assert shown.since_switch_s == 5.0
    first, second = journal.stays.launches("r")
    assert first.ours
    assert (first.end, second.start) == (AT, WAKES + timedelta(seconds=20))


def test_a_changed_plan_wakes_it_earlier_and_elsewhere(journal: Journal, plans: Wants) -> None:
    """By an order that the launcher takes; the next launch reports how it went."""
    fall_asleep(journal)
    plans.point = "B"
    turn(journal, at=later(30), policy=PolicySettings(dwell_s=600.0))
    made = order(journal)
    assert (made.mode, made.point, made.layout, made.ranks) == (SwitchMode.RESUME, "B", B, (0, 1))
    assert (made.attempt, made.not_before_step, made.valid_until_step) == (1, 20, 20)
    assert row(journal, later(30)).state == "asleep"
    wake(journal, later(31), layout=B, ranks=(0, 1))
    assert journal.switches.open("r") is not None
    turn(journal, at=later(31))
    for state in (SwitchState.LAUNCHING, SwitchState.LOADED, SwitchState.VERIFIED):
        step_switch(journal, state, at_s=1870.0, **SECOND)
    done_as = {"layout": B, "evidence": {"total_s": 30.0}}
    step_switch(journal, SwitchState.CONFIRMED, at_s=1880.0, **SECOND, **done_as)
    woken = row(journal, later(31.2))
    assert (woken.state, woken.layout) == ("live", B)
    done = journal.switches.history("r")[0]
    assert (done.from_point, done.to_point, done.state) == (PAUSED, "B", SwitchState.CONFIRMED)
    assert [each.origin for each in view(journal, later(32)).switches] == [PAUSED, "A"]


def test_an_alarm_that_comes_before_an_order_makes_the_order_void(
    journal: Journal, plans: Wants
) -> None:
    """The run trains where it fell asleep; the order ends without a failure once it trained on."""
    fall_asleep(journal)
    plans.point = "B"
    turn(journal, at=later(119))
    assert order(journal).mode is SwitchMode.RESUME
    wake(journal, WAKES)
    plans.point = "A"
    turn(journal, at=WAKES + timedelta(seconds=5))
    report(journal, step=21, at=WAKES + timedelta(seconds=60), attempt=2)
    turn(journal, at=WAKES + timedelta(seconds=61))
    newest = journal.switches.history("r")[0]
    assert newest.state is SwitchState.ABANDONED
    shown = view(journal, WAKES + timedelta(seconds=61))
    assert shown.failed_switches == 0
    assert (shown.switches[0].origin, shown.switches[0].complete) == (PAUSED, False)


def test_a_frozen_run_is_woken_and_its_order_stays(journal: Journal, plans: Wants) -> None:
    """Hands off means that it trains on; the order to wake is not withdrawn by the freeze."""
    fall_asleep(journal)
    journal.runs.freeze("r", reason="by hand", by="anna", now=later(10))
    turn(journal, at=later(10))
    made = order(journal)
    assert (made.mode, made.layout) == (SwitchMode.RESUME, A)
    turn(journal, at=later(11))
    assert order(journal).switch_id == made.switch_id


def test_an_operator_wakes_it_into_a_point(journal: Journal, plans: Wants) -> None:
    """The wish is done with once it is ordered."""
    fall_asleep(journal)
    journal.runs.order_point("r", "B", reason="now", by="anna")
    turn(journal, at=later(10))
    made = journal.switches.open("r")
    assert made is not None
    assert (made.requested_by, made.order.point) == ("operator", "B")
    assert row(journal, later(10)).ordered_point == ""


def test_an_operators_order_to_sleep_lasts_until_the_run_is_awake(
    journal: Journal, plans: Wants
) -> None:
    """A plan that wants it to train does not wake it; the next launch is not put to sleep again."""
    plans.point = "A"
    journal.runs.order_point("r", PAUSED, reason="quiet", by="anna")
    fall_asleep(journal)
    (said,) = turn(journal, at=later(30)).decisions
    assert (said.action, said.kind) == ("hold", "operator")
    wake(journal, later(120))
    assert row(journal, later(120)).ordered_point == ""
    turn(journal, at=later(121))
    assert journal.switches.open("r") is None


def test_two_failed_suspends_freeze_the_run(journal: Journal, plans: Wants) -> None:
    """Its launcher does not hold its next launch, so a person has to look."""
    for minute in (1, 20):
        report(journal, step=20 * minute, at=later(minute))
        turn(journal, at=later(minute))
        step_switch(journal, SwitchState.ANNOUNCED, at_s=60.0 * minute + 5)
        step_switch(
            journal,
            SwitchState.ROLLED_BACK,
            at_s=60.0 * minute + 10,
            detail="not asleep: the launcher did not say that it holds the next launch",
        )
    report(journal, step=401, at=later(22))
    turn(journal, at=later(22))
    assert row(journal, later(22)).frozen.startswith("wattmesh")
    turn(journal, at=later(23))
    assert journal.switches.open("r") is None


def test_an_order_to_sleep_whose_alarm_has_rung_is_withdrawn(
    journal: Journal, plans: Wants
) -> None:
    """A run whose boundary is far off does not stop only to start again; nothing failed."""
    turn(journal, at=T0 + timedelta(seconds=2))
    report(journal, step=2, at=WAKES)
    plans.point, plans.until = "A", WAKES + timedelta(hours=1)
    turn(journal, at=WAKES + timedelta(seconds=1))
    assert journal.switches.open("r") is None
    assert journal.switches.history("r")[0].state is SwitchState.ABANDONED


def test_a_run_that_ends_instead_of_sleeping_is_over(journal: Journal, plans: Wants) -> None:
    """It was ordered to sleep at its last step."""
    turn(journal, at=T0 + timedelta(seconds=2))
    leave(journal, reason="done", wakes_at=None, held_as="", left_at=None)
    turn(journal, at=later(6))
    assert journal.switches.history("r")[0].state is SwitchState.ABANDONED
    assert row(journal, later(6)).state == "finished"


@pytest.mark.parametrize(
    "told",
    [
        (),
        (SwitchState.ANNOUNCED,),
        (SwitchState.ANNOUNCED, SwitchState.CHECKPOINTING, SwitchState.STOPPING),
    ],
)
def test_what_a_dead_daemon_missed_is_told_later(
    journal: Journal, plans: Wants, told: tuple[SwitchState, ...]
) -> None:
    """Down for an hour, it learns from the launcher that the run sleeps, and since when."""
    turn(journal, at=T0 + timedelta(seconds=2))
    for state in told:
        step_switch(journal, state, at_s=280.0)
    back = later(65)
    journal.runs.liveness.lead(back, AT)  # a new daemon leads
    (decision,) = turn(journal, at=back).decisions or (None,)
    assert row(journal, back).state in ("lost", "live")
    assert decision is None or decision.action == "hold"
    leave(journal, AT, now=back + timedelta(seconds=5))
    slept = row(journal, back + timedelta(seconds=6))
    assert (slept.state, slept.asleep_at) == ("asleep", AT)
    newest = journal.switches.history("r")[0]
    assert newest.state is (SwitchState.CONFIRMED if told else SwitchState.ABANDONED)
    assert view(journal, back + timedelta(seconds=6)).failed_switches == 0


def test_nobody_else_takes_over_a_run_that_sleeps(journal: Journal, plans: Wants) -> None:
    """Neither another user's launch nor an older one; a launch by hand of its owner wakes it."""
    fall_asleep(journal)
    with pytest.raises(Refused):
        wake(journal, later(30), uid=UID + 1)
    with pytest.raises(Fenced):
        wake(journal, later(30), attempt=1, incarnation="other", supersedes=None)
    assert row(journal, later(30)).state == "asleep"
    wake(journal, later(30), supersedes=None)
    assert row(journal, later(30)).state == "live"


def test_a_time_to_wake_that_is_no_time_to_wake_hides_nobody(
    journal: Journal, plans: Wants
) -> None:
    """A run that names the year 9999 is lost after a month; one that names the past, at once."""
    turn(journal, at=T0 + timedelta(seconds=2))
    leave(journal, wakes_at="9999-01-01T00:00:00Z", left_at="1999-01-01T00:00:00Z")
    slept = row(journal, later(10))
    assert slept.asleep_at == T0 + timedelta(seconds=1)  # when it was last heard
    assert slept.wakes_at == T0 + timedelta(days=31, seconds=1)
    assert row(journal, T0 + timedelta(days=32)).state == "lost"


def test_a_job_whose_clock_differs_sleeps_as_long_as_it_says(
    journal: Journal, plans: Wants
) -> None:
    """Its host is a day behind: it is not lost for waking yesterday."""
    turn(journal, at=T0 + timedelta(seconds=2))
    assert order(journal).sleeps_s == (WAKES - T0).total_seconds() - 2.0
    day = timedelta(days=1)
    leave(journal, now=AT, left_at=(AT - day).isoformat(), wakes_at=(WAKES - day).isoformat())
    slept = row(journal, later(60))
    assert slept.state == "asleep"
    assert slept.wakes_at is not None
    assert abs(slept.wakes_at - WAKES) <= AT - T0


def test_a_run_that_overslept_is_ended_only_long_after_its_alarm(
    journal: Journal, plans: Wants
) -> None:
    """Not because it was not heard while it slept."""
    fall_asleep(journal)
    at = WAKES + timedelta(seconds=901)
    turn(journal, at=at, lost_s=3600.0)
    assert row(journal, at).finished_at is None
    turn(journal, at=WAKES + timedelta(hours=2), lost_s=3600.0)
    over = row(journal, WAKES + timedelta(hours=2))
    assert over.ending == "expired"
    assert over.asleep_at is None


def test_two_daemons_order_it_awake_once(journal: Journal, plans: Wants) -> None:
    """The one that no longer leads commits nothing."""
    fall_asleep(journal)
    plans.point = "A"
    old = journal.leadership.acquire("test", 60.0)
    assert old is not None
    turn(journal, at=later(30))
    first = order(journal)
    turn(journal, at=later(30))
    assert order(journal).switch_id == first.switch_id
    assert sum(each.order.mode is SwitchMode.RESUME for each in journal.switches.history("r")) == 1


def test_a_wall_clock_that_steps_wakes_nobody_twice(journal: Journal, plans: Wants) -> None:
    """Set ahead, the run is due or lost, and its launch registers all the same; back, it sleeps."""
    fall_asleep(journal)
    assert row(journal, T0 - timedelta(days=1)).state == "asleep"
    assert row(journal, T0 + timedelta(days=1)).state == "lost"
    wake(journal, T0 - timedelta(days=1))
    assert row(journal, T0 - timedelta(days=1)).state == "live"


def test_without_plans_it_is_woken_at_once(
    journal: Journal, plans: Wants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known keeps nobody asleep."""
    fall_asleep(journal)
    monkeypatch.setattr(observe, "with_plans", with_plans)
    turn(journal, at=later(10))
    assert order(journal).mode is SwitchMode.RESUME


SUSPENDING = (
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.STOPPING,
    SwitchState.CONFIRMED,
)
WAKING = (
    SwitchState.LAUNCHING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
)


def another_daemon(journal: Journal, at: datetime) -> Journal:
    """Kill the daemon, and let another one lead: all that it knows is in the database."""
    anew = Journal.open(journal.database.url.render_as_string(hide_password=False))
    anew.runs.liveness.lead(at, AT)
    return anew


@pytest.mark.parametrize("told", range(7))
def test_a_daemon_that_dies_after_any_report_of_a_sleep_loses_nothing(
    journal: Journal, plans: Wants, told: int
) -> None:
    """For each prefix of what is written: the next daemon, an hour later, finds it asleep.

    The launcher tells what is left, and cycles run before, between and after.
    """
    turn(journal, at=T0 + timedelta(seconds=2))
    switch_id = order(journal).switch_id

    def step(state: SwitchState, at_s: float) -> Any:
        facts: dict[str, Any] = {"evidence": {"total_s": 12.0}, "layout": None, "epoch": 1}
        made = transition(state, switch_id, **facts)
        return lambda now: now.switches.record(
            made, owner_uid=UID, now=T0 + timedelta(seconds=at_s)
        )

    back = later(65)
    writes = [step(each, 280.0) for each in SUSPENDING]
    writes.append(lambda now: leave(now, AT, now=AT if now is journal else back))
    for write in writes[:told]:
        write(journal)
    anew = another_daemon(journal, back)
    turn(anew, at=back)
    for write in writes[told:]:
        write(anew)
        turn(anew, at=back)
    slept = row(anew, back)
    assert (slept.state, slept.asleep_at, slept.wakes_at) == ("asleep", AT, WAKES)
    assert anew.switches.open("r") is None
    assert view(anew, back).failed_switches == 0
    assert not slept.frozen
    wake(anew, WAKES)
    assert row(anew, WAKES).state == "live"
    anew.close()


@pytest.mark.parametrize("told", range(6))
def test_a_daemon_that_dies_after_any_report_of_a_waking_loses_nothing(
    journal: Journal, plans: Wants, told: int
) -> None:
    """For each prefix of what is written the run trains in the end, once, where it was ordered."""
    fall_asleep(journal)
    plans.point = "B"
    turn(journal, at=later(30))
    switch_id = order(journal).switch_id

    def step(state: SwitchState) -> Any:
        facts: dict[str, Any] = {"evidence": {"total_s": 12.0}, "layout": B, "epoch": 1, **SECOND}
        made = transition(state, switch_id, **facts)
        return lambda now: now.switches.record(made, owner_uid=UID, now=later(31.5))

    writes: list[Any] = [lambda now: wake(now, later(31), layout=B, ranks=(0, 1))]
    writes += [step(each) for each in WAKING]
    for write in writes[:told]:
        write(journal)
    anew = another_daemon(journal, later(31))
    turn(anew, at=later(31))
    for write in writes[told:]:
        write(anew)
        turn(anew, at=later(31.2))
    woken = row(anew, later(31.3))
    assert (woken.state, woken.layout, woken.attempt) == ("live", B, 2)
    newest = anew.switches.history("r")[0]
    assert (newest.switch_id, newest.state) == (switch_id, SwitchState.CONFIRMED)
    assert view(anew, later(31.3)).failed_switches == 0
    anew.close()


def test_a_sleep_that_no_daemon_saw_is_told_before_the_next_launch(
    journal: Journal, plans: Wants
) -> None:
    """It is no outage, and begins when the run left, not when the daemon heard of it."""
    turn(journal, at=T0 + timedelta(seconds=2))
    back = WAKES + timedelta(minutes=10)
    anew = another_daemon(journal, back)
    turn(anew, at=back)
    leave(anew, AT, now=back)
    wake(anew, back)
    woken = row(anew, back)
    assert (woken.state, woken.outage_from) == ("live", None)
    first, second = anew.stays.launches("r")
    assert (first.end, first.ours, second.start) == (AT, True, back)
    assert view(anew, back).outage_share == 0.0
    anew.close()
