"""One node's numbers, names and clocks hurt that node alone: typed, bounded, and its own."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from tests.agent.delivery.ledgers import SLOT, T0, counter, row
from tests.agent.test_api import READINGS, look, report, settings
from tests.api.conftest import Served, open_folder, served_on_each
from tests.builders import messages
from wattmesh.controller.api.handlers import agents
from wattmesh.controller.cycle import fleet
from wattmesh.controller.daemon.loop_bodies import FleetDuty
from wattmesh.controller.journal.database.tables import NODES
from wattmesh.controller.status.status import status
from wattmesh.reconfig.ranges import MOST_COUNTED
from wattmesh.telemetry.desired import Applied, GpuControl
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report

__all__ = ["open_folder", "served_on_each", "settings"]

N2 = "/v1/agents/n2/readings"


@pytest.fixture
def site(served_on_each: Served) -> Served:
    """A daemon that n1 has delivered to honestly."""
    served_on_each.clock.wall = T0 + timedelta(minutes=1)
    assert served_on_each.post(READINGS, report()).status == 200
    return served_on_each


def device(**changes: Any) -> dict[str, Any]:
    """Give the facts of a device of n2."""
    return {"at": T0.isoformat(), "power_w": 400.0} | changes


def delivery(**changes: Any) -> dict[str, Any]:
    """Give a delivery of n2 with one device of its own."""
    return report(batch=None, devices={"G2": device()}, **changes)


def rows(*each: Any, seq: int = 1, **changes: Any) -> dict[str, Any]:
    """Give a delivery of n2 with rows of its own."""
    values: dict[str, Any] = {"node": "n2", "boot_id": "b", "seq": seq, "at": T0}
    batch = EnergyBatch(**values | {"rows": tuple(each)} | changes)
    return report(batch=batch, devices={"G2": device()})


def own(**changes: Any) -> Any:
    """Give a row of n2's own device."""
    return row(**{"gpu_uuid": "G2", "run": "", "line": "idle"} | changes)


def turn(site: Served) -> Any:
    """Do what a turn of the cycle and of the sampler does; give the screen."""
    site.loop_facts.fleet = replace(site.loop_facts.fleet, nodes=site.journal.nodes.all())
    look(site)
    site.loop_facts.fleet = replace(
        site.loop_facts.fleet, gpus=fleet.gpus_read(site.loop_facts.fleet.nodes, site.clock.wall)
    )
    fleet.controls(site.loop_facts.fleet.nodes, site.clock.wall)
    fleet.limits_w(site.loop_facts.fleet.nodes, ())
    FleetDuty(site.loop_facts).turn()
    return status(site.journal, site.loop_facts)


FAR = "9999-12-31T23:59:59+00:00"
HOSTILE_DEVICES = [
    {"G2": device(quality=[1])},
    {"G2": device(quality={})},
    {"G2": device(power_w=-1e308)},
    {"G2": device(power_w=1e308)},
    {"G2": device(power_w="400")},
    {"G2": device(power_w=True)},
    {"G2": device(clock_mhz=2**63)},
    {"G2": device(power_limit_w=-1)},
    {"G2": device(highest_limit_w=-1)},
    {"G2": device(component=[])},
    {"G2": device(shared=5)},
    {"G2": device(at=FAR)},
    {"G2": device(at="0001-01-01T00:00:00+14:00")},
    {"G2": device(at="2026-11-20T12:00:00")},
    {"G2": device(at=5)},
    {"G2": []},
    {"": device()},
    {"G" * 65: device()},
    {"G\u001b[31m": device()},
    {f"G{number}": device() for number in range(2000)},
    [],
]
HOSTILE_ROWS = [
    own(energy_mj=2**62),
    own(energy_mj=100_001 * 1800 * 1000),
    own(unobserved_ms=2**62),
    own(upper_mj=-(2**62)),
    own(slot_start=T0.replace(year=1971)),
    own(slot_end=T0.replace(year=9999)),
    own(slot_start=T0 - timedelta(days=401), slot_end=T0),
    own(slot_start=T0 + timedelta(days=2), slot_end=T0 + timedelta(days=2) + SLOT),
    own(quality="MEASURED!"),
    own(gpu_uuid="G2\u202e"),
]


def test_facts_that_no_device_has_are_refused_at_the_door(site: Served) -> None:
    """With a sentence, on that node's line of the screen; the other node is read on."""
    for devices in HOSTILE_DEVICES:
        answer = site.post(N2, delivery() | {"devices": devices})
        assert answer.status == 422, (devices, answer.body)
        assert len(answer.body["error"]) < 400
        assert any(line.startswith("n2: ") for line in turn(site).trouble), devices
    for name in ("deliver_s", "boot_id", "version", "refused"):
        assert site.post(N2, delivery(facts={name: [1]})).status == 422
    huge = json.dumps(delivery()).replace("400.0", "1" + "0" * 400)
    assert site.post(N2, json.loads(huge)).status == 422
    assert site.post(f"/v1/agents/{'n' * 300}/readings", delivery()).status == 422
    assert [node.node for node in site.journal.nodes.all()] == ["n1"]
    assert turn(site).power.total_w == 400.0
    assert site.post(N2, delivery()).status == 200
    assert not any(line.startswith("n2: ") for line in turn(site).trouble)
    assert turn(site).power.total_w == 800.0


def test_boards_that_a_node_or_a_run_made_up_are_told_with_their_names(site: Served) -> None:
    """A node's by the node, in one line; a run's in its own sentence, and in no count of ours."""
    made_up = [f"GPU-bad-{n}" for n in range(50)]
    assert site.post(N2, delivery() | {"missing": made_up}).status == 200
    names = [f"GPU-none-{n}" for n in range(4)]
    assert (
        site.post(f"/v1/runs/{messages.RUN}/register", messages.register(gpus=names)).status == 200
    )
    shown = turn(site)
    assert any(line.startswith("50 of 52 GPUs do not answer (50 on n2)") for line in shown.trouble)
    assert (shown.power.covered, shown.power.to_cover) == (2, 52)
    assert "Nobody reads GPU-none-0 and 3 more of the GPUs" in shown.runs[0].sentence


def test_without_the_ranges_a_list_for_a_quality_ends_the_reading_of_its_node(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin: the door as it was takes it, and nothing of that node is read."""
    monkeypatch.setattr(agents, "read_delivery", lambda body, now, grid: Report.from_json(body))
    assert site.post(N2, delivery() | {"devices": {"G2": device(quality=[1])}}).status == 200
    shown = turn(site)
    assert shown.power.total_w == 400.0
    assert any("n2" in line and "TypeError" in line for line in shown.trouble)


def test_rows_that_no_meter_reads_are_refused_and_nothing_of_them_is_booked(site: Served) -> None:
    """Each leaves the sums as they were; how the node is, is known all the same."""
    before = site.journal.ledger.energy()
    for number, each in enumerate(HOSTILE_ROWS):
        answer = site.post(N2, rows(each, seq=number))
        assert answer.status == 422, (each, answer.body)
    twice = (counter(1, "G2"), counter(2, "G2"))
    assert site.post(N2, rows(baselines=twice)).status == 422
    too_high = (counter(MOST_COUNTED + 1, "G2"),)
    assert "than any counter gets" in site.post(N2, rows(baselines=too_high)).body["error"]
    # Each is believable; together they would be laid over more slots than a delivery may have.
    long = [own(slot_start=T0 - timedelta(days=390), slot_end=T0, run=f"r{n}") for n in range(9)]
    assert "send at most" in site.post(N2, rows(*long)).body["error"]
    assert site.post(N2, rows(at=T0.replace(year=2099))).status == 422
    assert site.journal.ledger.energy() == before
    assert site.post(N2, rows(own(), seq=50)).body == {"ok": True, "applied": True}


def test_many_changes_that_are_believable_alone_add_up_to_no_more_than_a_slot_holds(
    site: Served,
) -> None:
    """Else one node's millijoules would leave 64 bits, and every sum with them."""
    most = 100_000 * 1800 * 1000
    assert site.post(N2, rows(own(energy_mj=most), seq=1)).status == 200
    assert site.post(N2, rows(own(energy_mj=most), seq=2)).status == 422
    assert sum(each.energy_mj or 0 for each in site.journal.ledger.energy()) == most + 1000


def test_a_node_books_nothing_of_another_nodes_device_and_for_no_run_of_another_node(
    site: Served,
) -> None:
    """What is its own of the same delivery is told; whose the rest is stands on the screen."""
    stolen = delivery() | {"devices": {"G0": device(power_w=1.0), "G2": device()}, "missing": []}
    assert site.post(N2, stolen).status == 200
    (n2,) = (each for each in site.journal.nodes.all() if each.node == "n2")
    assert list(n2.devices) == ["G2"]
    shown = turn(site)
    assert shown.power.total_w == 800.0
    assert any("G0" in line and "n1" in line for line in shown.trouble), shown.trouble
    assert site.post(N2, rows(own(gpu_uuid="G0"))).status == 422
    assert site.post(N2, rows(baselines=(counter(5, "G0"),))).status == 422

    assert site.register(gpus=("G0", "", "", "")).status == 200
    charge = own(run=messages.RUN, line="run")
    assert site.post(N2, rows(charge)).status == 422
    assert site.post(READINGS, report(2)).status == 200
    # It was moved: its old node is retired, and the new one has it.
    assert site.post("/v1/agents/n1/retire", {}).status == 200
    assert site.post(N2, stolen).status == 200
    assert site.post(N2, rows(own(gpu_uuid="G0"), seq=9)).status == 200
    assert site.post(N2, rows(charge, seq=10)).status == 200


def test_a_node_never_has_more_devices_than_a_node_has(site: Served) -> None:
    """Not in one delivery, and not in many: one row of the journal is read for all."""
    for number in range(3):
        many = {f"G{number}-{each}": device() for each in range(500)}
        answer = site.post(N2, delivery() | {"devices": many})
        assert answer.status == (200 if number == 0 else 422), answer.body
    assert len(site.journal.nodes.all()[1].devices) == 500


def test_what_an_older_daemon_let_in_is_held_to_its_node(site: Served) -> None:
    """Facts that are none are not known; what cannot be read at all is a sentence."""
    applied = Applied(mode="enforce", epoch=1, gpus=(GpuControl(gpu_uuid="G3"),)).to_json()
    cases: tuple[Any, ...] = (
        {"G3": {"at": T0.isoformat(), "quality": [1], "power_w": 10**400, "component": {}}},
        {"G3": {"at": "yesterday", "power_w": 5.0}},
        {"G3": 5},
        [],
    )
    for stored in cases:
        values = {
            "devices": json.dumps(stored),
            "facts": json.dumps({"deliver_s": [1], "applied": applied, "refused": {"rows": "x"}}),
        }
        assert site.post(N2, delivery()).status == 200
        with site.journal.database.writing() as connection:
            connection.execute(update(NODES).where(NODES.c.node == "n2").values(**values))
        assert turn(site).power.total_w == 400.0, stored


def test_a_nodes_fault_in_the_samplers_turn_is_its_own(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last resort, behind the door: a bug that one node's facts wake stops no other's."""
    assert site.post(N2, delivery()).status == 200
    real = fleet._reading

    def reading(name: str, told: Any) -> Any:
        return real(name, told) if name != "G2" else 1 // 0

    monkeypatch.setattr(fleet, "_reading", reading)
    shown = turn(site)
    assert shown.power.total_w == 400.0
    assert any("n2" in line and "ZeroDivisionError" in line for line in shown.trouble)
