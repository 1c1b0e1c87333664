"""What was ever booked of a device: the counters of its metrics, across kills and outages."""

from collections.abc import Sequence
from dataclasses import replace

from tests.telemetry.sampler.test_sampler import RUN, Bench
from tests.telemetry.world import World
from wattmesh.telemetry.energy.attribution import DISPUTED
from wattmesh.telemetry.energy.ledger import DeviceTotal
from wattmesh.telemetry.readings import Component, PowerReading


def total(bench: Bench) -> DeviceTotal:
    """Give the only device's."""
    return bench.sampler.totals()["G0"]


def test_totals_are_what_was_booked_and_outlive_the_process() -> None:
    """Killed after a flush: the next sampler goes on from there and adds the outage."""
    bench = Bench()
    bench.steps(10)
    bench.sampler.flush()
    assert total(bench).booked_mj == bench.book.energy_mj
    bench.steps(3)  # lost in memory
    bench.start()
    bench.step(30)
    bench.sampler.flush()
    assert total(bench).booked_mj == bench.book.energy_mj
    assert total(bench).booked_mj == bench.world.gpu.counter_mj - 100_000


def test_dark_time_that_a_counter_covers_is_in_both_totals() -> None:
    """Neither falls: what is still dark is the difference."""
    bench = Bench()
    bench.steps(3)
    bench.world.gpu.answers = False
    bench.world.gpus["G1"] = type(bench.world.gpu)("G1")  # somebody still answers
    bench.steps(10)
    dark = total(bench)
    assert dark.unobserved_ms > 5_000
    assert dark.recovered_ms == 0
    bench.world.gpu.answers = True
    bench.step()
    bench.sampler.flush()
    after = total(bench)
    assert after.recovered_ms == after.unobserved_ms == dark.unobserved_ms
    assert bench.book.unobserved_ms == 0


def test_a_nodes_meter_is_shown_and_not_booked() -> None:
    """It reads its parts once more; what it reads beyond them is a metric, no ledger row."""
    bench = Bench(WithMeter("G0"))
    bench.steps(10)
    bench.sampler.flush()
    assert {row.gpu_uuid for row in bench.book.rows.values()} == {"G0"}
    assert set(bench.sampler.totals()) == {"G0"}
    assert {each.gpu_uuid for each in bench.step().readings} == {"G0", "node:n1:psu"}


class WithMeter(World):
    """A machine whose power supply tells what it gives."""

    def read(self) -> Sequence[PowerReading]:
        """Read the devices, and the supply."""
        readings = super().read()
        supply = replace(readings[0], gpu_uuid="node:n1:psu", component=Component.NODE)
        return [*readings, supply]


def test_a_step_tells_which_counters_were_not_believed() -> None:
    """A reset is noted once, in the step that saw it."""
    bench = Bench()
    bench.steps(3)
    bench.world.gpu.reset()
    assert bench.step().notes == (("G0", "counter reset"),)
    assert bench.step().notes == ()


def test_a_slot_that_changes_its_line_keeps_what_was_drawn_before() -> None:
    """Idle for 10 s, then disputed for 5 s: two rows, and no joule moves between them."""
    bench = Bench()
    bench.steps(11)
    bench.claims = {"G0": DISPUTED}
    bench.step()  # until now it was idle
    bench.sampler.flush()
    idle_mj = {row.line: row.energy_mj for row in bench.book.rows.values()}["idle"]
    bench.steps(5)
    bench.sampler.flush()
    by_line = {row.line: row.energy_mj for row in bench.book.rows.values()}
    assert by_line == {"idle": idle_mj, "unattributed": 500_000}
    assert RUN.line not in by_line
