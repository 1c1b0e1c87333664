"""Bursts: the mean power of a window, and a bound on its error that holds."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.world import T0
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.energy.burst import Burst, CountedReadings, around, figure
from wattmesh.telemetry.fake_nvml import Board, FakeNvml
from wattmesh.telemetry.readings import PowerReading, Quality
from wattmesh.telemetry.sources.nvml_source import NvmlSource


def reading(at_s: float, power_w: float | None, energy_mj: int | None) -> PowerReading:
    """Make a reading."""
    return PowerReading(
        gpu_uuid="G0",
        at=T0,
        monotonic_s=at_s,
        power_w=power_w,
        energy_mj=energy_mj,
        clock_mhz=None,
        power_limit_w=700.0,
        source="nvml",
        quality=Quality.MEASURED,
    )


def test_a_constant_power_is_found_between_two_looks() -> None:
    """The ends of a window need not be looks."""
    readings = [reading(each / 10, 300.0, 30_000 * each) for each in range(101)]
    found = figure(readings, 1.03, 9.57)
    assert found.energy_j == pytest.approx(300 * 8.54, abs=0.01)
    assert found.power_w == pytest.approx(300.0)
    assert found.looks == 85
    assert found.error_share is not None
    assert 0 < found.error_share < 0.05


@given(
    st.lists(st.integers(50, 700), min_size=40, max_size=80),
    st.integers(0, 9),
    st.integers(11, 2500),
)
def test_the_truth_lies_within_the_error_bound(
    powers: list[int], phase: int, window_10ms: int
) -> None:
    """Of a counter that moves every 100 ms, against exact integration in steps of 10 ms."""
    steps = [power for power in powers for _ in range(10)]  # one power per 100 ms
    truth_mj = [0]
    for power in steps:
        truth_mj.append(truth_mj[-1] + 10 * power)
    looks = [
        reading(
            t / 100, float(steps[min(t, len(steps) - 1)]), truth_mj[max(0, (t - phase) // 10 * 10)]
        )
        for t in range(0, len(truth_mj), 10)
    ]
    start, end = 13, min(13 + window_10ms, len(steps) - 15)
    found = figure(looks, start / 100, end / 100)
    assert found.energy_j is not None
    assert abs(found.energy_j - (truth_mj[end] - truth_mj[start]) / 1000) <= found.error_j + 1e-6


FAULTS = ("", "", "", "", "", "reset", "no counter", "no power", "stuck", "again", "estimated")


@given(
    st.lists(st.tuples(st.integers(0, 70_000), st.sampled_from(FAULTS)), min_size=2, max_size=90),
    st.lists(st.tuples(st.integers(-3, 95), st.integers(1, 95), st.booleans()), max_size=12),
)
def test_a_fold_gives_every_window_to_the_bit(
    rises: list[tuple[int, str]], windows: list[tuple[int, int, bool]]
) -> None:
    """Whatever happened to the counter, in whatever window: the figure of its readings alone."""
    made, counter_mj = [], 10**9
    for place, (rise_mj, fault) in enumerate(rises):
        counter_mj = rise_mj if fault == "reset" else counter_mj + (fault != "stuck") * rise_mj
        power_w = None if fault == "no power" else rise_mj / 100
        seen = reading(
            (place - (fault == "again")) / 10,
            power_w,
            None if fault == "no counter" else counter_mj,
        )
        worse = Quality.ESTIMATED if fault == "estimated" else Quality.MEASURED
        made.append(replace(seen, quality=worse))
    fold = CountedReadings(made[0])
    for each in made[1:]:
        fold.append(each)
    for begin, length, between in windows:
        start_s = begin / 10 + 0.037 * between
        end_s = start_s + length / 10
        mine = fold.figure(start_s, end_s, update_s=0.1)
        assert mine == figure(around(made, start_s, end_s), start_s, end_s)


def test_a_fold_that_sums_up_wrongly_is_seen() -> None:
    """The twin: its sums are what is told, not the readings once more."""
    made = [reading(each / 10, 300.0, 30_000 * each) for each in range(200)]
    fold = CountedReadings(made[0])
    for each in made[1:]:
        fold.append(each)
    assert fold.figure(1.03, 18.9, update_s=0.1) == figure(made, 1.03, 18.9)
    fold._energy_mj[189] += 1000
    assert fold.figure(1.03, 18.9, update_s=0.1) != figure(made, 1.03, 18.9)


def test_a_reset_in_the_window_costs_no_joule() -> None:
    """Power stands in for the interval of the reset, and the figure says estimated."""
    readings = [
        reading(each / 10, 300.0, 10**9 + 30_000 * each if each < 50 else 30_000 * (each - 49))
        for each in range(101)
    ]
    found = figure(readings, 1.0, 9.0)
    assert found.energy_j == pytest.approx(2400.0, abs=0.1)
    assert found.quality == Quality.ESTIMATED


def test_without_a_counter_power_is_integrated_with_a_wider_bound() -> None:
    """What power did between two looks is part of the error."""
    readings = [reading(each / 10, 300.0 + 100 * (each % 2), None) for each in range(101)]
    found = figure(readings, 1.0, 9.0)
    assert found.energy_j == pytest.approx(2800.0, abs=1)
    assert found.error_j >= 400.0
    assert found.quality == Quality.ESTIMATED


def test_a_window_that_was_not_seen_whole_has_no_energy() -> None:
    """Neither one that begins before the first look nor one with a hole."""
    readings = [reading(each / 10, 300.0, None) for each in range(50)]
    hole = [each for each in readings if not 2.0 <= each.monotonic_s <= 4.0]
    assert figure(readings, -1.0, 3.0).energy_j is None
    assert figure(readings, 1.0, 30.0).power_w is None
    assert figure(hole, 1.0, 4.5).energy_j is None
    assert figure(hole, 0.1, 1.9).energy_j is not None
    with pytest.raises(InputInvalid, match="0 readings"):
        figure([], 0.0, 1.0)


def test_a_simulated_device_stays_simulated() -> None:
    """Estimated beside it: neither word takes the other's place."""
    readings = [
        replace(reading(each / 10, 300.0, None), quality=Quality.SIMULATED) for each in range(20)
    ]
    assert figure(readings, 0.5, 1.5).quality == "estimated+simulated"


def test_a_burst_on_nvml_agrees_with_the_truth(tmp_path: Path) -> None:
    """Against the fake board's own joules, its counter moving every 100 ms as on real ones."""
    fake = FakeNvml.create(tmp_path / "gpus", gpus=2, board=Board.H100, update_ms=100)
    gpu = fake.gpu(0)
    gpu.draw(420.0)
    source = NvmlSource(fake.library)
    pause = threading.Event()
    with Burst(source, [gpu.uuid]) as looking:
        pause.wait(0.2)
        start_s, before_j = time.monotonic(), gpu.truth().energy_j
        pause.wait(1.5)
        end_s, after_j = time.monotonic(), gpu.truth().energy_j
        pause.wait(0.2)
    found = looking.figures(start_s, end_s)
    source.close()
    fake.close()
    assert list(found) == [gpu.uuid]
    mine = found[gpu.uuid]
    assert mine.energy_j is not None
    assert abs(mine.energy_j - (after_j - before_j)) <= mine.error_j
    assert mine.quality == Quality.SIMULATED


def test_a_source_that_fails_leaves_its_reason(tmp_path: Path) -> None:
    """A burst without a driver has no figures, and says why."""
    with Burst(NvmlSource(tmp_path / "none.so")) as looking:
        until_s = time.monotonic() + 10
        while not looking.trouble:
            assert time.monotonic() < until_s
            time.sleep(0.01)
    assert "none.so" in looking.trouble
    assert looking.figures(0.0, 1.0) == {}
