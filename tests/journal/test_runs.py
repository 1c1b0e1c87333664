"""Who may speak for a run."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders.runs import PLAN, T0, UID, A, B, after, progress, register
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import admission
from wattmesh.controller.journal.runs.admission import MOST_LAUNCHES
from wattmesh.errors import Fenced, InputInvalid, Refused, RetryLater
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Finish

YEAR_S = 400 * 86_400.0


def test_a_registered_run_comes_back_whole(journal: Journal) -> None:
    """The catalogue and the deadline are frozen with it."""
    register(journal)
    row = journal.runs.find("llm", T0)
    assert row is not None
    assert (row.state, row.layout, row.gpus) == ("live", A, ("g0", "g1", "g2", "g3"))
    assert row.catalogue == PLAN.catalogue
    assert row.baseline == "A"
    assert row.deadline == after(300)


def test_registering_again_changes_nothing(journal: Journal) -> None:
    """A hook repeats what was not acknowledged."""
    register(journal)
    register(journal, now=after(5))
    row = journal.runs.find("r", after(5))
    assert row is not None
    assert row.registered_at == T0
    assert row.incarnation_at == T0


def test_an_introduction_that_is_repeated_late_takes_nothing_back(journal: Journal) -> None:
    """Its answer was lost, so the hook sends it again after it reported progress, or its end."""
    register(journal)
    progress(journal, now=after(2), tokens=2000, layout=B, ranks=(0, 1))
    register(journal, now=after(3))
    row = journal.runs.find("r", after(3))
    assert row is not None
    assert (row.tokens, row.layout, row.tokens_per_s) == (2000, B, 1000.0)
    assert row.last_seen_at == after(3)
    progress(journal, now=after(4), tokens=1500)
    done = Finish(run="r", incarnation="i1", attempt=1, step=30, tokens=3000, reason="done")
    journal.runs.finish(done, owner_uid=UID, now=after(5))
    register(journal, now=after(6))
    journal.runs.finish(done, owner_uid=UID, now=after(7))
    row = journal.runs.find("r", after(7))
    assert row is not None
    assert (row.state, row.tokens, row.finished_at) == ("finished", 3000, after(5))


def test_a_second_user_may_neither_register_nor_report(journal: Journal) -> None:
    """The first register binds the owner."""
    register(journal)
    with pytest.raises(Refused, match="belongs to uid 1000"):
        register(journal, uid=UID + 1, incarnation="i2", attempt=2)
    with pytest.raises(Refused):
        progress(journal, now=after(1), tokens=100, uid=UID + 1)


def test_two_live_incarnations_are_refused(journal: Journal) -> None:
    """Unless the second says that it holds the lock of the first."""
    register(journal)
    with pytest.raises(Fenced, match="attempt 1 on node1 is alive"):
        register(journal, incarnation="i2", attempt=2, now=after(3))
    register(journal, incarnation="i2", attempt=2, now=after(3), supersedes="i1")
    with pytest.raises(Fenced, match="superseded by attempt 2"):
        progress(journal, now=after(4), tokens=100)


def test_a_silent_incarnation_may_be_followed(journal: Journal) -> None:
    """After it was silent for long; an older attempt never may."""
    register(journal)
    register(journal, incarnation="i2", attempt=2, now=after(60))
    with pytest.raises(Fenced, match="attempt 2 is not newer than attempt 2"):
        register(journal, incarnation="i3", attempt=2, now=after(120))
    row = journal.runs.find("r", after(61))
    assert row is not None
    assert (row.outage_from, row.incarnation_at) == (T0, after(60))


def test_a_restart_that_we_ordered_is_no_outage(journal: Journal) -> None:
    """The baseline's clock runs on through it."""
    register(journal)
    finish = Finish(run="r", incarnation="i1", attempt=1, step=1, tokens=100, reason="restart")
    journal.runs.finish(finish, owner_uid=UID, now=after(5))
    register(journal, incarnation="i2", attempt=2, now=after(15))
    row = journal.runs.find("r", after(15))
    assert row is not None
    assert row.outage_from is None


def test_a_late_report_is_ignored(journal: Journal) -> None:
    """Reports overtake each other; the newest by its own count stands."""
    register(journal)
    progress(journal, now=after(2), tokens=2000, layout=B, ranks=(0, 1))
    progress(journal, now=after(3), tokens=1000)
    row = journal.runs.find("r", after(3))
    assert row is not None
    assert (row.tokens, row.layout) == (2000, B)


def test_a_run_is_lost_when_silent_and_finished_when_done(journal: Journal) -> None:
    """Both are derived from what it reported, not stored by a guess."""
    register(journal)
    assert journal.runs.all(after(10))[0].state == "live"
    assert journal.runs.all(after(100))[0].state == "lost"
    finish = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=900, reason="done")
    journal.runs.finish(finish, owner_uid=UID, now=after(101))
    assert journal.runs.all(after(500))[0].state == "finished"
    with pytest.raises(Fenced):
        journal.runs.finish(replace(finish, attempt=0), owner_uid=UID, now=after(102))


def test_a_report_that_arrives_after_the_end_does_not_revive_a_run(journal: Journal) -> None:
    """A finish is an incarnation's last word; only a new one makes the run live again."""
    register(journal)
    finish = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=900, reason="done")
    journal.runs.finish(finish, owner_uid=UID, now=after(5))
    progress(journal, now=after(6), tokens=800)
    row = journal.runs.all(after(7))[0]
    assert (row.state, row.tokens, row.finished_at) == ("finished", 900, after(5))
    register(journal, incarnation="i2", attempt=2, now=after(60))
    assert journal.runs.all(after(60))[0].state == "live"


def test_freeze_and_thaw_of_one_run_and_of_everything(journal: Journal) -> None:
    """Each says who did it and why; an unknown run is an error."""
    register(journal)
    journal.runs.freeze("r", reason="maintenance", by="anna", now=T0)
    assert journal.runs.all(T0)[0].frozen == "anna: maintenance"
    journal.runs.thaw("r", now=T0)
    assert journal.runs.all(T0)[0].frozen == ""
    journal.runs.freeze(None, reason="", by="bert", now=T0)
    assert journal.runs.frozen_all() == "bert"
    journal.runs.thaw(None, now=T0)
    assert journal.runs.frozen_all() == ""
    with pytest.raises(InputInvalid, match="wattmesh runs"):
        journal.runs.freeze("x", reason="", by="anna", now=T0)


def test_an_operators_wish_stays_until_it_is_cleared(journal: Journal) -> None:
    """The cycle reads it from the row; one that comes while another is carried out is not lost."""
    register(journal)
    epoch = journal.leadership.acquire("test", 60.0)
    assert epoch is not None
    journal.runs.order_point("r", "B", reason="trial", by="anna")
    assert journal.runs.all(T0)[0].ordered_point == "B"
    journal.runs.clear_ordered_point("r", "A", epoch=epoch)
    assert journal.runs.all(T0)[0].ordered_point == "B"
    journal.runs.clear_ordered_point("r", "B", epoch=epoch)
    assert journal.runs.all(T0)[0].ordered_point == ""


def test_what_one_node_vouches_for_uses_up_no_room_of_a_user_elsewhere(journal: Journal) -> None:
    """A node's token can make up runs of any uid: those fill that node's share of the user's."""
    for number in range(3):
        register(journal, run=f"n1-{number}", incarnation=f"j{number}", most=3, node="n1")
        journal.run_nodes.bind(f"n1-{number}", "n1", 1)
    with pytest.raises(Refused, match="has 3 runs that report"):
        register(journal, run="n1-3", incarnation="j3", most=3, node="n1")
    register(journal, run="own", incarnation="k0", most=3)
    register(journal, run="n2-0", incarnation="k1", most=3, node="n2")


def test_launching_again_and_again_fills_no_journal(journal: Journal) -> None:
    """By number, of one run; others, and the same an hour later, are let in."""
    register(journal)
    for attempt in range(2, MOST_LAUNCHES + 1):
        register(journal, incarnation=f"i{attempt}", attempt=attempt, supersedes=f"i{attempt - 1}")
    newest = f"i{MOST_LAUNCHES}"
    more: dict[str, Any] = {"incarnation": "more", "attempt": 999, "supersedes": newest}
    with pytest.raises(RetryLater, match="240 times within an hour"):
        register(journal, **more)
    register(journal, run="other", incarnation="o1")
    register(journal, now=after(3601), **more)


def test_a_clock_that_was_a_year_ahead_shuts_nobody_out_for_a_year(journal: Journal) -> None:
    """Launches and new runs count by the hour on both sides of now: an hour ahead counts still."""
    for at in range(4):
        register(journal, run=f"a{at}", incarnation=f"a{at}", most=2, now=after(YEAR_S + at * 60))
    for attempt in range(1, MOST_LAUNCHES + 1):
        launch: dict[str, Any] = {"incarnation": f"i{attempt}", "supersedes": f"i{attempt - 1}"}
        register(journal, attempt=attempt, now=after(YEAR_S + 300), **launch)
    more: dict[str, Any] = {"incarnation": "more", "attempt": 999, "supersedes": f"i{attempt}"}
    journal.runs.liveness.shift(-3000.0)
    with pytest.raises(Refused, match="begun 5 runs within an hour"):
        register(journal, run="b", incarnation="b", most=2, now=after(YEAR_S - 2700))
    with pytest.raises(RetryLater, match="240 times within an hour"):
        register(journal, now=after(YEAR_S - 2700), **more)
    journal.runs.liveness.shift(3000.0 - YEAR_S)
    register(journal, run="b", incarnation="b", most=2, now=after(600))
    register(journal, now=after(600), **more)


def test_launches_that_name_many_gpus_are_bounded_by_what_they_name(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one user, whichever run; the first one is taken whatever it names."""
    monkeypatch.setattr(admission, "MOST_NAMED", 5000)
    many = tuple(f"GPU-{number:056d}" for number in range(70))
    names: dict[str, Any] = {"gpus": many, "ranks": tuple(range(70)), "layout": Layout(dp_shard=70)}
    register(journal, world_size=70, **names)
    with pytest.raises(RetryLater, match="launch less often"):
        register(journal, world_size=70, incarnation="i2", attempt=2, supersedes="i1", **names)
    register(journal, uid=UID + 1, run="theirs", incarnation="t1")


def test_launches_of_a_closed_run_are_forgotten_but_the_newest(journal: Journal) -> None:
    """Until then they say on which GPUs it was, whatever their age."""
    register(journal)
    register(journal, now=after(10), incarnation="i2", attempt=2, supersedes="i1")
    end = Finish(run="r", incarnation="i2", attempt=2, step=30, tokens=3000, reason="done")
    journal.runs.finish(end, owner_uid=UID, now=after(20))
    journal.retention.prune(after(1000))
    assert len(journal.stays.launches("r")) == 2
    journal.ledger.close_run("r", {}, after(900))
    journal.retention.prune(after(1000))
    assert [each.start for each in journal.stays.launches("r")] == [after(10)]


def test_the_highest_uid_owns_its_run(journal: Journal) -> None:
    """Linux has uids up to 2^32 - 2, twice what a signed column of four bytes holds."""
    highest = 2**32 - 2
    register(journal, uid=highest)
    progress(journal, now=after(1), tokens=100, uid=highest)
    row = journal.runs.find("r", after(1))
    assert row is not None
    assert (row.owner_uid, row.tokens) == (highest, 100)
    with pytest.raises(Refused, match="belongs to uid 4294967294"):
        progress(journal, now=after(2), tokens=200, uid=highest - 2**32)


def test_what_is_remembered_of_a_binding_holds_for_one_epoch(journal: Journal) -> None:
    """Another daemon that led in between may have bound the run elsewhere."""
    register(journal)
    journal.run_nodes.bind("r", "n1", 1)
    assert journal.run_nodes.remembered("r", 1) == "n1"
    other = Journal.open(str(journal.database.url))
    other.run_nodes.bind("r", "n2", 2)
    other.close()
    assert journal.run_nodes.remembered("r", 3) is None
    assert journal.run_nodes.of("r", 3) == "n2"
