"""What nodes deliver, in the journal: each batch once, changes added, on both databases."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, update

from tests.agent.delivery.ledgers import SLOT, T0, amounts, counter, row
from wattmesh.controller.api.handlers.agents import laid
from wattmesh.controller.cycle.fleet import FleetSampler, controls, gpus_read, own_gpus_read
from wattmesh.controller.journal.database.tables import NODE_DEVICES, NODES
from wattmesh.controller.journal.database.values import to_us
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.node_devices import DeviceOwners
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.desired import Applied, GpuControl
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.energy.sampler import Sample


def batch(seq: int, *rows: EnergyRow, **changes: Any) -> EnergyBatch:
    """Give a batch of n1."""
    values: dict[str, Any] = {"node": "n1", "boot_id": "boot-1", "at": T0}
    return EnergyBatch(seq=seq, rows=rows, **values | changes)


def deliver(journal: Journal, what: EnergyBatch | None, **more: Any) -> bool:
    """Deliver to a journal."""
    report = Report(batch=what, **more)
    return journal.nodes.deliver("n1", report, what.rows if what else (), T0)


def test_a_batch_that_comes_again_or_late_adds_nothing(journal: Journal) -> None:
    """The watermark of each boot; another boot begins anew."""
    assert deliver(journal, batch(5, row()))
    assert not deliver(journal, batch(5, row()))
    assert not deliver(journal, batch(4, row()))
    assert deliver(journal, batch(6, row()))
    assert deliver(journal, batch(1, row(), boot_id="boot-2"))
    assert [each.energy_mj for each in journal.ledger.energy()] == [3000]


def test_one_batch_that_arrives_twice_at_once_is_counted_once(journal: Journal) -> None:
    """An agent that gave up waiting sends it again while the first is still being taken in."""
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: deliver(journal, batch(1, row())), range(8)))
    assert sum(taken) == 1
    assert [each.energy_mj for each in journal.ledger.energy()] == [1000]


def test_a_device_that_another_node_took_meanwhile_is_that_nodes(journal: Journal) -> None:
    """On PostgreSQL two nodes may tell of a new device in transactions beside each other."""
    theirs = {"gpu_uuid": "G0", "node": "n2", "seen_at": to_us(T0)}
    with journal.database.writing() as connection:
        owners = DeviceOwners(connection, {"G0", "G1"})
        connection.execute(insert(NODE_DEVICES), theirs)
        owners.bind("n1", {"G0", "G1"}, {"G0", "G1"}, T0)
        assert owners.elsewhere("n1", {"G0", "G1"}, T0) == {"G0": "n2"}


OLD = T0 - timedelta(days=200)
LIMIT = T0 - timedelta(days=90)


def long_ago(journal: Journal) -> EnergyBatch:
    """Deliver a batch of a boot long over, then one of the boot of now; give the old one."""
    old = batch(5, row(), at=OLD)
    assert journal.nodes.deliver("n1", Report(batch=old), old.rows, OLD)
    assert deliver(journal, batch(1, row(), boot_id="boot-2"))
    assert deliver(journal, replace(batch(9, row()), node="n2")) is True
    return old


def test_an_old_batch_is_refused_though_its_watermark_was_let_go(journal: Journal) -> None:
    """Only what cannot come again goes: a repeat of a boot long over still adds nothing."""
    old = long_ago(journal)
    assert journal.retention.prune(LIMIT) == 1
    assert journal.retention.prune(LIMIT) == 0
    assert not journal.nodes.taken("n1", "boot-1", 5)
    booked = [each.energy_mj for each in journal.ledger.energy()]
    assert not deliver(journal, old)
    assert not deliver(journal, replace(old, seq=99))
    assert [each.energy_mj for each in journal.ledger.energy()] == booked
    assert not deliver(journal, batch(1, row(), boot_id="boot-2"))
    assert deliver(journal, batch(2, row(), boot_id="boot-2"))
    assert deliver(journal, batch(1, row(), boot_id="boot-3"))


def test_a_floor_that_was_not_raised_would_be_seen(journal: Journal) -> None:
    """The sabotaged twin: without the node's floor, the old batch counts twice."""
    old = long_ago(journal)
    journal.retention.prune(LIMIT)
    with journal.database.writing() as connection:
        connection.execute(update(NODES).values(forgotten_at=None))
    assert deliver(journal, old)


def test_the_newest_boot_of_a_node_is_never_forgotten(journal: Journal) -> None:
    """A node that was off for months delivers what its outbox held, and a repeat adds nothing."""
    first = batch(5, row(), at=OLD)
    journal.nodes.deliver("n1", Report(batch=first), first.rows, OLD)
    assert journal.retention.prune(LIMIT) == 0
    assert not deliver(journal, first)
    assert deliver(journal, batch(6, row(), at=OLD))


def test_a_node_whose_clock_ran_ahead_counts_nothing_twice(journal: Journal) -> None:
    """What a batch says of its own time counts for the floor where it is later than ours."""
    ahead = batch(5, row(), at=OLD + timedelta(days=10))
    journal.nodes.deliver("n1", Report(batch=ahead), ahead.rows, OLD)
    deliver(journal, batch(1, row(), boot_id="boot-2"))
    assert journal.retention.prune(LIMIT) == 1
    assert not deliver(journal, ahead)


@pytest.mark.parametrize(
    "bad", [{"gpu_uuid": "G" * 65}, {"quality": "q" * 65}, {"run": "a\0b"}, {"source": "s" * 33}]
)
def test_a_text_without_room_is_refused_on_every_database(
    journal: Journal, bad: dict[str, str]
) -> None:
    """Not taken as it stands by one, and called an outage by the other."""
    with pytest.raises(InputInvalid):
        deliver(journal, batch(1, row(), row(1, **bad)))
    assert journal.ledger.energy() == ()
    assert deliver(journal, batch(1, row()))


def test_changes_are_added_and_unknown_stays_unknown(journal: Journal) -> None:
    """Joules, times and bounds add up, also downwards; a weak part makes the sum weak."""
    deliver(journal, batch(1, row(energy_mj=None, unobserved_ms=9, upper_mj=8, quality="measured")))
    assert journal.ledger.energy()[0].energy_mj is None
    deliver(journal, batch(2, row(energy_mj=5, unobserved_ms=-9, upper_mj=-8, quality="estimated")))
    deliver(journal, batch(3, row(energy_mj=None, quality="measured")))
    (found,) = journal.ledger.energy()
    assert (found.energy_mj, found.unobserved_ms, found.upper_mj) == (5, 0, 0)
    assert found.quality == "estimated"


def test_two_changes_of_one_row_in_a_batch_are_both_counted(journal: Journal) -> None:
    """Two slots of the node may lie in one of ours."""
    deliver(journal, batch(1, row(), row(energy_mj=7), row(1)))
    assert [each.energy_mj for each in journal.ledger.energy()] == [1007, 1000]


def test_counters_are_only_trusted_when_all_rows_before_them_are_delivered(
    journal: Journal,
) -> None:
    """A part of a long backlog: an agent that lost its file must not count that part again."""
    deliver(journal, batch(1, row(), baselines=(counter(1000), counter(7, "G1"))))
    assert {each.gpu_uuid: each.energy_mj for each in journal.nodes.baselines("n1")} == {
        "G0": 1000,
        "G1": 7,
    }
    deliver(journal, batch(2, row(1)))
    assert [each.gpu_uuid for each in journal.nodes.baselines("n1")] == ["G1"]
    assert journal.nodes.baselines("n2") == ()


def test_totals_follow_what_is_delivered_late(journal: Journal) -> None:
    """Old slots whose sums are kept: a late delivery is seen in them."""
    deliver(journal, batch(1, row(), row(200)))
    assert sum(each.energy_mj for each in journal.ledger.totals()) == 2000
    deliver(journal, batch(2, row(energy_mj=1)))
    assert sum(each.energy_mj for each in journal.ledger.totals()) == 2001


def test_a_node_keeps_what_is_silent_and_forgets_what_was_taken_out(journal: Journal) -> None:
    """Silent devices stay expected for a day; a retired node until it reports again."""
    facts = {"at": T0.isoformat(), "power_w": 5.0}
    deliver(journal, None, devices={"G0": facts, "G1": facts}, facts={"version": "1"})
    deliver(journal, None, devices={"G0": facts}, missing=("G1", "G2"))
    (found,) = journal.nodes.all()
    assert sorted(found.devices) == ["G0", "G1", "G2"]
    later = T0 + timedelta(days=2)
    fresh = {"at": later.isoformat(), "power_w": 5.0}
    journal.nodes.deliver("n1", Report(devices={"G0": fresh}), (), later)
    assert [sorted(each.devices) for each in journal.nodes.all()] == [["G0"]]
    assert journal.nodes.retire("n1", later)
    assert not journal.nodes.retire("n1", later)
    assert journal.nodes.all() == ()
    deliver(journal, None, devices={"G0": fresh})
    assert len(journal.nodes.all()) == 1


def node(name: str = "n1", age_s: float = 0.0, **devices: dict[str, Any]) -> NodeRow:
    """Give a node heard so long ago."""
    told = {"at": T0.isoformat(), "power_w": 100.0}
    applied = Applied(mode="enforce", epoch=1, gpus=(GpuControl(gpu_uuid="G0", settable=True),))
    return NodeRow(
        node=name,
        boot_id="b",
        last_seen_at=T0 - timedelta(seconds=age_s),
        devices=devices or {"G0": told, "cpu:n1:0": told},
        facts={"applied": applied.to_json(), "deliver_s": 10.0},
    )


def test_coverage_counts_what_was_seen_lately_of_what_is_expected() -> None:
    """Silent nodes, silent devices, processors; expected is whatever was ever reported."""
    told, old = {"at": T0.isoformat()}, {"at": (T0 - timedelta(minutes=5)).isoformat()}
    nodes = [node(), node("n2", 29.0, G1=told, G2=old), node("n3", 31.0, G3=told)]
    nodes.append(node("n4", 0.0, G4={"at": T0.isoformat(), "silent": True}, G5=told))
    assert gpus_read(nodes, T0).site == (3, 6)
    together = FleetSampler().sample(nodes, T0)
    assert {each.gpu_uuid for each in together.readings} == {"G0", "cpu:n1:0", "G1", "G5"}
    assert set(together.missing) == {"G2", "G3", "G4"}
    assert "n3" in together.trouble
    assert own_gpus_read(Sample(missing=("G7", "cpu:a:0"))).site == (0, 1)


def test_what_an_agent_cannot_read_is_told_with_its_node() -> None:
    """While the node is heard; an agent that says it in another shape says nothing."""
    said = "redfish: https://n1-bmc refuses user 'w' (401)"
    told = replace(node(), facts={**node().facts, "troubles": [said]})
    sampler = FleetSampler()
    assert sampler.sample([told], T0).troubles == (("n1", said),)
    assert sampler.sample([told], T0 + timedelta(seconds=40)).troubles == ()
    odd = replace(told, facts={"troubles": {"a": 1}})
    assert sampler.sample([odd], T0).troubles == ()


@pytest.mark.parametrize("seed", range(20))
def test_a_row_that_was_read_before_tells_what_it_told(seed: int) -> None:
    """Rows stay, change, fall silent, go and come again: nothing old is told, nothing lost."""
    chance, sampler = random.Random(seed), FleetSampler()
    rows = {name: node(name) for name in ("n1", "n2", "n3")}
    for step in range(30):
        now = T0 + timedelta(seconds=10 * step)
        for name in chance.sample(sorted(rows), chance.randint(0, 3)):
            age_s = chance.choice([0.0, 20.0, 40.0])
            told = {"at": now.isoformat(), "power_w": chance.choice([None, 100.0, 200.0])}
            row = node(name, age_s, **{f"G-{name}": told})
            rows[name] = replace(row, last_seen_at=now - timedelta(seconds=age_s))
        present = chance.sample(list(rows.values()), chance.randint(0, 3))
        assert sampler.sample(present, now) == FleetSampler().sample(present, now)


def test_clocks_of_a_node_that_is_not_heard_are_not_known() -> None:
    """Nor are those that an agent of another version tells in words we do not understand."""
    assert set(controls([node()], T0)) == {"G0"}
    assert controls([node(age_s=31.0)], T0) == {}
    odd = NodeRow(node="n", boot_id="", last_seen_at=T0, devices={}, facts={"applied": {"x": 1}})
    assert controls([odd], T0) == {}


SECONDS = st.integers(0, 40_000).map(lambda s: timedelta(seconds=s))


GRIDS = st.sampled_from([5.0, 300.0, 1800.0, 3600.0, 86_400.0]).map(
    lambda each: SlotGrid(origin=T0 - timedelta(days=3), interval_s=each)
)
ROWS = st.builds(
    lambda start, length, energy, unobserved: row(
        slot_start=T0 + start,
        slot_end=T0 + start + length,
        energy_mj=energy,
        unobserved_ms=unobserved,
        upper_mj=3,
    ),
    SECONDS,
    SECONDS.filter(bool),
    st.none() | st.integers(0, 10**13),
    st.integers(-(10**7), 10**7),
)


@given(given_row=ROWS, grid=GRIDS, until=SECONDS)
def test_rows_of_any_slots_are_laid_over_ours_whole(
    given_row: EnergyRow, grid: SlotGrid, until: timedelta
) -> None:
    """Nothing lost, nothing doubled, nothing after the moment at which it was measured."""
    found = laid([given_row], grid, T0 + until)
    assert amounts(found) == amounts([given_row])
    assert all((each.energy_mj is None) == (given_row.energy_mj is None) for each in found)
    assert all(grid.slot(each.slot_start) == (each.slot_start, each.slot_end) for each in found)
    newest = max(T0 + until, given_row.slot_start)
    assert all(each.slot_start <= newest for each in found[1:])


def test_a_joined_slot_is_shared_out_by_time() -> None:
    """What an agent joined while nobody listened: two of our slots, in proportion.

    It says of neither what was drawn in it; a row of one slot of ours does.
    """
    grid = SlotGrid(origin=T0, interval_s=SLOT.total_seconds())
    long = row(0, slot_end=T0 + 2 * SLOT, energy_mj=100)
    whole = row(0, slot_end=T0 + SLOT, energy_mj=100)
    words = [{each.quality for each in laid([one], grid, one.slot_end)} for one in (long, whole)]
    assert words == [{"estimated+spread"}, {"measured"}]
    assert [each.energy_mj for each in laid([long], grid, T0 + 2 * SLOT)] == [50, 50]
    assert [each.energy_mj for each in laid([long], grid, T0 + 1.25 * SLOT)] == [80, 20]
