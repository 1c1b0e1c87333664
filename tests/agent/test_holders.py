"""Who may own GPUs: what runs registered, what they gave back, and looks that come late."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.agent.delivery.ledgers import T0
from tests.builders import messages
from wattmesh.controller.cycle.fleet import holders
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.errors import SourceUnavailable
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.reconfig.catalogue_file import parse
from wattmesh.reconfig.wire.messages import Finish, Progress, Register
from wattmesh.telemetry.energy.attribution import IDLE, Holder, LaunchState
from wattmesh.telemetry.energy.node_claims import KEPT_S, NodeClaims

GPUS = ("G0", "G1", "G2", "G3")


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """An empty journal."""
    return sqlite_journal


def register(journal: Journal, catalogue: Catalogue | None = None, **changes: Any) -> None:
    """Let the run register."""
    message = Register.from_json(messages.register(gpus=GPUS, **changes))
    plan = RunPlan(catalogue=catalogue)
    journal.runs.register(message, owner_uid=1000, now=T0, epoch=1, plan=plan)


def test_a_run_that_is_silent_or_done_is_only_asked_for_where_nodes_look(
    journal: Journal,
) -> None:
    """Without a view it keeps its GPUs for an hour; with one its processes say for how long."""
    register(journal)
    late = T0 + timedelta(minutes=61)
    assert [each.standing for each in holders(journal.runs.all(T0), T0, seen=False)] == ["live"]
    assert holders(journal.runs.all(late), late, seen=False) == ()
    (lost,) = holders(journal.runs.all(late), late, seen=True)
    assert lost.standing is LaunchState.LOST
    done = Finish.from_json(messages.finish())
    journal.runs.finish(done, owner_uid=1000, now=late)
    assert holders(journal.runs.all(late), late, seen=False) == ()
    (ended,) = holders(journal.runs.all(late), late, seen=True)
    assert ended.standing is LaunchState.FINISHED


def test_gpus_of_a_smaller_layout_are_given_back_when_the_catalogue_says_so(
    journal: Journal,
) -> None:
    """`released` gives them back; `parked` keeps them."""
    for name, release, given in (
        (f"{messages.RUN[:-1]}2", "released", ("G2", "G3")),
        (f"{messages.RUN[:-1]}3", "parked", ()),
    ):
        text = messages.CATALOGUE.replace('"parked"', f'"{release}"')
        catalogue = parse(text.encode(), name)
        register(journal, catalogue, run=name, incarnation=f"{name}-a")
        message = messages.progress(
            run=name, incarnation=f"{name}-a", ranks=(0, 1), layout=messages.B
        )
        journal.runs.progress(Progress.from_json(message), owner_uid=1000, now=T0)
        found = {each.run: each for each in holders(journal.runs.all(T0), T0, seen=True)}
        assert found[name].released == given
        assert found[name].gpus == GPUS


def test_a_restart_on_fewer_gpus_gives_the_others_back(journal: Journal) -> None:
    """Those of earlier restarts too; one that is taken again is its own again."""
    lives = [GPUS, ("G0", "G1"), ("G1",), ("G1", "G2")]
    for attempt, gpus in enumerate(lives, start=1):
        message = messages.register(
            gpus=gpus, attempt=attempt, incarnation=f"i{attempt}", supersedes=f"i{attempt - 1}"
        )
        told = Register.from_json(message)
        journal.runs.register(told, owner_uid=1000, now=T0, epoch=1, plan=RunPlan())
        (row,) = journal.runs.all(T0)
        assert row.gpus == gpus
        assert set(row.released) == set(GPUS) - set(gpus)
        ended = messages.finish(incarnation=f"i{attempt}", attempt=attempt, reason="restart")
        journal.runs.finish(Finish.from_json(ended), owner_uid=1000, now=T0)


def test_a_driver_that_does_not_answer_leaves_the_look_before_in_force() -> None:
    """For a while; then registrations stand as they are. A run never turns idle by that."""
    now_s, broken = [0.0], [False]

    def pids() -> Mapping[str, Sequence[int]]:
        if broken[0]:
            raise SourceUnavailable("the driver is gone")
        return {"G0": ()}

    claims = NodeClaims(pids, "n1", monotonic=lambda: now_s[0])
    try:
        from_run = holders_of_one()
        assert claims.claims(from_run, ("G0",)) == {"G0": IDLE}
        broken[0] = True
        now_s[0] = KEPT_S - 1
        assert claims.claims(from_run, ("G0",)) == {"G0": IDLE}
        now_s[0] = KEPT_S + 1
        assert claims.claims(from_run, ("G0",))["G0"].run == "run-1"
        broken[0] = False
        assert claims.claims(from_run, ("G0",)) == {"G0": IDLE}
    finally:
        claims.close()


def holders_of_one() -> tuple[Holder, ...]:
    """Give one run that registered G0."""
    return (Holder(run="run-1", incarnation="a", gpus=("G0",)),)
