"""Simulated GPUs: files that survive their users, and a counter that is exact."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.telemetry.readings import PowerSource, Quality
from wattmesh.telemetry.simulated import GpuModel, SimulatedGpu, SimulatedSource, create

MODEL = GpuModel(idle_power_w=50, base_w=100, linear_w=200, cubic_w=300, limit_w=1000)

HOLDER = """
import sys, time
from pathlib import Path
from wattmesh.telemetry.simulated import SimulatedGpu
with SimulatedGpu.open(Path(sys.argv[1]), 0).busy():
    print("busy", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with two devices."""
    create(tmp_path / "gpus", 2, MODEL)
    return tmp_path / "gpus"


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a process that keeps device 0 busy."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        yield process
        process.kill()


def test_a_source_reads_every_device_and_says_simulated(folder: Path) -> None:
    """Readings carry idle power, a counter, the clock and the word."""
    source: PowerSource = SimulatedSource(folder)
    readings = source.read()
    assert [each.gpu_uuid for each in readings] == list(source.gpu_uuids())
    assert len(readings) == 2
    for each in readings:
        assert (each.power_w, each.clock_mhz, each.power_limit_w) == (50, 1980, 1000)
        assert (each.source, each.quality) == ("simulated", Quality.SIMULATED)
        assert each.energy_mj is not None
        assert each.at.tzinfo is not None


def test_uuids_are_stable(folder: Path) -> None:
    """Opening the same folder again gives the uuids that `create` gave."""
    first = SimulatedSource(folder).gpu_uuids()
    assert first == SimulatedSource(folder).gpu_uuids()
    assert len(set(first)) == 2
    assert all(each.startswith("SIM-") for each in first)


def test_the_counter_is_the_integral_of_power(folder: Path) -> None:
    """Idle, busy, idle: the counter rises by power times the monotonic time of each part."""
    gpu = SimulatedGpu.open(folder, 0)
    before = gpu.state()
    with gpu.busy():
        started = gpu.state()
        working = gpu.state()
    after = gpu.state()
    assert (before.power_mw, working.power_mw, after.power_mw) == (50_000, 600_000, 50_000)
    elapsed_ns = working.updated_ns - started.updated_ns
    rise_pj = (working.energy_mj - started.energy_mj) * 10**9 + working.carry_pj - started.carry_pj
    assert rise_pj == 600_000 * elapsed_ns


def test_work_lasts_as_long_as_the_device_takes(folder: Path) -> None:
    """A quick body is stretched; a slow one is reported as an overrun, not hidden."""
    gpu = SimulatedGpu.open(folder, 0)
    with gpu.work(0.05) as quick:
        pass
    assert quick.elapsed_s >= 0.05
    assert quick.overrun_s == 0
    with gpu.work(0.001) as slow:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass
    assert slow.overrun_s >= 0.019
    assert slow.elapsed_s >= 0.02


def test_work_that_fails_leaves_the_device_idle(folder: Path) -> None:
    """An exception ends the work at once and reaches the caller."""
    gpu = SimulatedGpu.open(folder, 0)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="lost"), gpu.work(30):
        raise RuntimeError("lost")
    assert time.monotonic() - started < 10
    assert gpu.state().busy_pid == 0


def test_a_device_has_one_user(folder: Path, holder: subprocess.Popen[str]) -> None:
    """Two ranks on one device are a mistake that names the other process."""
    gpu = SimulatedGpu.open(folder, 0)
    with pytest.raises(InputInvalid, match=f"busy with process {holder.pid}"), gpu.busy():
        pass
    assert gpu.state().busy_pid == holder.pid


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_user_leaves_the_device_idle_since_its_last_sign_of_life(
    folder: Path, holder: subprocess.Popen[str], reaped: bool
) -> None:
    """After kill -9 (a zombie included) the time since the last sign of life counts as idle."""
    gpu = SimulatedGpu.open(folder, 0)
    last_alive = gpu.state()
    assert last_alive.power_mw == 600_000
    holder.send_signal(signal.SIGKILL)
    if reaped:
        holder.wait()
    else:
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    after = gpu.state()
    elapsed_ns = after.updated_ns - last_alive.updated_ns
    rise_pj = (after.energy_mj - last_alive.energy_mj) * 10**9
    rise_pj += after.carry_pj - last_alive.carry_pj
    assert rise_pj == 50_000 * elapsed_ns
    with gpu.busy():
        assert gpu.state().busy_pid == os.getpid()


def test_a_lower_clock_draws_less(folder: Path) -> None:
    """Power follows base + linear f + cubic f^3; a clock outside the range is refused."""
    gpu = SimulatedGpu.open(folder, 1)
    gpu.set_clock(990)
    with gpu.busy():
        assert gpu.state().power_mw == 100_000 + 100_000 + 37_500
    for wrong in (0, 1981):
        with pytest.raises(InputInvalid, match="clock"):
            gpu.set_clock(wrong)
    assert gpu.state().clock_mhz == 990


def test_the_board_limit_cuts_power() -> None:
    """No clock makes a device draw more than its board limit."""
    model = GpuModel(limit_w=300)
    assert model.active_power_w(1980) == 300
    assert model.active_power_w(500) < 300


def test_a_counter_reset_shows_as_a_smaller_counter(folder: Path) -> None:
    """The injected reset starts the counter again from zero."""
    gpu = SimulatedGpu.open(folder, 0)
    with gpu.work(0.02):
        pass
    before = gpu.state().energy_mj
    gpu.reset_counter()
    assert gpu.state().energy_mj < before


def test_a_damaged_device_is_left_out_and_the_rest_is_read(folder: Path) -> None:
    """A flipped byte costs that device only; when all are damaged the source says so."""
    source = SimulatedSource(folder)
    for index, remaining in ((0, 1), (1, 0)):
        path = folder / f"gpu-{index:03d}.bin"
        record = bytearray(path.read_bytes())
        record[150] ^= 1
        path.write_bytes(record)
        if remaining:
            assert len(source.read()) == remaining
    with pytest.raises(SourceUnavailable, match="no simulated GPU answers"):
        source.read()


@pytest.mark.parametrize("content", [b"", b"WMSIMGPU", b"x" * 192, b"WMSIMGPU" + b"\0" * 400])
def test_hostile_files_are_refused_in_words(folder: Path, content: bytes) -> None:
    """Truncated, foreign and overlong files raise InputInvalid with the path."""
    path = folder / "gpu-000.bin"
    path.write_bytes(content)
    with pytest.raises(InputInvalid, match=r"gpu-000\.bin"):
        SimulatedGpu.open(folder, 0)


def test_a_lock_held_by_a_stopped_process_does_not_hang_the_reader(folder: Path) -> None:
    """The stuck device is left out after half a second; the others are read."""
    source = SimulatedSource(folder)
    assert len(source.read()) == 2
    with (folder / "gpu-000.bin").open("r+b") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        assert [each.gpu_uuid for each in source.read()] == [SimulatedGpu.open(folder, 1).uuid]
    assert len(source.read()) == 2


def test_a_folder_that_appears_or_is_made_anew_is_followed(tmp_path: Path) -> None:
    """A source may be older than its devices, and sees devices that replace others."""
    source = SimulatedSource(tmp_path / "gpus")
    with pytest.raises(SourceUnavailable):
        source.read()
    create(tmp_path / "gpus", 1, MODEL)
    first = SimulatedGpu.open(tmp_path / "gpus", 0)
    with first.work(0.01):
        pass
    used = source.read()[0].energy_mj
    (tmp_path / "gpus" / "gpu-000.bin").unlink()
    create(tmp_path / "gpus", 1, MODEL)
    renewed = source.read()[0].energy_mj
    assert used is not None
    assert renewed is not None
    assert renewed < used
    assert not first.is_current()


def test_creating_twice_is_refused(folder: Path) -> None:
    """Devices keep their counters: `create` never replaces them."""
    with pytest.raises(InputInvalid, match="holds simulated GPUs already"):
        create(folder, 2)


def test_threads_of_one_process_lose_no_energy(folder: Path) -> None:
    """Concurrent readers of one device integrate each nanosecond exactly once."""
    gpu = SimulatedGpu.open(folder, 0)
    start = gpu.state()
    threads = [threading.Thread(target=lambda: [gpu.state() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end = gpu.state()
    rise_pj = (end.energy_mj - start.energy_mj) * 10**9 + end.carry_pj - start.carry_pj
    assert rise_pj == 50_000 * (end.updated_ns - start.updated_ns)
