"""From a faulty driver to the ledger: NVML, sampler and book together, against the board's truth.

Whatever happens, what is booked of a GPU is what its counter moved, to the millijoule, or is said
to be unknown.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from tests.telemetry.sampler.test_sampler import GRID
from tests.telemetry.world import T0, MemoryBook
from wattmesh.telemetry.energy.sampler import Sample, Sampler
from wattmesh.telemetry.fake_nvml import Board, FakeGpu, FakeNvml
from wattmesh.telemetry.readings import PowerReading
from wattmesh.telemetry.sources import nvml_library
from wattmesh.telemetry.sources.nvml_source import NvmlSource


class Node:
    """Two GPUs, the first at 400 W, with a sampler that is started anew after each kill."""

    def __init__(self, folder: Path) -> None:
        """Take and book a first reading."""
        self.fake = FakeNvml.create(folder / "gpus", gpus=2, board=Board.H100, update_ms=0)
        self.gpu, self.other = self.fake.gpu(0), self.fake.gpu(1)
        self.gpu.draw(400.0)
        self.book = MemoryBook()
        self.newest: dict[str, PowerReading] = {}
        self.start()
        self.step()
        self.sampler.flush()
        self.first = dict(self.newest)

    def start(self) -> None:
        """Start source and sampler; what they remembered before is gone."""
        self.source = NvmlSource(self.fake.library, deadline_s=1.0)
        self.source._patience.wait_s = 0.0
        self.sampler = Sampler(
            self.source, self.book, GRID, boot_id="boot", hold_s=0.05, deadline_s=10.0
        )

    def kill(self) -> None:
        """Let the process die with all that was not booked."""
        self.sampler.close()
        self.start()

    def step(self) -> Sample:
        """Sample now."""
        sample = self.sampler.step(T0, time.monotonic(), {})
        self.newest |= {each.gpu_uuid: each for each in sample.readings}
        return sample

    def steps(self, seconds: float) -> None:
        """Sample for so long."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.step()
            time.sleep(0.01)

    def unseen(self, joules: float) -> None:
        """Let the first GPU draw so much while nobody looks."""
        until_j = self.gpu.truth().energy_j + joules
        deadline_s = time.monotonic() + 20
        while self.gpu.truth().energy_j < until_j:
            assert time.monotonic() < deadline_s
            time.sleep(0.005)

    def booked_mj(self, gpu: FakeGpu) -> int:
        """Give what is booked of a GPU."""
        self.sampler.flush()
        rows = [row for row in self.book.rows.values() if row.gpu_uuid == gpu.uuid]
        return sum(row.energy_mj or 0 for row in rows)

    def unobserved_ms(self, gpu: FakeGpu) -> int:
        """Give what is booked as unobserved."""
        rows = [row for row in self.book.rows.values() if row.gpu_uuid == gpu.uuid]
        return sum(row.unobserved_ms for row in rows)

    def moved_mj(self, gpu: FakeGpu) -> int:
        """Give what a GPU's counter moved from the first reading to the newest."""
        first, newest = self.first[gpu.uuid], self.newest[gpu.uuid]
        return (newest.energy_mj or 0) - (first.energy_mj or 0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of the test's own."""
    made = Node(tmp_path)
    yield made
    for gpu in made.fake.gpus:
        gpu.hang(0)
    made.sampler.close()
    # A library that is still in use, on a busy machine, would be in the way of the next test's.
    wait_for(lambda: not nvml_library._held.users, "the library to be let go", 60.0)
    made.fake.close()


def test_a_gpu_that_is_lost_and_comes_back_has_every_joule(node: Node) -> None:
    """While it is away it is dark; its counter ran on, and takes the dark time back."""
    node.steps(0.1)
    node.gpu.lose()
    node.steps(0.3)
    assert node.step().missing == (node.gpu.uuid,)
    node.booked_mj(node.gpu)
    assert node.unobserved_ms(node.gpu) > 0
    node.gpu.come_back()
    node.steps(0.1)
    assert node.booked_mj(node.gpu) == node.moved_mj(node.gpu)
    assert node.unobserved_ms(node.gpu) == 0
    assert node.booked_mj(node.other) == node.moved_mj(node.other)


def test_a_driver_that_hangs_on_one_gpu_costs_no_joule_of_any(node: Node) -> None:
    """The other is read on all the time; the hanging one is settled by its counter."""
    node.steps(0.1)
    node.gpu.hang(60)
    for _ in range(20):
        assert node.other.uuid not in node.step().missing
        time.sleep(0.01)
    node.gpu.hang(0)
    until_s = time.monotonic() + 10
    while node.gpu.uuid in node.step().missing:
        assert time.monotonic() < until_s
    node.step()
    for gpu in node.fake.gpus:
        assert node.booked_mj(gpu) == node.moved_mj(gpu)
        assert node.unobserved_ms(gpu) == 0


def test_a_killed_sampler_books_its_outage_from_the_hardware(node: Node) -> None:
    """What was not booked, and what was drawn while nobody ran, is in the counter."""
    node.steps(0.1)
    node.kill()
    node.unseen(80)
    node.steps(0.1)
    for gpu in node.fake.gpus:
        assert node.booked_mj(gpu) == node.moved_mj(gpu)
    assert {each.source for each in node.book.counters.values()} == {"nvml"}


def test_a_driver_reload_while_we_look_costs_no_more_than_a_guess_of_one_step(node: Node) -> None:
    """The stretch of the reset is booked by its power, once; nothing is negative."""
    node.steps(0.2)
    node.gpu.draw(20.0)  # its counter must not pass the old value before we look
    before_mj = node.newest[node.gpu.uuid].energy_mj or 0
    booked_mj = node.booked_mj(node.gpu)
    node.fake.reload_driver()
    notes = node.step().notes
    guessed_mj = node.booked_mj(node.gpu) - booked_mj
    assert (node.gpu.uuid, "counter reset") in notes
    assert before_mj > (node.newest[node.gpu.uuid].energy_mj or 0)
    assert guessed_mj >= 0
    node.first[node.gpu.uuid] = node.newest[node.gpu.uuid]
    booked_mj += guessed_mj
    node.steps(0.1)
    assert node.booked_mj(node.gpu) == booked_mj + node.moved_mj(node.gpu)


def test_a_reset_during_an_outage_is_unknown_and_bounded(node: Node) -> None:
    """Nobody knows what was drawn before the reset: the time is unobserved, with its bound."""
    node.steps(0.3)
    booked_mj = node.booked_mj(node.gpu)
    node.sampler.close()
    node.unseen(40)
    node.fake.reload_driver()
    node.gpu.draw(20.0)  # so that the counter cannot pass its old value however long we take
    node.unseen(2)
    node.start()
    node.steps(0.05)
    assert node.booked_mj(node.gpu) >= booked_mj
    away_ms = node.unobserved_ms(node.gpu)
    assert away_ms >= 200
    truth_mj = node.gpu.truth().energy_pj // 10**9
    upper_mj = sum(row.upper_mj for row in node.book.rows.values())
    assert upper_mj >= 700 * away_ms
    assert node.booked_mj(node.gpu) <= truth_mj


def test_a_frozen_sensor_is_bridged_by_power_and_settled_when_it_moves(node: Node) -> None:
    """The counter that stood still does not make its time free."""
    node.steps(0.1)
    node.gpu.freeze_sensor(True)
    node.steps(0.5)
    frozen_mj = node.moved_mj(node.gpu)
    assert node.booked_mj(node.gpu) > frozen_mj
    node.gpu.freeze_sensor(False)
    until_s = time.monotonic() + 60
    while node.booked_mj(node.gpu) != node.moved_mj(node.gpu):
        assert time.monotonic() < until_s
        # On a busy machine more was bridged than drawn: the counter has to move to take that back,
        # and to stand still while it is looked at.
        node.gpu.draw(700.0)
        node.unseen(2.0)
        node.gpu.draw(0.0)
        node.steps(0.05)


def test_a_cap_that_is_set_meanwhile_makes_no_counter_implausible(node: Node) -> None:
    """A lower limit after an outage does not deny the joules before it."""
    node.gpu.draw(690.0)
    node.steps(0.05)
    node.sampler.flush()
    node.sampler.close()
    node.unseen(350)
    node.gpu.foreign_limit(200.0)
    node.start()
    node.steps(0.05)
    assert node.booked_mj(node.gpu) == node.moved_mj(node.gpu)


def test_a_sample_says_why_a_gpu_is_not_read(node: Node) -> None:
    """The reason comes with the GPU's name, and goes when it answers."""
    node.gpu.lose()
    ((who, why),) = node.step().troubles
    assert who == node.gpu.uuid
    assert "GPU is lost" in why
    node.gpu.come_back()
    assert node.step().troubles == ()
