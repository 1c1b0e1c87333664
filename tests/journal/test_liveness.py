"""Who lives: by heartbeats, whatever training does; what the journal is told of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from tests.builders.runs import T0, UID, A, after, progress, register
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.liveness import BEHIND_S, LIVE_S, REPORTING_S, Sign
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.errors import Fenced, InputInvalid, Refused
from wattmesh.reconfig.wire.messages import Finish, Heartbeat, Progress

HOUR_S = 3600
OLD = 1
"""The protocol before heartbeats."""


def beat(
    journal: Journal, seconds: float, phase: str = "training", *, uid: int = UID, **changes: Any
) -> None:
    """Let the run `r` say that it lives, `seconds` after T0."""
    message = replace(Heartbeat(run="r", incarnation="i1", attempt=1, phase=phase), **changes)
    journal.signs.hear(message, phase, owner_uid=uid, now=after(seconds))


def live_through(journal: Journal, begin_s: int, end_s: int) -> None:
    """Let it say so every five seconds, and write down what is due, as a daemon does."""
    for seconds in range(begin_s, end_s + 1, 5):
        beat(journal, seconds)
        journal.signs.keep(after(seconds))


def row_at(journal: Journal, seconds: float) -> RunRow:
    """Read the run `r` as it stands `seconds` after T0."""
    row = journal.runs.find("r", after(seconds))
    assert row is not None
    return row


def test_a_step_of_an_hour_is_no_loss(journal: Journal) -> None:
    """Live follows the heartbeat; how far it is, and since when, stays what was reported."""
    register(journal)
    progress(journal, now=after(10), tokens=2000)
    live_through(journal, 15, HOUR_S)
    row = row_at(journal, HOUR_S + 4)
    assert (row.state, row.phase, row.tokens) == ("live", "training", 2000)
    assert (row.last_seen_at, row.progress_at) == (after(HOUR_S), after(10))


def test_without_a_heartbeat_it_is_lost(journal: Journal) -> None:
    """The twin: the same hour in silence; a heartbeat after it brings the run back."""
    register(journal)
    progress(journal, now=after(10), tokens=2000)
    assert row_at(journal, 10 + LIVE_S).state == "live"
    assert row_at(journal, 11 + LIVE_S).state == "lost"
    beat(journal, HOUR_S)
    assert row_at(journal, HOUR_S).state == "live"


def test_nobody_is_let_in_beside_a_launch_at_a_long_step(journal: Journal) -> None:
    """Only once the heartbeat has gone; the one before then ended when it was heard last."""
    register(journal)
    live_through(journal, 5, HOUR_S)
    with pytest.raises(Fenced, match=r"attempt 1 on node1 is alive \(heard 20.0 s ago, training\)"):
        register(journal, incarnation="i2", attempt=2, now=after(HOUR_S + 20))
    register(journal, incarnation="i2", attempt=2, now=after(HOUR_S + 40))
    assert row_at(journal, HOUR_S + 40).outage_from == after(HOUR_S)
    with pytest.raises(Fenced, match="attempt 1 was superseded by attempt 2"):
        beat(journal, HOUR_S + 41)
    assert row_at(journal, HOUR_S + 41).last_seen_at == after(HOUR_S + 40)


def test_a_heartbeat_is_taken_from_its_owners_newest_launch_only(journal: Journal) -> None:
    """Not from a stranger, an older attempt, an unknown run, or one that said its last word."""
    register(journal)
    for known in (False, True):
        with pytest.raises(Refused):
            beat(journal, 1, uid=UID + 1)
        with pytest.raises(Fenced):
            beat(journal, 1, attempt=0)
        with pytest.raises(Fenced):
            beat(journal, 1, incarnation="i0")
        if not known:
            beat(journal, 2)
    with pytest.raises(InputInvalid, match="is not known"):
        beat(journal, 3, run="x")
    end = Finish(run="r", incarnation="i1", attempt=1, step=1, tokens=1, reason="stopped: asked")
    journal.runs.finish(end, owner_uid=UID, now=after(4))
    beat(journal, 60)
    assert (row_at(journal, 61).state, row_at(journal, 61).last_seen_at) == ("lost", after(4))


@pytest.mark.parametrize(("protocol", "limit_s"), [(OLD, REPORTING_S), (OLD + 1, LIVE_S)])
def test_an_older_hook_is_heard_by_its_reports_alone(
    journal: Journal, protocol: int, limit_s: float
) -> None:
    """It says nothing between two steps, so it has longer; unless it said that it leaves."""
    register(journal, protocol=protocol)
    progress(journal, now=after(10), tokens=2000)
    assert row_at(journal, 10 + limit_s).state == "live"
    assert row_at(journal, 11 + limit_s).state == "lost"
    with pytest.raises(Fenced, match="is alive"):
        register(journal, incarnation="i2", attempt=2, now=after(10 + limit_s))
    end = Finish(run="r", incarnation="i1", attempt=1, step=1, tokens=1, reason="restart")
    journal.runs.finish(end, owner_uid=UID, now=after(20))
    assert row_at(journal, 21 + LIVE_S).state == "lost"


@pytest.mark.parametrize("clean", [True, False])
def test_what_lived_before_a_restart_counts_for_one_limit_only(
    journal: Journal, *, clean: bool
) -> None:
    """The daemon was gone for an hour: what lived at its end has one limit to be heard."""
    register(journal)
    register(journal, run="gone", name="gone", incarnation="g1")
    live_through(journal, 5, HOUR_S)
    if clean:
        journal.signs.keep(after(HOUR_S), everything=True)
    back = 2 * HOUR_S
    with again(journal, led_until=after(HOUR_S + 3), now=after(back)) as next_one:
        assert row_at(next_one, back + LIVE_S).state == "live"
        assert row_at(next_one, back + LIVE_S + 1).state == "lost"
        with pytest.raises(Fenced, match="is alive"):
            register(next_one, incarnation="i2", attempt=2, now=after(back + LIVE_S))
        behind_s = 0 if clean else BEHIND_S
        said = row_at(next_one, back).last_seen_at
        assert after(HOUR_S) - timedelta(seconds=behind_s) <= said <= after(HOUR_S)
        gone = next_one.runs.find("gone", after(back))
        assert gone is not None
        assert gone.state == "lost"
        beat(next_one, back + 20)
        assert row_at(next_one, back + 20 + LIVE_S).state == "live"


def test_a_standby_allows_for_what_is_not_written_down_yet(journal: Journal) -> None:
    """It hears no heartbeat: it judges by the journal, which may be a minute behind."""
    register(journal)
    journal.runs.liveness.lead(T0, None)
    live_through(journal, 5, HOUR_S)
    with again(journal, led_until=None, now=None) as standby:
        assert row_at(standby, HOUR_S + LIVE_S).state == "live"
        assert row_at(standby, HOUR_S + LIVE_S + BEHIND_S + 1).state == "lost"
    journal.runs.liveness.stand_by()
    assert row_at(journal, HOUR_S + 4).state == "live"
    assert row_at(journal, HOUR_S + 4).last_seen_at < after(HOUR_S)


def test_heartbeats_of_many_runs_are_few_transactions(journal: Journal) -> None:
    """Ten minutes of a hundred runs that report nothing else: two transactions a minute in all."""
    for n in range(100):
        register(journal, run=f"r{n}", name=f"r{n}", incarnation=f"i{n}", now=after(0.3 * n))
    commits: list[None] = []

    @event.listens_for(journal.database.engine, "commit")
    def count(_: object) -> None:
        commits.append(None)

    told = 0
    for seconds in range(30, 601, 5):
        for n in range(100):
            beat(journal, seconds, run=f"r{n}", incarnation=f"i{n}")
        told += journal.signs.keep(after(seconds))
    event.remove(journal.database.engine, "commit", count)
    assert len(commits) <= 20
    assert told <= 20 * 100
    kept = journal.runs.all(after(600))
    journal.runs.liveness.stand_by()
    assert all(row.last_seen_at >= after(600 - BEHIND_S) for row in journal.runs.all(after(600)))
    assert {row.state for row in kept} == {"live"}


def test_a_run_that_reports_steps_costs_no_transaction_more(journal: Journal) -> None:
    """Its reports are written anyway; and what fell silent is written to the second."""
    register(journal)
    for seconds in range(2, 300, 2):
        progress(journal, now=after(seconds), tokens=10 * seconds)
        beat(journal, seconds + 1)
        assert journal.signs.keep(after(seconds + 1)) == 0
    assert journal.signs.keep(after(299 + LIVE_S + 31)) == 1
    journal.runs.liveness.stand_by()
    assert row_at(journal, 300).last_seen_at == after(299)


def test_a_late_sign_of_an_older_launch_does_not_bring_it_back(journal: Journal) -> None:
    """It was checked before the newer one was let in, and remembered after."""
    register(journal)
    register(journal, incarnation="i2", attempt=2, now=after(60), supersedes="i1")
    late = Progress(
        run="r",
        incarnation="i1",
        attempt=1,
        seq=1,
        step=1,
        samples=1,
        tokens=1,
        tokens_per_s=1.0,
        loss=None,
        layout=A,
        ranks=(0,),
    )
    journal.runs.liveness.hear("r", Sign.of(late, UID, after(61), "training"))
    with pytest.raises(Fenced, match="superseded"):
        beat(journal, 62)
    assert row_at(journal, 62).last_seen_at == after(60)


def test_the_launch_of_a_retired_run_ended_with_its_last_heartbeat(journal: Journal) -> None:
    """Which the journal itself learns of up to a minute later, or never."""
    register(journal)
    live_through(journal, 5, 100)
    beat(journal, 105)
    beat(journal, 110)
    before = journal.stays.launches("r")[-1].end
    epoch = journal.leadership.acquire("one", 600.0) or 0
    journal.runs.end("r", "retired: uid 0: by hand", now=after(600), epoch=epoch)
    assert before < after(110)
    assert journal.stays.launches("r")[-1].end == after(110)
    assert row_at(journal, 600).last_seen_at == after(110)


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_step_of_the_wall_clock_makes_nobody_lost_or_immortal(
    journal: Journal, step_s: int
) -> None:
    """Silence is counted as it passed, whichever way the clock went."""
    register(journal)
    journal.runs.liveness.lead(T0, None)
    live_through(journal, 5, 100)
    journal.runs.liveness.shift(step_s)
    assert row_at(journal, 100 + step_s + LIVE_S).state == "live"
    assert row_at(journal, 101 + step_s + LIVE_S).state == "lost"


def test_a_row_from_a_clock_that_was_ahead_is_no_life_for_an_hour(journal: Journal) -> None:
    """The daemon before had its clock stepped back, and was killed: one limit, as for all."""
    register(journal, now=after(HOUR_S))
    with again(journal, led_until=after(HOUR_S), now=T0) as next_one:
        assert row_at(next_one, LIVE_S).state == "live"
        assert row_at(next_one, LIVE_S + 1).state == "lost"


@contextmanager
def again(
    journal: Journal, *, led_until: datetime | None, now: datetime | None
) -> Iterator[Journal]:
    """Give another daemon's view of the same journal; with `now` it leads since then."""
    other = Journal(journal.database)
    if now is not None:
        other.runs.liveness.lead(now, led_until)
    yield other
