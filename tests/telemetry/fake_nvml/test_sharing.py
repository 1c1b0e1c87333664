"""Many processes and one state file: nothing is lost, nothing is counted twice, nobody hangs."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.telemetry.fake_nvml.through import Nvml, code_of, run_on
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.telemetry.fake_nvml import FakeNvml

LOOKER = """
import pynvml, sys
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
last = 0
for _ in range(4000):
    now = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    assert now >= last, (now, last)
    last = now
while pynvml.nvmlDeviceGetPowerUsage(handle) or sys.stdin.readline() != "done\\n":
    pass
print(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
"""

WRITER = """
import sys
from pathlib import Path
from wattmesh.telemetry.fake_nvml import FakeNvml
gpu = FakeNvml.open(Path(sys.argv[1])).gpu(0)
print("writing", flush=True)
while True:
    for step in range(11):
        gpu.load(step / 10)
"""

OWNER = """
import sys, time
from pathlib import Path
from wattmesh.telemetry.fake_nvml import FakeNvml
with FakeNvml.open(Path(sys.argv[1])).gpu(0).busy(0.5):
    print("busy", flush=True)
    time.sleep(600)
"""

LISTER = """
import sys
from pathlib import Path
from wattmesh.telemetry.fake_nvml import FakeNvml
gpu = FakeNvml.open(Path(sys.argv[1])).gpu(0)
print("ready", flush=True)
sys.stdin.readline()
for pid in sys.argv[2:]:
    gpu.process(int(pid))
"""


def wait_for(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    """Return when a condition holds; fail when it does not in time."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, "it never became true"
        time.sleep(0.002)


def started(code: str, fake: FakeNvml, *more: str) -> subprocess.Popen[str]:
    """Start a process on the fake and wait for its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(fake.folder), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def killed(process: subprocess.Popen[str]) -> None:
    """Kill a process at once, and wait until it is gone."""
    process.kill()
    process.communicate(timeout=30)


def test_energy_of_a_constant_power_is_power_times_the_time_between_two_looks(
    fake: FakeNvml,
) -> None:
    """Bounded from both sides by the clock before and after each look."""
    gpu = fake.gpu(0)
    gpu.draw(500)

    def look() -> tuple[float, float, float]:
        before_s = time.monotonic()
        return before_s, gpu.truth().energy_j, time.monotonic()

    early, first_j, late = look()
    wait_for(lambda: gpu.truth().energy_j > first_j + 20)
    early_end, last_j, late_end = look()
    assert 500 * (early_end - late) <= last_j - first_j + 1e-6
    assert last_j - first_j <= 500 * (late_end - early) + 1e-6


def test_processes_that_look_at_once_see_one_counter_that_only_grows(fake: FakeNvml) -> None:
    """While the load changes under their eyes; in the end all read the same, and it is true."""
    gpu = fake.gpu(0)
    lookers = [
        subprocess.Popen(
            [sys.executable, "-c", LOOKER],
            env=fake.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for step in range(300):
        gpu.load(step % 11 / 10)
    gpu.draw(0)
    seen = [each.communicate("done\n", timeout=60) for each in lookers]
    assert [each.returncode for each in lookers] == [0, 0], seen
    counter_mj = gpu.truth().counter_mj
    assert [int(out) for out, _ in seen] == [counter_mj, counter_mj]
    assert counter_mj == gpu.truth().energy_pj // 10**9


def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new(fake: FakeNvml) -> None:
    """The file is whole, energy only grows, and the lock is free at once."""
    before_pj = 0
    for _ in range(4):
        writer = started(WRITER, fake)
        wait_for(lambda: fake.gpu(0).truth().utilization > 0)
        killed(writer)
        truth = FakeNvml.open(fake.folder).gpu(0).truth()
        assert truth.energy_pj > before_pj
        assert round(truth.utilization * 10) == pytest.approx(truth.utilization * 10)
        before_pj = truth.energy_pj
        fake.gpu(0).load(0)


def test_no_change_is_lost_between_processes_that_change_at_once(
    fake: FakeNvml, nvml: Nvml
) -> None:
    """Four processes list five processes each, on one GPU: all twenty are there."""
    pids = [str(4_000_000 + each) for each in range(20)]
    listers = [started(LISTER, fake, *pids[each::4]) for each in range(4)]
    for each in listers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in listers:
        each.communicate(timeout=60)
        assert each.returncode == 0
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    listed = {str(each.pid) for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    assert listed == set(pids)


def test_a_forked_child_shares_the_library_and_not_the_lock(fake: FakeNvml, nvml: Nvml) -> None:
    """Parent and child set limits in turn and at once; each write counts."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for watts in range(200, 700):
                nvml.nvmlDeviceSetPowerManagementLimit(handle, 1000 * watts)
            code = 0
        finally:
            os._exit(code)
    for mhz in range(210, 1980):
        nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    truth = fake.gpu(0).truth()
    assert (truth.requested_limit_w, truth.lock_mhz) == (699, 1979)


def test_a_stopped_holder_of_the_lock_stops_no_reader(fake: FakeNvml, nvml: Nvml) -> None:
    """Setters give up with a timeout and say why; when it is gone they work again."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    descriptor = os.open(fake.folder / "fake-nvml.state", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    nvml.nvmlDeviceGetPowerUsage(handle)
    call = nvml.nvmlDeviceSetPowerManagementLimit
    assert code_of(call, handle, 300_000) == nvml.NVML_ERROR_TIMEOUT
    with pytest.raises(SourceUnavailable, match="locked"):
        fake.gpu(0).load(1)
    os.close(descriptor)
    call(handle, 300_000)
    fake.gpu(0).load(1)


def test_a_busy_process_is_listed_and_its_death_frees_the_gpu(fake: FakeNvml, nvml: Nvml) -> None:
    """Killed, it leaves an idle GPU and a counter that never went back."""
    gpu, handle = fake.gpu(0), nvml.nvmlDeviceGetHandleByIndex(0)
    owner = started(OWNER, fake)
    assert gpu.truth().owner_pid == owner.pid
    (listed,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert listed.pid == owner.pid
    assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 50
    with pytest.raises(InputInvalid, match="busy"), gpu.busy():
        pytest.fail("two owners")
    last_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    killed(owner)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) >= last_mj
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    truth = gpu.truth()
    assert (truth.owner_pid, truth.power_w, truth.utilization) == (None, 95, 0)
    with gpu.busy():
        assert gpu.truth().owner_pid == os.getpid()
    assert gpu.truth().owner_pid is None


def test_time_after_an_owner_died_unseen_counts_as_idle(fake: FakeNvml) -> None:
    """Busy power is booked up to a tenth of a second after the last look, and no longer."""
    gpu = fake.gpu(0)
    owner = started(OWNER, fake)
    look_s, seen = time.monotonic(), gpu.truth()
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate(timeout=30)
    wait_for(lambda: time.monotonic() > look_s + 0.5)
    after, end_s = gpu.truth(), time.monotonic()
    busy_w, idle_w = seen.power_w, after.power_w
    assert idle_w == 95 < busy_w
    # The sign of life may have been renewed by the look itself, never later.
    highest_j = 0.1 * busy_w + (end_s - look_s) * idle_w + 0.01 * busy_w
    assert after.energy_j - seen.energy_j <= highest_j


def test_work_lasts_as_long_as_told_and_says_what_it_overran(fake: FakeNvml) -> None:
    """A body that is quick is stretched; one that is slow is not hidden; one that raises ends."""
    gpu = fake.gpu(0)
    with gpu.work(0.02) as short:
        assert gpu.truth().utilization == 1
    assert short.elapsed_s >= 0.02
    with gpu.work(0.001) as long:
        start_s = time.monotonic()
        wait_for(lambda: time.monotonic() > start_s + 0.005)
    assert long.overrun_s >= 0.004
    with pytest.raises(RuntimeError), gpu.work(600):
        raise RuntimeError
    assert gpu.truth().utilization == 0


def test_a_process_that_may_not_write_the_file_is_refused_like_one_without_the_right(
    fake: FakeNvml,
) -> None:
    """It reads all it likes; rights of the file are the rights on the GPUs."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    for part in (fake.folder, *fake.folder.parents):
        if part.stat().st_uid != 0 or part == Path("/tmp"):
            break
        part.chmod(part.stat().st_mode | 0o055)
    seen = run_on(
        fake,
        "import os, pynvml\n"
        "pynvml.nvmlInit()\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "print(pynvml.nvmlDeviceGetPowerUsage(handle))\n"
        "try: pynvml.nvmlDeviceSetPowerManagementLimit(handle, 300000)\n"
        "except pynvml.NVMLError_NoPermission as error: print(error.value)\n",
    )
    assert seen.split() == ["95000", "4"]
