"""Demand response in the cycle: rows under the leader's epoch, beside and below operators' caps."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.builders import cycles
from tests.builders.carbon import intensities
from tests.builders.cycles import FACTS, SIGNAL
from tests.builders.journals import fresh
from tests.builders.runs import T0
from tests.cycle.test_caps import announce, cap_of, node, order, wished
from tests.cycle.test_clocks import GPUS, read
from wattmesh.controller.accounting.measured_points import capped_spans
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.caps import DEMAND_RESPONSE, CapRow
from wattmesh.errors import Fenced
from wattmesh.policies.decision import Mode
from wattmesh.policies.powercap.triggers import CapOrigin, DemandSource, Trigger, TriggerFacts
from wattmesh.telemetry.readings import Quality

HOUR = timedelta(hours=1)
SOURCE = DemandSource(
    trigger=Trigger(
        origin=CapOrigin.CARBON, worst_hours=2, cap_w=1500.0, ahead_hours=24, timezone=UTC
    ),
    allow=frozenset({"simulated", "estimated"}),
)
MIDNIGHT = T0.replace(hour=0, minute=0, second=0, microsecond=0)
FIRST = MIDNIGHT + 18 * HOUR
"""When the dirty hours of the day begin, hours after T0."""


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """An empty journal; what a database may make differ is tried on both."""
    return sqlite_journal


def store(
    journal: Journal, dirty: Sequence[int] = (18, 19), *, at: datetime = T0, good: bool = True
) -> None:
    """Store the day's past and a forecast to the next day's end, with dirty hours, heard `at`."""
    values = [300.0 if hour in dirty else 100.0 + hour / 10 for hour in range(48)]
    over = int((at - MIDNIGHT) / HOUR)
    past = intensities(SIGNAL, values[: over + 1], MIDNIGHT, at=at)
    start = MIDNIGHT + over * HOUR
    ahead = intensities(SIGNAL, values[over:], start, quality=Quality.FORECAST, at=at)
    journal.carbon.store([*past, *ahead])
    journal.carbon.fetched(SIGNAL, at, ok=good)


def turn(journal: Journal, at: datetime = T0, **changes: Any) -> CycleReport:
    """Run one cycle of a daemon that leads, follows the signal, and hears four boards."""
    nodes = changes.pop("nodes", (node(at=at),))
    facts: dict[str, Any] = {"demand": (SOURCE,), "facts": FACTS_HOURLY}
    fleet = Fleet(nodes=nodes, gpus=read(*GPUS))
    return cycles.turn(journal, at=at, fleet=fleet, **facts | changes)


FACTS_HOURLY = replace(FACTS, interval_s=3600.0, stale_after_s=1e6)


def rows(journal: Journal) -> list[CapRow]:
    """All caps, oldest first."""
    return list(reversed(journal.caps.list()))


def test_a_dirty_evening_is_announced_once_with_who_and_why(journal: Journal) -> None:
    """The same turn counts on it; a daemon that starts anew writes nothing more."""
    store(journal)
    said = turn(journal)
    (row,) = rows(journal)
    assert (row.start, row.until, row.cap_w) == (FIRST, FIRST + 2 * HOUR, 1500.0)
    assert (row.origin, row.by) == (CapOrigin.CARBON, DEMAND_RESPONSE)
    assert row.trigger == TriggerFacts(
        signal=str(SIGNAL), unit="g/kWh", value=300.0, threshold=300.0, issued_at=T0
    )
    assert row.reason.startswith("carbon: 300 g/kWh on average, at or above 300 g/kWh (csv:GB:")
    assert [each.id for each in said.caps_ahead] == [row.id]
    (told,) = said.demand
    assert (told.held, told.announce) == (False, ())
    again = turn(journal)
    assert rows(journal) == [row]
    assert again.caps_ahead == said.caps_ahead
    (event,) = [each for each in journal.events.list() if "emand response" in each.detail]
    assert event.detail.startswith("Demand response announced: 1.5 kW from ")


def test_the_cap_comes_into_force_and_ends_by_itself_whatever_became_of_the_signal(
    journal: Journal,
) -> None:
    """In its hours it is held like an operator's; a signal that falls silent ends nothing early."""
    store(journal)
    turn(journal)
    during = turn(journal, FIRST + HOUR)  # the signal was last heard hours ago
    assert cap_of(during).row.origin is CapOrigin.CARBON
    assert {wish.until for wish in wished(during).wishes} == {FIRST + 2 * HOUR}
    assert during.demand[0].held
    assert "was last heard" in during.demand[0].sentence
    assert turn(journal, FIRST + 2 * HOUR).cap is None
    assert rows(journal)[0].ended_at is None
    assert capped_spans(journal) == ((FIRST, FIRST + 2 * HOUR),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"demand": (replace(SOURCE, allow=frozenset()),)}, "is a recording"),
        ({"facts": None}, "no decision signal is set"),
        ({"facts": replace(FACTS_HOURLY, day_s=90.0)}, "plays faster"),
        ({"nodes": ()}, "no board obeys an actuator"),
        ({"clock_doubt": "it was stepped."}, "the wall clock is in doubt: it was stepped"),
        (
            {"demand": (replace(SOURCE, trigger=replace(SOURCE.trigger, cap_w=None)),)},
            "no GPU's power limit is known",
        ),
    ],
)
def test_on_doubt_nothing_is_triggered_and_it_is_said_once(
    journal: Journal, changes: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the report, which status and metrics show, and one line in the log."""
    store(journal)
    caplog.set_level(logging.INFO)
    epoch = journal.leadership.acquire("test", 60.0)
    facts: dict[str, Any] = {"demand": (SOURCE,), "facts": FACTS_HOURLY}
    nodes = changes.pop("nodes", (node(),))
    live = cycles.live(
        journal,
        cycles.acting(**facts | changes),
        epoch,
        fleet=Fleet(nodes=nodes, gpus=read(*GPUS)),
    )
    for second in range(3):
        (told,) = live.run(T0 + timedelta(seconds=second)).demand
        assert told.held
        assert words in told.sentence
    assert rows(journal) == []
    assert [words in each.getMessage() for each in caplog.records].count(True) == 1


def test_a_stale_signal_takes_back_what_has_not_begun_by_its_own_pace(journal: Journal) -> None:
    """Three hours of an hourly signal, a quarter of an hour of a quick one; a setting outranks."""
    store(journal)
    turn(journal)
    assert not turn(journal, T0 + 2.9 * HOUR).demand[0].held
    quick = replace(FACTS_HOURLY, interval_s=300.0)
    lasting = (replace(SOURCE, stale_after_s=7200.0),)
    assert not turn(journal, T0 + 1.5 * HOUR, facts=quick, demand=lasting).demand[0].held
    assert rows(journal)[0].ended_at is None
    turn(journal, T0 + timedelta(minutes=20), facts=quick)
    assert rows(journal)[0].ended_by.startswith("demand response: csv was last heard 20 min ago")
    assert not rows(journal)[0].ended_by_operator


def test_an_old_forecast_of_a_provider_that_still_answers_is_stale(journal: Journal) -> None:
    """What counts is when it was issued, not only when somebody answered."""
    store(journal)
    late = T0 + 3.5 * HOUR
    journal.carbon.fetched(SIGNAL, late, ok=True)
    assert "the newest forecast of csv:GB" in turn(journal, late).demand[0].sentence
    patient = replace(FACTS_HOURLY, lag_s=3600.0)
    assert not turn(journal, late, facts=patient).demand[0].held


def test_only_a_profile_of_the_past_triggers_nothing_unless_it_is_allowed(
    journal: Journal,
) -> None:
    """A rung below an issued forecast."""
    store(journal)
    with journal.database.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE carbon_forecasts SET rung = 'profile', source = 'profile'"
        )
    assert "only a profile of its past foretells" in turn(journal).demand[0].sentence
    allowed = replace(SOURCE, allow=SOURCE.allow | {"profile"})
    turn(journal, demand=(allowed,))
    assert len(rows(journal)) == 1


def test_estimated_hours_of_the_past_count_only_where_they_are_allowed(journal: Journal) -> None:
    """Not known, they count as the day's worst, and leave none to cap."""
    values = [300.0 if hour in (18, 19) else 100.0 for hour in range(48)]
    over = int((T0 - MIDNIGHT) / HOUR)
    past = intensities(SIGNAL, values[: over + 1], MIDNIGHT, quality=Quality.ESTIMATED, at=T0)
    start = MIDNIGHT + over * HOUR
    ahead = intensities(SIGNAL, values[over:], start, quality=Quality.FORECAST, at=T0)
    journal.carbon.store([*past, *ahead])
    journal.carbon.fetched(SIGNAL, T0, ok=True)
    strict = (replace(SOURCE, allow=frozenset({"simulated"})),)
    told = turn(journal, demand=strict).demand[0]
    assert f"{over + 1} intervals of today are estimated" in told.sentence
    assert all(row.start >= MIDNIGHT + 24 * HOUR for row in rows(journal))
    turn(journal)
    assert any(row.start == FIRST for row in rows(journal))


def test_hours_not_observed_yet_are_filled_by_what_was_forecast_of_them(journal: Journal) -> None:
    """A provider that observes late takes no hours away by that."""
    store(journal, at=T0 - 3 * HOUR)
    values = [300.0 if hour in (18, 19) else 100.0 for hour in range(48)]
    over = int((T0 - MIDNIGHT) / HOUR)
    start = MIDNIGHT + over * HOUR
    ahead = intensities(SIGNAL, values[over:], start, quality=Quality.FORECAST, at=T0)
    journal.carbon.store(ahead)
    journal.carbon.fetched(SIGNAL, T0, ok=True)
    turn(journal)
    assert [(row.start, row.until) for row in rows(journal)] == [(FIRST, FIRST + 2 * HOUR)]


def test_a_stand_in_for_the_running_interval_is_not_an_unknown_hour(journal: Journal) -> None:
    """A provider whose newest value is always provisional would have no worst hour of a day."""
    values = [300.0 if hour in (18, 19) else 100.0 + hour / 10 for hour in range(48)]
    over, at = int((T0 - MIDNIGHT) / HOUR), T0 + HOUR / 60
    running = MIDNIGHT + over * HOUR
    ahead = intensities(SIGNAL, values[over:], running, quality=Quality.FORECAST, at=T0)
    now = intensities(SIGNAL, [100.0], running, quality=Quality.PROVISIONAL, at=at)
    journal.carbon.store([*intensities(SIGNAL, values[:over], MIDNIGHT, at=T0), *now, *ahead])
    journal.carbon.fetched(SIGNAL, at, ok=True)
    one = replace(SOURCE, trigger=replace(SOURCE.trigger, worst_hours=1))
    told = turn(journal, at, demand=(one,)).demand[0]
    assert "not known" not in told.sentence
    assert [row.start for row in rows(journal)][:1] == [FIRST]


# ---- beside an operator's caps


def test_the_lower_of_an_operators_cap_and_a_triggered_one_counts_at_each_instant(
    journal: Journal,
) -> None:
    """A lasting contract cap does not switch demand response off, nor is it raised by it."""
    store(journal)
    turn(journal)
    at = [FIRST - HOUR, FIRST, FIRST + 2 * HOUR]
    for ordered_w, expected in ((2000.0, [2000, 1500, 2000]), (1200.0, [1200, 1200, 1200])):
        order(journal, ordered_w, until=FIRST + 5 * HOUR)
        caps = [journal.caps.standing(each).cap for each in at]
        assert [each.cap_w for each in caps if each] == expected
    order(journal, 2000.0, until=FIRST + 5 * HOUR, now=FIRST)  # ordered while it holds
    standing = journal.caps.standing(FIRST + HOUR)
    assert standing.cap is not None
    assert (standing.cap.cap_w, [each.cap_w for each in standing.beside]) == (1500.0, [2000.0])


def test_boards_keep_an_operators_longer_cap_if_nobody_leads_at_the_end_of_the_lower_one(
    journal: Journal,
) -> None:
    """A board has one obligation: it lasts as long as the contract; planning counts on both."""
    store(journal)
    turn(journal)
    order(journal, 2000.0, until=FIRST + 5 * HOUR)
    during = turn(journal, FIRST)
    assert {wish.until for wish in wished(during).wishes} == {FIRST + 5 * HOUR}
    assert cap_of(during).row.until == FIRST + 2 * HOUR
    assert [each.cap_w for each in during.caps_beside] == [2000.0]
    after = turn(journal, FIRST + 2 * HOUR)
    assert cap_of(after).row.cap_w == 2000.0
    order(journal, 1200.0, until=FIRST + HOUR, now=FIRST)
    lower = turn(journal, FIRST)
    assert {wish.until for wish in wished(lower).wishes} == {FIRST + HOUR}  # no one longer asked


def test_plans_count_on_the_higher_cap_once_the_lower_one_has_ended(journal: Journal) -> None:
    """As on one that is announced from there on."""
    cycles.dirty_day(journal, gpus=GPUS)
    order(journal, 2000.0, until=T0 + 5 * HOUR)
    announce(journal, 1500.0, T0, T0 + 2 * HOUR)
    seen = turn(journal, demand=()).observation
    assert seen is not None
    (ahead,) = seen.runs[0].caps_ahead
    assert (ahead.start, ahead.until, ahead.cap_w) == (T0 + 2 * HOUR, T0 + 5 * HOUR, 2000.0)


def test_what_an_operator_takes_back_does_not_come_back_for_its_hours(journal: Journal) -> None:
    """Withdrawn before its start or ended within; an operator's own cap is left where so asked."""
    store(journal)
    turn(journal)
    order(journal, 2000.0, until=FIRST + 5 * HOUR)
    epoch = journal.leadership.acquire("test", 60.0) or 0
    only: Any = {"epoch": epoch, "origins": (CapOrigin.CARBON, CapOrigin.PRICE)}
    (gone,) = journal.caps.withdraw(by="ana (uid 7)", now=T0, **only)
    turn(journal)
    store(journal, at=T0 + HOUR)
    turn(journal, T0 + HOUR)
    assert [each.id for each in rows(journal) if each.origin is CapOrigin.CARBON] == [gone.id]
    assert journal.caps.end(by="ana (uid 7)", now=T0, **only) == ()
    assert [each.cap_w for each in journal.caps.end(by="ana", now=T0, epoch=epoch)] == [2000.0]


# ---- settings, modes, leaders, clocks


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"demand": ()}, "it was turned off"),
        ({"mode": Mode.ADVISE}, "the daemon's mode is advise"),
        ({"mode": Mode.OBSERVE}, "the daemon's mode is observe"),
    ],
)
def test_turned_off_by_a_reload_it_takes_back_what_has_not_begun(
    journal: Journal, changes: dict[str, Any], why: str
) -> None:
    """A cap in force stands to its end."""
    store(journal)
    turn(journal)
    announced = turn(journal, **changes)
    assert announced.caps_ahead == ()
    assert rows(journal)[0].ended_by == f"{DEMAND_RESPONSE}: {why}"
    said = f"took back, before it began: 1.5 kW from 18:00 UTC until 20:00 UTC: {why}."
    assert any(each.detail.endswith(said) for each in journal.events.list())
    store(journal, (20, 21), at=T0 + timedelta(minutes=1))
    turn(journal, T0 + timedelta(minutes=1))
    begun = turn(journal, MIDNIGHT + 20.5 * HOUR, **changes)
    row = cap_of(begun).row
    assert row.start == MIDNIGHT + 20 * HOUR
    epoch = journal.leadership.acquire("test", 60.0) or 0
    assert journal.caps.respond((), {row.id: "x"}, now=row.start, epoch=epoch) == ()
    assert rows(journal)[-1].ended_at is None


def test_in_advise_it_only_says_what_it_would_do(journal: Journal) -> None:
    """Frozen, it rests."""
    store(journal)
    (told,) = turn(journal, mode=Mode.ADVISE).demand
    assert told.sentence.startswith("Mode advise, so only said: Demand response by carbon caps ")
    assert "from 18:00 UTC until 20:00 UTC" in told.sentence
    journal.runs.freeze(None, reason="look", by="op", now=T0)
    (told,) = turn(journal).demand
    assert told.sentence == "Demand response by carbon rests: everything is frozen."
    assert not told.held
    assert rows(journal) == []


def test_other_settings_in_the_middle_of_a_cap_leave_it_as_it_is(journal: Journal) -> None:
    """Neither its watts nor its end change."""
    store(journal)
    turn(journal)
    other = replace(SOURCE, trigger=replace(SOURCE.trigger, cap_w=900.0, worst_hours=1))
    store(journal, at=FIRST)
    during = turn(journal, FIRST + timedelta(minutes=1), demand=(other,))
    assert (cap_of(during).row.cap_w, cap_of(during).row.until) == (1500.0, FIRST + 2 * HOUR)


def test_of_two_daemons_only_the_leader_announces(journal_url: str) -> None:
    """Two engines on one journal: the deposed one writes nothing, and neither writes twice."""
    first, second = fresh(journal_url), Journal.open(journal_url)
    store(first)
    fleet = Fleet(nodes=(node(),), gpus=read(*GPUS))
    settings = cycles.acting(demand=(SOURCE,), facts=FACTS_HOURLY)
    old = first.leadership.acquire("a", 60.0)
    deposed = cycles.live(first, settings, old, fleet=fleet)
    first.leadership.release("a", old or 0)
    new = second.leadership.acquire("b", 60.0)
    assert new != old
    assert "Standing by" in deposed.run(T0).sentence
    assert rows(second) == []
    cycles.live(second, settings, new, fleet=fleet).run(T0)
    deposed.run(T0)
    cycles.live(second, settings, None, fleet=fleet).run(T0)  # a standby
    assert len(rows(second)) == 1
    with pytest.raises(Fenced):
        first.caps.respond(rows(second), {1: "x"}, now=T0, epoch=old or 0)
    assert rows(first)[0].ended_at is None
    first.close()
    second.close()


def test_what_is_written_together_is_written_whole_or_not_at_all(journal: Journal) -> None:
    """A crash between two rows leaves neither; one ended meanwhile stays the operator's."""
    store(journal)
    turn(journal)
    (row,) = rows(journal)
    epoch = journal.leadership.acquire("test", 60.0) or 0
    broken = replace(row, reason=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="reason"):
        journal.caps.respond([row, broken], {row.id: "x"}, now=T0, epoch=epoch)
    assert rows(journal) == [row]
    journal.caps.withdraw(by="ana (uid 7)", now=T0, epoch=epoch)
    journal.caps.respond((), {row.id: "x"}, now=T0, epoch=epoch)
    assert rows(journal)[0].ended_by == "ana (uid 7)"


def test_one_trigger_that_cannot_be_worked_out_holds_and_stops_nothing_else(
    journal: Journal,
) -> None:
    """Its settings are nonsense that no check let through."""
    store(journal)
    broken = replace(SOURCE, trigger=replace(SOURCE.trigger, worst_hours="many"))  # type: ignore[arg-type]
    said = turn(journal, demand=(broken,))
    assert said.demand[0].held
    assert "it could not be worked out (TypeError" in said.demand[0].sentence
    assert said.trouble == ""
