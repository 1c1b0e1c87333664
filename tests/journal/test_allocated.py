"""GPUs that the scheduler gave a run's job, in the journal: told, kept, handed on, given back."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from tests.builders.runs import PLAN, T0, UID, A, B, after, register
from wattmesh.controller.cycle.fleet import FleetSnapshot, holder
from wattmesh.controller.journal.database.tables import INCARNATIONS, NODE_DEVICES
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.node_devices import check_charged
from wattmesh.controller.journal.runs import admission
from wattmesh.controller.journal.runs.run_row import RunRow
from wattmesh.controller.journal.runs.stays import held_gpus
from wattmesh.errors import InputInvalid, RetryLater
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.wire.messages import OBSERVED, RESIZES, Finish, Register
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.energy.unobserved import Limits
from wattmesh.telemetry.energy.unobserved import rows as unread_rows

FOUR, TWO = ("g0", "g1", "g2", "g3"), ("g0", "g1")
HALF: dict[str, Any] = {
    "layout": B,
    "ranks": (0, 1),
    "world_size": 2,
    "gpus": TWO,
    "allocated": FOUR,
    "scheduler_key": "slurm:7",
}
GIVES_BACK = replace(PLAN, catalogue=replace(PLAN.catalogue, release=Release.RELEASED))  # type: ignore[type-var]


def row(journal: Journal, seconds: float = 1) -> RunRow:
    """The run as it stands."""
    (found,) = journal.runs.all(after(seconds))
    return found


def leave(journal: Journal, reason: str, at: float, **changes: Any) -> None:
    """Let the launch end."""
    facts: dict[str, Any] = {
        "run": "r",
        "incarnation": "i1",
        "attempt": 1,
        "step": 1,
        "tokens": 100,
    }
    message = Finish(reason=reason, **facts, **changes)
    journal.runs.finish(message, owner_uid=UID, now=after(at))


def test_what_a_job_has_is_kept_with_its_launch_and_handed_to_its_nodes(journal: Journal) -> None:
    """Of an older hook it is not known, and nothing is made up."""
    register(journal, **HALF)
    found = row(journal)
    assert (found.gpus, found.allocated) == (TWO, FOUR)
    assert holder(found).allocated == FOUR
    snapshot = FleetSnapshot.of(0.0, (found,), (), frozen="")
    assert set(snapshot.by_gpu) == {*FOUR}
    (launch,) = journal.stays.launches("r")
    assert launch.gpus == FOUR
    register(journal, run="other", name="other", incarnation="o1", gpus=TWO)
    assert journal.runs.find("other", T0).allocated == ()  # type: ignore[union-attr]
    without = {
        key: each for key, each in Register(**_least()).to_json().items() if key != "allocated"
    }
    assert Register.from_json(without).allocated == ()


def _least() -> dict[str, Any]:
    facts = {"name": "llm", "incarnation": "i", "attempt": 1, "layout": B, "ranks": (0, 1)}
    return {**facts, "run": "6f1f6f2e-0000-4000-8000-000000000000", "world_size": 2}


def test_rows_from_before_name_none(journal: Journal) -> None:
    """As the migration leaves them."""
    register(journal, gpus=TWO)
    with journal.database.writing() as connection:
        values = connection.execute(select(INCARNATIONS)).mappings().one()
        old = {key: each for key, each in values.items() if key != "allocated"}
        connection.execute(INCARNATIONS.delete())
        connection.execute(insert(INCARNATIONS).values(**old))
    (launch,) = journal.stays.launches("r")
    assert launch.gpus == TWO


def test_a_launch_may_say_it_later(journal: Journal) -> None:
    """An observed one names GPUs as it finds them."""
    register(journal, **HALF | {"allocated": (), "capabilities": (OBSERVED,)})
    register(journal, now=after(1), **HALF | {"capabilities": (OBSERVED,)})
    assert row(journal).allocated == FOUR
    assert journal.stays.launches("r")[0].gpus == FOUR


@pytest.mark.parametrize(
    ("gpus", "allocated", "released"),
    [
        (TWO, FOUR, ()),  # fewer ranks in the same job
        (TWO, TWO, ("g2", "g3")),  # another job, of two
        (TWO, (), ("g2", "g3")),  # a hook that does not say
        (("h0", "h1"), ("h0", "h1", "h2", "h3"), ()),  # as many elsewhere
        (("h0",), ("h0", "h1"), ("g0", "g1")),
    ],
)
def test_only_what_its_job_has_no_more_is_given_back(
    journal: Journal, gpus: tuple[str, ...], allocated: tuple[str, ...], released: tuple[str, ...]
) -> None:
    """Of a job that had four and used two, all four were held."""
    register(journal, **HALF, plan=GIVES_BACK)
    leave(journal, "restart", 5)
    size = len(gpus)
    changes = {"world_size": size, "gpus": gpus, "allocated": allocated, "supersedes": "i1"}
    facts = HALF | {"incarnation": "i2", "attempt": 2, **changes}
    register(journal, now=after(9), plan=GIVES_BACK, **facts)
    assert row(journal, 10).released == released


@pytest.mark.parametrize(
    ("able", "allocated", "kept"),
    [
        (("suspend",), FOUR, True),  # its launcher waits inside the job
        (("suspend", RESIZES), FOUR, False),  # the job ends, and Slurm holds another one
        (("suspend",), (), False),  # no job is known
    ],
)
def test_asleep_inside_its_job_a_run_has_given_nothing_back(
    journal: Journal, able: tuple[str, ...], allocated: tuple[str, ...], kept: bool
) -> None:
    """Whatever its catalogue says of a sleep: a GPU that the job has saves nothing."""
    register(journal, **HALF | {"capabilities": able, "allocated": allocated}, plan=GIVES_BACK)
    wakes = (T0 + timedelta(hours=1)).isoformat()
    leave(journal, "suspended", 5, wakes_at=wakes, held_as="the supervisor of pid 4711")
    asleep = row(journal, 10)
    assert asleep.state == "asleep"
    owner = holder(asleep)
    has = {*TWO, *allocated}
    assert owner.idles is kept
    assert ({*owner.gpus, *owner.allocated}, {*owner.released}) == (
        (has, set()) if kept else (set(), has)
    )
    spans = [each for each in journal.coverage.holdings(T0, after(600), {}) if each.gpus]
    nobodys = {gpu for each in spans if not each.run for gpu in each.gpus}
    assert nobodys == (set() if kept else has)
    assert journal.stays.launches("r")[0].gave_back is not kept


def test_a_node_may_charge_a_run_for_what_its_job_has_there(journal: Journal) -> None:
    """And a node with nothing of it may not."""
    register(journal, **HALF)
    charged = EnergyRow(
        gpu_uuid="g3",
        run="r",
        incarnation="i1",
        slot_start=T0,
        slot_end=after(300),
        energy_mj=1,
        unobserved_ms=0,
        upper_mj=0,
        source="nvml",
        quality="measured",
        line="run",
    )
    with journal.database.writing() as connection:
        for node, gpu in (("a", "g3"), ("b", "x")):
            values = {"gpu_uuid": gpu, "node": node, "seen_at": 0}
            connection.execute(insert(NODE_DEVICES).values(**values))
        check_charged(connection, "a", [charged])
        with pytest.raises(InputInvalid, match="never had a device of b"):
            check_charged(connection, "b", [charged])
        # Sabotaged twin: without what the job has, the node that reads it is refused.
        connection.execute(update(INCARNATIONS).values(allocated="[]"))
        with pytest.raises(InputInvalid, match="never had a device of a"):
            check_charged(connection, "a", [charged])


def test_names_of_a_job_count_against_what_a_user_may_name(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch cannot fill the journal with them either."""
    monkeypatch.setattr(admission, "MOST_NAMED", 200)
    many = tuple(f"GPU-{number:030d}" for number in range(6))
    register(journal, layout=A, gpus=FOUR)
    with pytest.raises(RetryLater, match="named GPUs"):
        register(journal, run="s", name="s", incarnation="s1", allocated=many)


@pytest.mark.parametrize(
    ("gpus", "allocated", "count"),
    [
        (("g0", ""), ("g0", "g1"), 2),
        (("g0", ""), FOUR, 4),
        (("", ""), ("g0",), 2),
        (("g0", ""), (), 2),
        ((), TWO, 2),
    ],
)
def test_unread_time_of_a_rank_whose_gpu_is_unknown_counts_once(
    journal: Journal, gpus: tuple[str, ...], allocated: tuple[str, ...], count: int
) -> None:
    """It is one of those that its job has, and these are booked by name."""
    register(journal, **HALF | {"gpus": gpus, "allocated": allocated})
    holdings = journal.coverage.holdings(T0, after(600), {"r": None})
    slots = SlotGrid(origin=T0, interval_s=300)
    booked = unread_rows(holdings, {}, slots, Limits(by_gpu={}), after(600))
    assert sum(each.unobserved_ms for each in booked) == count * 600_000


def test_a_rank_whose_gpu_is_unknown_is_one_of_its_jobs() -> None:
    """It counts once."""
    assert held_gpus(("a", ""), ("a", "b")) == ("a", "b")
    assert held_gpus(("", ""), ("a",)) == ("a", "")
    assert held_gpus(("a", ""), ()) == ("a", "")
    assert held_gpus((), ("a", "b")) == ("a", "b")
