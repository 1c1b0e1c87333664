"""What nvidia-ml-py gets to see of a fake GPU, and what it can do to it."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.telemetry.fake_nvml.through import Nvml, code_of, nvml_of, run_on
from wattmesh.telemetry.fake_nvml import BOARDS, Board, FakeNvml

FIELDS = (83, 185, 186, 187, 188, 189, 190, 191, 192)


def fields_of(nvml: Nvml, handle: object, *fields: object) -> dict[int, int]:
    """Give the values of fields that answer, whatever their type."""
    values = nvml.nvmlDeviceGetFieldValues(handle, list(fields))
    return {
        each.fieldId: each.value.uiVal if each.valueType == 1 else each.value.ullVal
        for each in values
        if each.nvmlReturn == nvml.NVML_SUCCESS
    }


def test_a_program_finds_it_by_the_name_of_the_real_library(fake: FakeNvml) -> None:
    """LD_LIBRARY_PATH is all a process needs; the driver's version says what it is."""
    seen = run_on(
        fake,
        "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlSystemGetDriverVersion(),"
        "pynvml.nvmlDeviceGetCount(),"
        "pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1)))",
    )
    assert seen.split() == ["595.71-fake", "2", fake.gpu(1).uuid]


def test_several_libraries_live_in_one_process(fake: FakeNvml, tmp_path: Path) -> None:
    """Each finds the GPUs beside itself, although they share name and content."""
    other = FakeNvml.create(tmp_path / "other", 5, Board.A100)
    with nvml_of(fake) as nvml:
        assert nvml.nvmlDeviceGetCount() == 2
    with nvml_of(other) as nvml:
        assert nvml.nvmlDeviceGetCount() == 5
        assert nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0)).startswith("NVIDIA A100")
    with nvml_of(fake) as nvml:
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0)) == fake.gpu(0).uuid


def test_calls_before_init_and_after_shutdown_say_uninitialized(nvml: Nvml) -> None:
    """A handle does not outlive the last shutdown; init counts its users."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    nvml.nvmlDeviceGetPowerUsage(handle)
    nvml.nvmlShutdown()
    assert code_of(nvml.nvmlDeviceGetPowerUsage, handle) == nvml.NVML_ERROR_UNINITIALIZED
    assert code_of(nvml.nvmlDeviceGetCount) == nvml.NVML_ERROR_UNINITIALIZED
    nvml.nvmlInit()


def test_a_gpu_is_found_by_index_uuid_and_bus(nvml: Nvml, fake: FakeNvml) -> None:
    """All three ways lead to the same device, and what is not there is told apart."""
    handle = nvml.nvmlDeviceGetHandleByUUID(fake.gpu(1).uuid)
    bus = nvml.nvmlDeviceGetPciInfo(handle).busId
    again = nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
    assert nvml.nvmlDeviceGetIndex(handle) == nvml.nvmlDeviceGetIndex(again) == 1
    assert nvml.nvmlDeviceGetMinorNumber(handle) == 1
    assert code_of(nvml.nvmlDeviceGetHandleByIndex, 2) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(nvml.nvmlDeviceGetHandleByUUID, "GPU-0") == nvml.NVML_ERROR_NOT_FOUND
    assert code_of(nvml.nvmlDeviceGetHandleByPciBusId, b"nowhere") == nvml.NVML_ERROR_NOT_FOUND


def test_a_pointer_that_is_no_handle_is_refused(nvml: Nvml) -> None:
    """A stray pointer gives an error code, not a crash."""
    stray = nvml.c_nvmlDevice_t()
    assert code_of(nvml.nvmlDeviceGetPowerUsage, stray) == nvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("kind", Board)
def test_each_board_shows_its_own_facts(tmp_path: Path, kind: Board) -> None:
    """Name, envelope, clocks and memory are those of the board."""
    board = BOARDS[kind]
    with nvml_of(FakeNvml.create(tmp_path, 1, kind)) as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetName(handle) == board.name
        assert nvml.nvmlDeviceGetArchitecture(handle) == board.architecture
        assert nvml.nvmlDeviceGetCudaComputeCapability(handle) == board.compute
        assert nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == 1000 * board.default_w
        assert nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [
            1000 * board.min_w,
            1000 * board.max_w,
        ]
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        assert memory.total == board.memory_gib << 30
        assert memory.total == memory.free + memory.used
        assert nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).total == memory.total
        memory_clocks = nvml.nvmlDeviceGetSupportedMemoryClocks(handle)
        assert memory_clocks == [board.memory_clock_mhz]
        clocks = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_clocks[0])
        assert (clocks[0], clocks == sorted(clocks, reverse=True)) == (board.clock_max_mhz, True)
        assert board.clock_min_mhz <= clocks[-1] < board.clock_min_mhz + board.clock_step_mhz
        assert nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) == board.clock_max_mhz


def test_only_boards_that_average_power_have_the_averaged_field(tmp_path: Path) -> None:
    """On an A100 field 185 is not supported, and power usage is that of the moment."""
    fake = FakeNvml.create(tmp_path, 1, Board.A100, update_ms=0)
    with nvml_of(fake) as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        fake.gpu(0).draw(250)
        assert nvml.nvmlDeviceGetPowerUsage(handle) == 250_000
        assert fields_of(nvml, handle, 185, 186) == {186: 250_000}


def test_every_field_answers_and_an_unknown_one_fails_alone(nvml: Nvml, fake: FakeNvml) -> None:
    """One call gives counter, powers and limits of one moment."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    fake.gpu(0).draw(300)
    values = nvml.nvmlDeviceGetFieldValues(handle, [*FIELDS, 4711, (191, 1)])
    *known, unknown, scoped = values
    assert [each.nvmlReturn for each in known] == [0] * len(FIELDS)
    assert unknown.nvmlReturn == scoped.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED
    seen = fields_of(nvml, handle, *FIELDS)
    assert {each: seen[each] for each in (186, 187, 188, 189, 190, 192)} == {
        186: 300_000,
        187: 200_000,
        188: 700_000,
        189: 700_000,
        190: 700_000,
        192: 700_000,
    }
    assert seen[83] == seen[191]
    assert 95_000 <= seen[185] <= 300_000
    assert {each.valueType for each in known if each.fieldId in (83, 191)} == {
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    }


def test_a_limit_is_set_enforced_and_read_back(nvml: Nvml, fake: FakeNvml) -> None:
    """Clock and power follow it at once; outside the constraints it is refused."""
    handle, gpu = nvml.nvmlDeviceGetHandleByIndex(0), fake.gpu(0)
    gpu.load(1.0)
    nvml.nvmlDeviceSetPowerManagementLimit(handle, 400_000)
    assert nvml.nvmlDeviceGetPowerManagementLimit(handle) == 400_000
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 400_000
    assert fields_of(nvml, handle, 186)[186] <= 400_000
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) < 1980
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    assert reasons == nvml.nvmlClocksEventReasonSwPowerCap
    for refused_mw in (199_999, 700_001, 0):
        call = nvml.nvmlDeviceSetPowerManagementLimit
        assert code_of(call, handle, refused_mw) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert gpu.truth().requested_limit_w == 400


def test_the_second_setter_of_the_binding_hides_a_refusal(nvml: Nvml, fake: FakeNvml) -> None:
    """It says success whatever happened: only reading back tells."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetPowerManagementLimit_v2(handle, nvml.NVML_POWER_SCOPE_GPU, 500_000)
    assert nvml.nvmlDeviceGetPowerManagementLimit(handle) == 500_000
    fake.permit(False)
    answer = nvml.nvmlDeviceSetPowerManagementLimit_v2(handle, nvml.NVML_POWER_SCOPE_GPU, 300_000)
    assert answer == nvml.NVML_SUCCESS
    assert nvml.nvmlDeviceGetPowerManagementLimit(handle) == 500_000


def test_a_locked_clock_holds_under_load_and_is_reset(nvml: Nvml, fake: FakeNvml) -> None:
    """A lock between two supported clocks is the one below."""
    handle, gpu = nvml.nvmlDeviceGetHandleByIndex(0), fake.gpu(0)
    nvml.nvmlDeviceSetGpuLockedClocks(handle, 1000, 1000)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == 345
    gpu.load(1.0)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == 990
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0
    assert gpu.truth().lock_mhz == 1000
    nvml.nvmlDeviceResetGpuLockedClocks(handle)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_GRAPHICS) == 1980
    assert gpu.truth().lock_mhz is None


def test_a_range_of_clocks_that_makes_no_sense_is_refused(nvml: Nvml) -> None:
    """Upside down, beyond the board, or a number mixed with a symbol."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    unlimited = nvml.NVML_CLOCK_LIMIT_ID_UNLIMITED
    for low, high in ((1500, 1000), (0, 1000), (1000, 1995), (1000, unlimited)):
        call = nvml.nvmlDeviceSetGpuLockedClocks
        assert code_of(call, handle, low, high) == nvml.NVML_ERROR_INVALID_ARGUMENT
    nvml.nvmlDeviceSetGpuLockedClocks(handle, nvml.NVML_CLOCK_LIMIT_ID_TDP, unlimited)


def test_memory_clocks_are_locked_and_reset(nvml: Nvml) -> None:
    """There is one memory clock, and no other can be asked for."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMemoryLockedClocks(handle, 2619, 2619)
    nvml.nvmlDeviceResetMemoryLockedClocks(handle)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) == 2619
    call = nvml.nvmlDeviceSetMemoryLockedClocks
    assert code_of(call, handle, 1, 1) == nvml.NVML_ERROR_INVALID_ARGUMENT


def test_without_the_right_no_setter_works_and_every_getter_does(
    nvml: Nvml, fake: FakeNvml
) -> None:
    """What is permitted changes for everybody at once."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    setters: tuple[Callable[[], object], ...] = (
        lambda: nvml.nvmlDeviceSetPowerManagementLimit(handle, 300_000),
        lambda: nvml.nvmlDeviceSetGpuLockedClocks(handle, 990, 990),
        lambda: nvml.nvmlDeviceResetGpuLockedClocks(handle),
        lambda: nvml.nvmlDeviceSetMemoryLockedClocks(handle, 2619, 2619),
        lambda: nvml.nvmlDeviceResetMemoryLockedClocks(handle),
        lambda: nvml.nvmlDeviceSetPersistenceMode(handle, 0),
    )
    before = fake.gpu(0).truth()
    fake.permit(False)
    assert {code_of(each) for each in setters} == {nvml.NVML_ERROR_NO_PERMISSION}
    after = fake.gpu(0).truth()
    assert (after.requested_limit_w, after.lock_mhz, after.persistence) == (
        before.requested_limit_w,
        before.lock_mhz,
        before.persistence,
    )
    fake.permit(True)
    for setter in setters:
        setter()
    assert nvml.nvmlDeviceGetPersistenceMode(handle) == 0


def test_temperature_and_utilization_follow_the_load(nvml: Nvml, fake: FakeNvml) -> None:
    """Both calls for the temperature agree."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    cold = nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)
    fake.gpu(0).load(0.8)
    warm = nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)
    assert warm == nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    assert 30 < cold < warm < 80
    assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 80


def test_processes_are_listed_with_memory_and_share(nvml: Nvml, fake: FakeNvml) -> None:
    """None at first; then those that were declared, in all calls that tell of processes."""
    handle, own = nvml.nvmlDeviceGetHandleByIndex(0), os.getpid()
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert code_of(nvml.nvmlDeviceGetProcessUtilization, handle, 0) == nvml.NVML_ERROR_NOT_FOUND
    fake.gpu(0).process(own, utilization=0.25, memory_bytes=7 << 30)
    (listed,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert (listed.pid, listed.usedGpuMemory) == (own, 7 << 30)
    (sample,) = nvml.nvmlDeviceGetProcessUtilization(handle, 0)
    assert (sample.pid, sample.smUtil) == (own, 25)
    seen = sample.timeStamp + 3600 * 10**6
    assert code_of(nvml.nvmlDeviceGetProcessUtilization, handle, seen) == nvml.NVML_ERROR_NOT_FOUND
    assert nvml.nvmlSystemGetProcessName(own) == Path("/proc/self/comm").read_text().strip()
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used >= 7 << 30
    fake.gpu(0).processes([4_000_001, 4_000_002])
    pids = [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    assert pids == [4_000_001, 4_000_002]


def test_a_divided_gpu_shows_instances_that_nobody_can_steer(nvml: Nvml, fake: FakeNvml) -> None:
    """Instances have names and a parent, and neither power nor setters of their own."""
    handle, gpu = nvml.nvmlDeviceGetHandleByIndex(0), fake.gpu(0)
    assert nvml.nvmlDeviceGetMigMode(handle) == [0, 0]
    call = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    assert code_of(call, handle, 0) == nvml.NVML_ERROR_NOT_FOUND
    gpu.mig(True)
    assert nvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    parts = [call(handle, each) for each in range(2)]
    uuids = [nvml.nvmlDeviceGetUUID(each) for each in parts]
    assert len({*uuids, gpu.uuid}) == 3
    assert all(each.startswith("MIG-") for each in uuids)
    assert code_of(call, handle, 2) == nvml.NVML_ERROR_NOT_FOUND
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[1])
    assert nvml.nvmlDeviceGetUUID(parent) == gpu.uuid
    found = nvml.nvmlDeviceGetHandleByUUID(uuids[0])
    assert nvml.nvmlDeviceIsMigDeviceHandle(found).value == 1
    assert nvml.nvmlDeviceIsMigDeviceHandle(handle).value == 0
    for refused in (nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceResetGpuLockedClocks):
        assert code_of(refused, parts[0]) == nvml.NVML_ERROR_NOT_SUPPORTED
    for refused in (
        nvml.nvmlDeviceGetUtilizationRates,
        lambda each: nvml.nvmlDeviceGetProcessUtilization(each, 0),
    ):
        assert code_of(refused, handle) == nvml.NVML_ERROR_NOT_SUPPORTED
    nvml.nvmlDeviceGetTotalEnergyConsumption(handle)


def test_power_profiles_exist_on_boards_that_know_them(nvml: Nvml) -> None:
    """An H100 does not know the call; a structure of another version is refused."""
    asked = nvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    call = nvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert code_of(call, handle, ctypes.byref(asked)) == nvml.NVML_ERROR_NOT_SUPPORTED
    asked.version = 7
    assert code_of(call, handle, ctypes.byref(asked)) == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_a_blackwell_board_says_which_power_profile_is_active(tmp_path: Path) -> None:
    """The mask of enforced profiles is empty until one is."""
    fake = FakeNvml.create(tmp_path, 1, Board.B200)
    with nvml_of(fake) as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        asked = nvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
        nvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(handle, ctypes.byref(asked))
        assert not any(asked.enforcedProfilesMask.mask)
        fake.gpu(0).power_profile(True)
        nvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(handle, ctypes.byref(asked))
        assert any(asked.enforcedProfilesMask.mask)
