"""A run at a long step is decided about like any other, with what it reported last."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.builders.cycles import report, step_switch, turn, view
from tests.builders.runs import T0, UID, A, B
from tests.cycle.test_cycle import journal
from wattmesh.controller.cycle.act import BOUNDARIES_VALID
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Heartbeat, Progress

__all__ = ["journal"]

HOUR_S = 3600


@pytest.fixture
def journal_url(tmp_path: Path) -> str:
    """One kind of database is enough here."""
    return f"sqlite:///{tmp_path / 'journal.db'}"


def beat(journal: Journal, seconds: float) -> None:
    """Let the run say that it lives."""
    message = Heartbeat(run="r", incarnation="i1", attempt=1, phase="training")
    now = T0 + timedelta(seconds=seconds)
    journal.signs.hear(message, message.phase, owner_uid=UID, now=now)


@pytest.mark.parametrize("beats", [True, False])
def test_an_hour_without_a_step_is_time_lost_and_no_run_lost(
    journal: Journal, *, beats: bool
) -> None:
    """The guard counts what was reported and the time that is left; in silence nothing is decided.

    The run has five hours for 10,000 s of work: after three hours without a step at B, the guard
    needs the fastest point that it may count on. That is B, at the speed that it reported there.
    """
    report(journal, step=2, layout=B)
    at_s = 3 * HOUR_S
    if beats:
        beat(journal, at_s - 5)
    said = turn(journal, at=T0 + timedelta(seconds=at_s))
    assert [each.run for each in said.decisions] == (["r"] if beats else [])
    if beats:
        (decision,) = said.decisions
        assert (decision.kind, decision.target) == ("deadline", "B")
        assert said.observation is not None
        (run,) = said.observation.runs
        assert (run.step, run.tokens, run.last_seen_s) == (2, 2000, 5.0)


def test_pauses_so_far_come_off_the_speed_that_is_counted_on(journal: Journal) -> None:
    """As outages do; a share that is none is brought into its range at the door."""
    shares = []
    for seq, said in enumerate((0.0, 0.25, 7.0, -1.0), start=2):
        journal.runs.progress(
            Progress(
                run="r",
                incarnation="i1",
                attempt=1,
                seq=seq,
                step=seq,
                samples=8,
                tokens=1000,
                tokens_per_s=1000.0,
                loss=2.0,
                layout=A,
                ranks=(0, 1, 2, 3),
                pause_share=said,
            ),
            owner_uid=UID,
            now=T0,
        )
        shares.append(view(journal, T0).outage_share)
    assert shares == [0.0, 0.25, 0.5, 0.0]


def test_an_order_waits_for_boundaries_that_long_steps_make_rare(journal: Journal) -> None:
    """Steps of 72 s and a boundary every 20: three of them are 72 minutes, not ten."""
    long_s = 72.0
    slow(journal, step=2, step_s=long_s)
    turn(journal)
    window_s = BOUNDARIES_VALID * 20 * long_s
    for at_s, state in ((window_s - 5, SwitchState.ORDERED), (window_s + 5, SwitchState.ABANDONED)):
        beat(journal, at_s)
        turn(journal, at=T0 + timedelta(seconds=at_s))
        assert journal.switches.history("r")[-1].state is state


def test_an_operators_order_waits_while_the_run_lives(journal: Journal) -> None:
    """A pause of an hour is no reason to forget what a person asked for; the run's end is."""
    journal.runs.order_point("r", "B", reason="trial", by="anna")
    turn(journal)
    beat(journal, HOUR_S)
    turn(journal, at=T0 + timedelta(seconds=HOUR_S))
    assert journal.switches.history("r")[-1].state is SwitchState.ORDERED
    turn(journal, at=T0 + timedelta(seconds=2 * HOUR_S))
    assert journal.switches.history("r")[-1].state is SwitchState.ABANDONED


def test_a_switch_has_its_time_from_when_it_was_begun(journal: Journal) -> None:
    """However long its order waited: else a rare boundary would make a good switch a failed one."""
    slow(journal, step=2, step_s=72.0)
    turn(journal)
    step_switch(journal, SwitchState.ANNOUNCED, at_s=1000.0)
    step_switch(journal, SwitchState.CHECKPOINTING, at_s=1001.0)
    for at_s, state in ((1590.0, SwitchState.CHECKPOINTING), (1610.0, SwitchState.FAILED)):
        beat(journal, at_s)
        turn(journal, at=T0 + timedelta(seconds=at_s))
        assert journal.switches.history("r")[-1].state is state


def slow(journal: Journal, *, step: int, step_s: float) -> None:
    """Let the run report a step that takes `step_s`, at the speed of its point."""
    journal.runs.progress(
        Progress(
            run="r",
            incarnation="i1",
            attempt=1,
            seq=step,
            step=step,
            samples=8,
            tokens=int(step * 1000 * step_s),
            tokens_per_s=1000.0,
            loss=2.0,
            layout=A,
            ranks=(0, 1, 2, 3),
            boundary_every=20,
        ),
        owner_uid=UID,
        now=T0,
    )
