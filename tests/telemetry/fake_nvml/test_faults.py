"""Every fault that can be scripted shows through NVML as on a board, and ends when it is lifted."""

import ctypes
import os
import threading
import time
from collections.abc import Callable

import pytest

from tests.telemetry.fake_nvml.through import Nvml, code_of
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.fake_nvml import FakeGpu, FakeNvml


@pytest.fixture
def gpu(fake: FakeNvml) -> FakeGpu:
    """Give the first GPU."""
    return fake.gpu(0)


@pytest.fixture
def handle(nvml: Nvml) -> object:
    """Give NVML's handle of the first GPU."""
    return nvml.nvmlDeviceGetHandleByIndex(0)


def test_a_lost_gpu_fails_every_call_and_its_counter_covers_the_gap(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """The others go on; when it is back its counter has counted all along."""
    gpu.draw(500)
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    gpu.lose()
    for call in (
        nvml.nvmlDeviceGetTotalEnergyConsumption,
        nvml.nvmlDeviceGetName,
        nvml.nvmlDeviceResetGpuLockedClocks,
        lambda each: nvml.nvmlDeviceGetFieldValues(each, [191]),
    ):
        assert code_of(call, handle) == nvml.NVML_ERROR_GPU_IS_LOST
    assert code_of(nvml.nvmlDeviceGetHandleByIndex, 0) == nvml.NVML_ERROR_GPU_IS_LOST
    assert code_of(nvml.nvmlDeviceGetHandleByUUID, gpu.uuid) == nvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.nvmlDeviceGetCount() == 2
    nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetHandleByIndex(1))
    gap_j = gpu.truth().energy_j
    gpu.come_back()
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) >= max(before, int(1000 * gap_j))


def test_a_reset_counter_begins_at_zero_and_the_truth_goes_on(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """Nothing that was drawn before the reset is in the counter."""
    gpu.draw(700)
    while gpu.truth().counter_mj < 20:
        pass
    before = gpu.truth()
    gpu.reset_counter()
    drawn_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    after = gpu.truth()
    assert after.energy_pj > before.energy_pj
    assert drawn_mj <= (after.energy_pj - before.energy_pj) / 1e9 + 1


def test_a_driver_reload_resets_counters_limits_and_locks_of_all(
    nvml: Nvml, fake: FakeNvml
) -> None:
    """What a management controller capped stays capped."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(each) for each in range(2)]
    fake.gpu(1).out_of_band_cap(500)
    for each in handles:
        nvml.nvmlDeviceSetPowerManagementLimit(each, 300_000)
        nvml.nvmlDeviceSetGpuLockedClocks(each, 990, 990)
    fake.reload_driver()
    limits = [nvml.nvmlDeviceGetPowerManagementLimit(each) for each in handles]
    assert limits == [700_000, 700_000]
    assert [nvml.nvmlDeviceGetEnforcedPowerLimit(each) for each in handles] == [700_000, 500_000]
    assert {fake.gpu(each).truth().lock_mhz for each in range(2)} == {None}


def test_an_out_of_band_cap_shows_in_the_enforced_limit_only(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """Field 190 lies below 192, the power is cut, and no write of ours lifts it."""
    gpu.load(1.0)
    gpu.out_of_band_cap(500)
    current, requested = nvml.nvmlDeviceGetFieldValues(handle, [190, 192])
    assert (current.value.uiVal, requested.value.uiVal) == (500_000, 700_000)
    nvml.nvmlDeviceSetPowerManagementLimit(handle, 650_000)
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 500_000
    assert gpu.truth().power_w <= 500
    assert gpu.truth().capped
    gpu.out_of_band_cap(None)
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 650_000


def test_a_foreign_writer_changes_what_we_set(nvml: Nvml, gpu: FakeGpu, handle: object) -> None:
    """Its limit is read back; its lock shows in the clock under load, and nowhere else."""
    nvml.nvmlDeviceSetPowerManagementLimit(handle, 500_000)
    nvml.nvmlDeviceSetGpuLockedClocks(handle, 1500, 1500)
    gpu.load(1.0)
    gpu.foreign_limit(600)
    gpu.foreign_lock(1200)
    assert nvml.nvmlDeviceGetPowerManagementLimit(handle) == 600_000
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == 1200
    gpu.foreign_lock(None)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) > 1500


def test_a_foreign_writer_needs_no_right_of_ours(fake: FakeNvml, gpu: FakeGpu) -> None:
    """Setters that are forbidden to us do not stop it."""
    fake.permit(False)
    gpu.foreign_limit(300)
    gpu.foreign_lock(990)
    truth = gpu.truth()
    assert (truth.requested_limit_w, truth.lock_mhz) == (300, 990)


def test_a_frozen_sensor_repeats_itself_bit_for_bit(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """Power, counter and time stamp stand still, whatever is drawn; then the truth is back."""

    def bits() -> list[bytes]:
        return [bytes(each) for each in nvml.nvmlDeviceGetFieldValues(handle, [191, 186, 185])]

    gpu.load(0.5)
    gpu.freeze_sensor(True)
    frozen, counter = bits(), nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    gpu.draw(100)
    while gpu.truth().energy_j * 1000 < counter + 50:
        assert bits() == frozen
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) == counter
    gpu.freeze_sensor(False)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) >= counter + 49
    assert bits() != frozen


def test_a_gpu_without_a_counter_still_tells_its_power(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """Both ways to the counter are not supported; the rest is."""
    gpu.without_counter(True)
    gpu.draw(250)
    call = nvml.nvmlDeviceGetTotalEnergyConsumption
    assert code_of(call, handle) == nvml.NVML_ERROR_NOT_SUPPORTED
    codes = [each.nvmlReturn for each in nvml.nvmlDeviceGetFieldValues(handle, [83, 191, 186])]
    assert codes == [nvml.NVML_ERROR_NOT_SUPPORTED] * 2 + [nvml.NVML_SUCCESS]
    gpu.without_counter(False)
    call(handle)


def test_forced_reasons_stand_beside_those_that_follow_from_the_state(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """A thermal slowdown of an idle GPU shows both bits."""
    gpu.reasons(nvml.nvmlClocksEventReasonHwThermalSlowdown)
    both = nvml.nvmlClocksEventReasonHwThermalSlowdown | nvml.nvmlClocksEventReasonGpuIdle
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == both
    assert nvml.nvmlDeviceGetSupportedClocksEventReasons(handle) & both == both
    gpu.reasons(0)
    gpu.load(1.0)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0


def test_switches_of_the_gpu_show(nvml: Nvml, gpu: FakeGpu, handle: object) -> None:
    """Persistence mode, virtualization and power profiles, on and off again."""
    gpu.persistence(False)
    assert nvml.nvmlDeviceGetPersistenceMode(handle) == 0
    gpu.persistence(True)
    assert nvml.nvmlDeviceGetPersistenceMode(handle) == 1
    assert nvml.nvmlDeviceGetVirtualizationMode(handle) == nvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
    gpu.virtual(True)
    assert nvml.nvmlDeviceGetVirtualizationMode(handle) == nvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    asked = nvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    gpu.power_profile(True)
    nvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(handle, ctypes.byref(asked))
    assert any(asked.enforcedProfilesMask.mask)


def test_a_hanging_gpu_holds_its_caller_and_nobody_else(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """The other GPU answers meanwhile; lifting the hang lets the caller return at once."""
    answered = threading.Event()

    def ask() -> None:
        nvml.nvmlDeviceGetPowerUsage(handle)
        answered.set()

    gpu.hang(3600)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    for _ in range(100):
        nvml.nvmlDeviceGetPowerUsage(other)
    gpu.truth()
    assert not answered.is_set()
    gpu.hang(0)
    assert answered.wait(30)
    thread.join(30)


def test_a_slow_call_takes_as_long_as_it_was_told(nvml: Nvml, gpu: FakeGpu, handle: object) -> None:
    """And then answers as usual."""
    gpu.hang(0.05)
    start_s = time.monotonic()
    nvml.nvmlDeviceGetPowerUsage(handle)
    assert time.monotonic() - start_s >= 0.05


def test_a_sensor_that_is_changed_never_lets_the_counter_go_back(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """Nor does it jump: what was seen before the change is not seen again with new eyes."""
    gpu.draw(700)
    wait_j = gpu.truth().energy_j + 200
    while gpu.truth().energy_j < wait_j:
        pass
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    changes: tuple[Callable[[], None], ...] = (
        lambda: gpu.part_time(100, 25),
        lambda: gpu.part_time(20, 10),
        lambda: gpu.part_time(9, 9),
        lambda: gpu.update(100),
        lambda: gpu.update(0),
    )
    for change in changes:
        change()
        after = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        assert after >= before
        before = after
    # Without a window it saw everything; stretched windows add at most a period each.
    drawn_mj = gpu.truth().energy_pj / 1e9
    assert after <= drawn_mj + 700 * (100 + 20)


def test_listed_processes_go_when_they_end_unless_they_linger(
    nvml: Nvml, gpu: FakeGpu, handle: object
) -> None:
    """A zombie holds no context; one that lingers is what a broken driver shows."""
    pids = []
    for lingers in (False, True):
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        pids.append(pid)
        gpu.process(pid, lingers=lingers)
    assert [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == pids
    for pid in pids:
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == pids[1:]
    for pid in pids:
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("load", (1.01,)),
        ("load", (float("nan"),)),
        ("draw", (-1,)),
        ("part_time", (10, 11)),
        ("part_time", (10, 0)),
        ("update", (-1,)),
        ("hang", (4000,)),
        ("foreign_limit", (float("inf"),)),
        ("process", (0,)),
        ("reasons", (-1,)),
    ],
)
def test_nonsense_is_refused_with_its_range(
    gpu: FakeGpu, method: str, arguments: tuple[float, ...]
) -> None:
    """A number out of range never reaches the state file."""
    before = gpu.truth()
    with pytest.raises(InputInvalid, match="must"):
        getattr(gpu, method)(*arguments)
    assert gpu.truth().power_w == before.power_w


def test_a_gpu_that_is_not_there_is_not_found(fake: FakeNvml) -> None:
    """By index and by UUID."""
    for which in (2, -1, "GPU-0"):
        with pytest.raises(InputInvalid, match="no fake GPU"):
            fake.gpu(which)


def test_more_processes_than_fit_are_refused(gpu: FakeGpu) -> None:
    """A GPU lists twenty."""
    gpu.processes(range(5_000_001, 5_000_021))
    with pytest.raises(InputInvalid, match="20 processes"):
        gpu.process(6_000_000)
