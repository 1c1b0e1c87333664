"""What decisions rest on as signals grow old: each rung, its border, and what follows from it."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.observations import NOW, A, B, observation, run, slots
from wattmesh.policies.decision import Action, CarbonView, Decision, IntensitySlot, Rung
from wattmesh.policies.ladder import CHANGE_INTERVALS, OLDEST, LadderStanding, ahead, stand
from wattmesh.policies.rules.decide import decide

HOUR = timedelta(hours=1)
CLEAN_LATER = slots([300.0] * 7 + [100.0] * 7)
RUNNING = IntensitySlot(start=NOW, end=NOW + HOUR, g_per_kwh=250.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """A forecast as the journal has it."""

    id: int = 1
    rung: Rung = Rung.ISSUED
    source: str = "neso"
    issued_at: datetime = NOW - HOUR
    slots: tuple[IntensitySlot, ...] = tuple(CLEAN_LATER)


PROFILE = Issue(id=2, rung=Rung.PROFILE, source="profile", issued_at=NOW - 2 * HOUR)


def standing(
    *candidates: Issue, running: IntensitySlot | None = RUNNING, static: bool = False
) -> LadderStanding:
    """Climb the ladder at NOW."""
    return stand(candidates, running=running, static=static, now=NOW)


@pytest.mark.parametrize(
    ("age", "rung"),
    [
        (timedelta(0), Rung.ISSUED),
        (OLDEST[Rung.ISSUED], Rung.ISSUED),
        (OLDEST[Rung.ISSUED] + timedelta(seconds=1), Rung.PROFILE),
    ],
)
def test_a_forecast_counts_for_a_day(age: timedelta, rung: Rung) -> None:
    """To the second; then the profile stands in, and its reason names both."""
    found = standing(Issue(issued_at=NOW - age), PROFILE)
    assert found.rung is rung
    assert (found.why == "") is (rung is Rung.ISSUED)


@pytest.mark.parametrize(
    ("age", "rung"),
    [
        (OLDEST[Rung.PROFILE], Rung.PROFILE),
        (OLDEST[Rung.PROFILE] + timedelta(seconds=1), Rung.NONE),
    ],
)
def test_history_counts_for_three_days(age: timedelta, rung: Rung) -> None:
    """To the second; what holds now is still told."""
    found = standing(replace(PROFILE, issued_at=NOW - age))
    assert found.rung is rung
    assert found.slots[0] == RUNNING


def test_a_recording_that_plays_faster_ages_faster() -> None:
    """A day of a recording that plays in a minute is a minute."""
    old = Issue(issued_at=NOW - timedelta(seconds=61))
    assert stand([old], running=RUNNING, static=False, now=NOW).rung is Rung.ISSUED
    assert stand([old], running=RUNNING, static=False, now=NOW, day_s=60.0).rung is Rung.NONE


def test_a_static_number_is_never_more_than_that() -> None:
    """Whatever forecasts there are."""
    found = standing(Issue(), PROFILE, static=True)
    assert (found.rung, found.slots, found.forecast) == (Rung.STATIC, (RUNNING,), None)


def test_a_forecast_that_does_not_reach_over_now_is_none() -> None:
    """However young it is."""
    short = Issue(slots=tuple(slots([300.0], start=NOW - HOUR)))
    assert standing(short, running=None).rung is Rung.NONE


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(-3, 3), st.integers(1, 9)), min_size=1, max_size=6
    ),
    st.booleans(),
)
def test_two_issues_are_never_mixed(made: list[tuple[int, int, int]], observed: bool) -> None:
    """Every slot after the running one is of the one issue that is named, as it was issued."""
    issues = [
        Issue(
            id=number,
            issued_at=NOW - age * HOUR,
            slots=tuple(slots([100.0 + number] * count, start=NOW + shift * HOUR)),
        )
        for number, (age, shift, count) in enumerate(made, 1)
    ]
    running = RUNNING if observed else None
    found = stand(issues, running=running, static=False, now=NOW)
    later = found.slots[1:] if observed else found.slots
    assert {each.g_per_kwh for each in later} <= {100.0 + (found.forecast or 0)}
    for one, two in zip(found.slots, found.slots[1:], strict=False):
        assert one.end == two.start
    if found.slots:
        assert found.slots[0].start <= NOW < found.slots[0].end


def test_mixing_would_be_seen() -> None:
    """The sabotaged twin: values of two issues in one row fail the check above."""
    one, two = slots([101.0] * 2), slots([102.0] * 2, start=NOW + 2 * HOUR)
    mixed = (*one, *two)
    assert not {each.g_per_kwh for each in mixed} <= {101.0}


def test_the_running_slot_cuts_the_forecast() -> None:
    """A finer interval that was observed takes the place of its part of a coarser one."""
    quarter = replace(RUNNING, end=NOW + HOUR / 4)
    found = ahead(CLEAN_LATER, quarter, NOW)
    assert found[0] == quarter
    assert (found[1].start, found[1].end) == (quarter.end, NOW + HOUR)
    assert ahead(CLEAN_LATER[3:], quarter, NOW) == ()


def view(rung: Rung, **changes: object) -> CarbonView:
    """A signal on which a switch would pay, on a rung."""
    facts: dict[str, object] = {
        "signal": "neso:GB:average:direct:CO2",
        "slots": tuple(CLEAN_LATER),
        "age_s": 60.0,
        "rung": rung,
        "interval_s": 1800.0,
    }
    return CarbonView(**(facts | changes))  # type: ignore[arg-type]


def decided(carbon: CarbonView, **changes: object) -> Decision:
    """Decide about one run."""
    (decision,) = decide(observation(run(**changes), carbon=carbon))
    return decision


@pytest.mark.parametrize(
    ("rung", "action"),
    [
        (Rung.ISSUED, Action.SWITCH),
        (Rung.PROFILE, Action.SWITCH),
        (Rung.STATIC, Action.HOLD),
        (Rung.NONE, Action.HOLD),
    ],
)
def test_runs_are_moved_on_the_first_two_rungs_only(rung: Rung, action: Action) -> None:
    """The same grid, the same run: what it rests on decides."""
    decision = decided(view(rung))
    assert decision.action is action
    assert decision.kind == ("carbon" if action is Action.SWITCH else "stale_signal")


@pytest.mark.parametrize("rung", [Rung.STATIC, Rung.NONE])
def test_the_deadline_needs_no_rung(rung: Rung) -> None:
    """Law 7: without a signal the guard still works."""
    late = {"current": B, "layout": B.layout, "deadline": NOW + timedelta(hours=10.25)}
    decision = decided(view(rung), **late)
    assert (decision.kind, decision.target) == ("deadline", A.id)


def test_second_best_is_said_in_the_sentence() -> None:
    """A switch on a profile says what it rests on."""
    note = "the newest forecast of neso is 26 h old or ended, so a profile stands in"
    assert decided(view(Rung.PROFILE, note=note)).reason.endswith(f"; {note}.")
    assert "profile" not in decided(view(Rung.ISSUED)).reason


@pytest.mark.parametrize(
    ("since_s", "kind"),
    [
        (None, "carbon"),
        (0.0, "signal_changed"),
        (CHANGE_INTERVALS * 1800.0 - 1, "signal_changed"),
        (CHANGE_INTERVALS * 1800.0, "carbon"),
    ],
)
def test_after_a_change_of_rung_nothing_is_moved_at_once(since_s: float | None, kind: str) -> None:
    """A signal that comes and goes does not move runs to and fro."""
    assert decided(view(Rung.PROFILE, since_change_s=since_s)).kind == kind


def test_only_a_marginal_rate_may_be_zero() -> None:
    """In curtailment one kilowatt-hour more emits nothing; an average of zero is an outage."""
    grid = tuple(slots([300.0] * 7 + [0.0] * 7))
    assert decided(view(Rung.ISSUED, slots=grid)).kind == "stale_signal"
    marginal = view(Rung.ISSUED, slots=grid, signal="watttime:DE:marginal:direct:CO2")
    assert decided(marginal).kind == "carbon"
