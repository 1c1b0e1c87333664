"""GPUs through NVML: read within the deadline whatever the driver does, lost ones found again."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.world import T0
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.fake_nvml import Board, FakeNvml
from wattmesh.telemetry.readings import PowerReading, Quality
from wattmesh.telemetry.sources import gpu_threads, nvml_library
from wattmesh.telemetry.sources.nvml import Nvml
from wattmesh.telemetry.sources.nvml_device import NvmlDevice
from wattmesh.telemetry.sources.nvml_source import NvmlSource
from wattmesh.telemetry.sources.stale import STALE_S, SensorWatch


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    """Four H100 whose sensors are always up to date."""
    made = FakeNvml.create(tmp_path / "gpus", gpus=4, board=Board.H100, update_ms=0)
    yield made
    made.close()


@pytest.fixture
def source(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlSource]:
    """A source that looks for lost GPUs at every reading."""
    monkeypatch.setattr(gpu_threads, "RETRY_S", 0.0)
    made = NvmlSource(fake.library, deadline_s=1.5)
    made._patience.wait_s = 0.0
    yield made
    for gpu in fake.gpus:
        gpu.hang(0)
    made.close()
    until(lambda: not nvml_library._held.users)


def by_uuid(source: NvmlSource) -> dict[str, PowerReading]:
    """Read once."""
    return {each.gpu_uuid: each for each in source.read()}


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    until_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until_s, "not within 10 s"
        time.sleep(0.01)


def test_every_gpu_is_read_with_its_counter_and_says_simulated(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """Energy lies between the truth before and after; power, limits and clock are the truth."""
    for index, gpu in enumerate(fake.gpus):
        gpu.draw(200.0 + index)
    before = [gpu.truth() for gpu in fake.gpus]
    readings = by_uuid(source)
    after = [gpu.truth() for gpu in fake.gpus]
    for low, high in zip(before, after, strict=True):
        reading = readings[low.uuid]
        assert reading.energy_mj is not None
        assert low.counter_mj <= reading.energy_mj <= high.counter_mj
        assert (reading.power_w, reading.power_limit_w) == (low.power_w, 700.0)
        assert (reading.requested_limit_w, reading.clock_mhz) == (700.0, low.sm_clock_mhz)
        assert (reading.source, reading.quality) == ("nvml", Quality.SIMULATED)
        assert reading.temperature_c is not None


def test_a_hanging_gpu_costs_its_own_readings_and_nothing_else(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """While one GPU's driver call hangs the others are read, reading after reading."""
    assert len(source.read()) == 4
    fake.gpu(2).hang(60)
    for _ in range(3):
        assert set(by_uuid(source)) == {gpu.uuid for gpu in fake.gpus if gpu.index != 2}
    assert list(source.troubles) == [fake.gpu(2).uuid]
    assert "driver" in source.troubles[fake.gpu(2).uuid]
    fake.gpu(2).hang(0)
    until(lambda: len(source.read()) == 4)
    assert not source.troubles


def test_when_every_gpu_hangs_it_says_so(fake: FakeNvml, source: NvmlSource) -> None:
    """A driver that hangs whole ends in one sentence, not in a wait."""
    source.read()
    for gpu in fake.gpus:
        gpu.hang(60)
    with pytest.raises(SourceUnavailable, match="none of 4 GPUs answers"):
        source.read()
    with pytest.raises(SourceUnavailable, match="has not answered"):
        source.read()


def test_a_source_that_is_closed_while_a_call_hangs_lets_the_library_go_after_it(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """Not before, for shutting down under a call would hang; and then another may be read."""
    source.read()
    fake.gpu(0).hang(60)
    source.read()
    source.close()
    assert nvml_library._held.users == 1
    fake.gpu(0).hang(0)
    until(lambda: not nvml_library._held.users)


def test_a_lost_gpu_is_left_out_and_read_again_when_it_is_back(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """Its counter has run on meanwhile, so that the gap can be booked."""
    gpu = fake.gpu(1)
    first = by_uuid(source)[gpu.uuid]
    gpu.lose()
    assert gpu.uuid not in by_uuid(source)
    assert "lost" in source.troubles[gpu.uuid]
    gpu.come_back()
    back = by_uuid(source)[gpu.uuid]
    assert (back.energy_mj or 0) > (first.energy_mj or 0)
    assert not source.troubles


def test_a_gpu_that_was_lost_when_we_began_is_found_when_it_comes(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """NVML is initialised again as long as something is amiss."""
    fake.gpu(0).lose()
    fake.gpu(3).lose()
    assert len(source.read()) == 2
    fake.gpu(3).come_back()
    fake.gpu(1).lose()  # what makes it look again
    until(lambda: fake.gpu(3).uuid in by_uuid(source))


def test_a_driver_that_comes_later_is_found(fake: FakeNvml, tmp_path: Path) -> None:
    """Without a library every reading says why; once it is there, GPUs are read."""
    late = tmp_path / "late.so"
    source = NvmlSource(late)
    source._patience.wait_s = 0.0
    with pytest.raises(SourceUnavailable, match=r"late\.so"):
        source.read()
    assert source.gpu_uuids() == []
    late.symlink_to(fake.library)
    assert len(source.read()) == 4
    source.close()


def test_a_driver_reload_shows_as_a_counter_that_went_back(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """The source hides nothing: the ledger's rules deal with it."""
    gpu = fake.gpu(0)
    gpu.draw(600.0)
    until(lambda: (by_uuid(source)[gpu.uuid].energy_mj or 0) > 50_000)
    gpu.draw(0.0)
    fake.reload_driver()
    assert by_uuid(source)[gpu.uuid].energy_mj == 0


def test_a_board_without_a_counter_is_known_by_its_power(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """It says so in its source, and its energy is unknown, not zero."""
    gpu = fake.gpu(0)
    gpu.without_counter(True)
    gpu.draw(321.0)
    reading = by_uuid(source)[gpu.uuid]
    assert (reading.source, reading.energy_mj, reading.power_w) == ("nvml-power", None, 321.0)


def test_a_counter_that_falls_silent_keeps_its_name(fake: FakeNvml, source: NvmlSource) -> None:
    """Once field 191 has counted, no other counter takes its place."""
    gpu = fake.gpu(0)
    assert by_uuid(source)[gpu.uuid].source == "nvml"
    gpu.without_counter(True)
    reading = by_uuid(source)[gpu.uuid]
    assert (reading.source, reading.energy_mj) == ("nvml", None)
    gpu.without_counter(False)
    assert by_uuid(source)[gpu.uuid].energy_mj is not None


def test_a_board_in_mig_mode_is_read_once_as_shared(fake: FakeNvml, source: NvmlSource) -> None:
    """Its instances are not read beside it, so that nothing is summed twice."""
    fake.gpu(0).mig(True)
    readings = source.read()
    assert len(readings) == 4
    assert [each.shared for each in readings] == ["mig", "", "", ""]


def test_a_sensor_that_has_stopped_tells_nothing(fake: FakeNvml) -> None:
    """The same bits for too long are no power and no counter, and the reading says why."""
    gpu = fake.gpu(0)
    gpu.draw(400.0)
    gpu.freeze_sensor(True)
    with Nvml.open(fake.library) as nvml:
        device = NvmlDevice(nvml=nvml, uuid=gpu.uuid, quality=Quality.SIMULATED)
        assert device.read().tells
        device.watch = replace(device.watch, since_s=device.watch.since_s - STALE_S)
        frozen = device.read()
        assert not frozen.tells
        assert "has stopped" in frozen.trouble
        assert frozen.clock_mhz is not None
        gpu.freeze_sensor(False)
        assert device.read().tells


def test_who_computes_where_comes_under_the_same_deadlines(
    fake: FakeNvml, source: NvmlSource
) -> None:
    """Processes are told per GPU; one that hangs is left out, and is not called idle."""
    fake.gpu(0).process(os.getpid())
    assert source.compute_pids() == {
        gpu.uuid: ((os.getpid(),) if gpu.index == 0 else ()) for gpu in fake.gpus
    }
    fake.gpu(3).hang(60)
    assert fake.gpu(3).uuid not in source.compute_pids()


def test_threads_that_ask_at_once_take_turns(source: NvmlSource) -> None:
    """Readings and processes asked for by many threads are all whole."""
    with ThreadPoolExecutor(4) as threads:
        pids = [threads.submit(source.compute_pids) for _ in range(20)]
        readings = [threads.submit(source.read) for _ in range(20)]
        assert all(len(each.result(30)) == 4 for each in pids)
        assert all(len(each.result(30)) == 4 for each in readings)


STEADY = PowerReading(
    gpu_uuid="G0",
    at=T0,
    monotonic_s=0.0,
    power_w=300.0,
    energy_mj=7,
    clock_mhz=None,
    power_limit_w=None,
    source="nvml",
    quality=Quality.MEASURED,
)


def watched(*readings: PowerReading) -> list[bool]:
    """Give for each reading whether it still tells anything, seen a second after the other."""
    watch, told = SensorWatch(), []
    for second, reading in enumerate(readings):
        watch, shown = watch.after(replace(reading, monotonic_s=float(second)))
        told.append(shown.tells)
    return told


def test_the_same_bits_are_believed_for_five_seconds() -> None:
    """After that they are not, until anything moves."""
    moved = replace(STEADY, energy_mj=8)
    assert watched(*[STEADY] * 8, moved) == [True] * 6 + [False] * 2 + [True]


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=30))
def test_a_constant_power_is_no_stopped_sensor(steps: list[int]) -> None:
    """As long as the counter moves, or there is none, a power may be constant for ever."""
    sums = [sum(steps[:count]) for count in range(len(steps))]
    assert all(watched(*(replace(STEADY, energy_mj=each) for each in sums)))
    assert all(watched(*[replace(STEADY, energy_mj=None)] * 30))
