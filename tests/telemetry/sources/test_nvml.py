"""The door to NVML, against the fake library under the real nvidia-ml-py."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.fake_nvml import Board, FakeNvml
from wattmesh.telemetry.sources import nvml as door
from wattmesh.telemetry.sources import nvml_library
from wattmesh.telemetry.sources.nvml import (
    DeviceLost,
    DriverGone,
    NotPermitted,
    NotSupported,
    Nvml,
    NvmlControl,
    NvmlFailed,
)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    """Two H100 whose sensors are always up to date."""
    made = FakeNvml.create(tmp_path / "gpus", gpus=2, board=Board.H100, update_ms=0)
    yield made
    made.close()


@pytest.fixture
def nvml(fake: FakeNvml) -> Iterator[Nvml]:
    """A door to them."""
    with Nvml.open(fake.library) as opened:
        yield opened


def test_every_reading_is_what_is_true(fake: FakeNvml, nvml: Nvml) -> None:
    """Power, limits, clock, use and name are the GPU's own, in watts and megahertz."""
    gpu = fake.gpu(1)
    gpu.draw(350.5)
    truth = gpu.truth()
    assert nvml.uuids() == tuple(each.uuid for each in fake.gpus)
    assert nvml.is_fake
    assert "H100" in nvml.name(gpu.uuid)
    assert nvml.fields(gpu.uuid, [door.POWER_INSTANT]) == {door.POWER_INSTANT: 350_500}
    assert nvml.sm_clock_mhz(gpu.uuid) == truth.sm_clock_mhz
    limits = nvml.limits(gpu.uuid)
    assert (limits.default_w, limits.enforced_w) == (truth.default_limit_w, 700.0)
    assert limits.min_w < limits.max_w == 700.0
    fake.gpu(0).load(0.5)
    assert nvml.utilization(fake.gpu(0).uuid) == 0.5
    assert nvml.persistence(gpu.uuid)
    clocks = nvml.supported_clocks_mhz(gpu.uuid)
    assert clocks == tuple(sorted(clocks))
    assert clocks[-1] == truth.sm_clock_mhz


def test_both_energy_fields_and_the_call_count_what_was_drawn(fake: FakeNvml, nvml: Nvml) -> None:
    """Fields 191 and 83 and the call of its own lie between the truth before and after."""
    gpu = fake.gpu(0)
    gpu.draw(500.0)
    before = gpu.truth().energy_j
    told = nvml.fields(gpu.uuid, [door.ENERGY, door.TOTAL_ENERGY])
    counters = [*told.values(), nvml.energy_mj(gpu.uuid)]
    after = gpu.truth().energy_j
    assert len(told) == 2
    assert all(1000 * before - 1 <= each <= 1000 * after for each in counters)


def test_a_field_that_a_board_does_not_have_is_left_out(nvml: Nvml) -> None:
    """An unknown field costs nothing but itself."""
    told = nvml.fields(nvml.uuids()[0], [door.POWER_INSTANT, 9_999])
    assert set(told) == {door.POWER_INSTANT}


def test_a_cap_set_out_of_band_shows_beside_the_limit_that_was_asked_for(
    fake: FakeNvml, nvml: Nvml
) -> None:
    """Fields 190 and 192 differ under a BMC's cap, and both are told."""
    gpu = fake.gpu(0)
    gpu.out_of_band_cap(500.0)
    limits = nvml.limits(gpu.uuid)
    assert (limits.requested_w, limits.enforced_w) == (700.0, 500.0)


def test_setters_change_the_gpu_and_its_reading_back(fake: FakeNvml, nvml: Nvml) -> None:
    """A limit, a lock and a reset are what the GPU then has."""
    gpu, control = fake.gpu(0), NvmlControl(nvml)
    gpu.load(0.2)
    control.set_power_limit(gpu.uuid, 450.25)
    control.lock_sm_clock(gpu.uuid, 1200)
    assert nvml.limits(gpu.uuid).requested_w == 450.25
    assert (gpu.truth().lock_mhz, nvml.sm_clock_mhz(gpu.uuid)) == (1200, 1200)
    control.reset_sm_clock(gpu.uuid)
    assert gpu.truth().lock_mhz is None


def test_a_limit_out_of_range_is_refused_with_nvmls_code(fake: FakeNvml, nvml: Nvml) -> None:
    """A refusal is an error with the code, and changes nothing."""
    gpu = fake.gpu(0)
    with pytest.raises(NvmlFailed, match=r"1 W on .* \(code 2\)") as refused:
        NvmlControl(nvml).set_power_limit(gpu.uuid, 1.0)
    assert refused.value.code == 2
    assert gpu.truth().requested_limit_w == 700.0


def test_setting_without_the_right_to_says_who_may(fake: FakeNvml, nvml: Nvml) -> None:
    """Without permission every setter says so and names the way out; readings go on."""
    fake.permit(False)
    uuid, control = fake.gpu(0).uuid, NvmlControl(nvml)
    with pytest.raises(NotPermitted, match="needs root"):
        control.set_power_limit(uuid, 400)
    with pytest.raises(NotPermitted):
        control.lock_sm_clock(uuid, 1200)
    with pytest.raises(NotPermitted):
        control.reset_sm_clock(uuid)
    assert nvml.power_w(uuid) > 0


def test_a_lost_gpu_is_said_to_be_lost_and_others_answer(fake: FakeNvml, nvml: Nvml) -> None:
    """A GPU off the bus has its own error and is not listed; when it is back it answers again."""
    gpu, other = fake.gpu(0), fake.gpu(1)
    assert nvml.power_w(gpu.uuid) > 0
    gpu.lose()
    with pytest.raises(DeviceLost, match="Xid") as lost:
        nvml.power_w(gpu.uuid)
    assert gpu.uuid in str(lost.value)
    assert nvml.uuids() == (other.uuid,)
    gpu.come_back()
    assert nvml.power_w(gpu.uuid) > 0


def test_a_board_without_a_counter_says_so(fake: FakeNvml, nvml: Nvml) -> None:
    """Energy that is not supported is its own error, never a zero."""
    gpu = fake.gpu(0)
    gpu.without_counter(True)
    with pytest.raises(NotSupported):
        nvml.energy_mj(gpu.uuid)
    assert nvml.fields(gpu.uuid, [door.ENERGY, door.TOTAL_ENERGY]) == {}


def test_a_gpu_that_is_not_there_is_lost(nvml: Nvml) -> None:
    """A UUID that nobody knows is an error that names it."""
    with pytest.raises(DeviceLost, match="GPU-none"):
        nvml.power_w("GPU-none")


def test_a_board_in_mig_mode_is_one_shared_board(fake: FakeNvml, nvml: Nvml) -> None:
    """Instances are not listed beside their board; the board says why it is shared."""
    fake.gpu(0).mig(True)
    assert nvml.uuids() == tuple(each.uuid for each in fake.gpus)
    assert (nvml.shared(fake.gpu(0).uuid), nvml.shared(fake.gpu(1).uuid)) == ("mig", "")


def test_a_board_under_virtual_gpus_is_shared(fake: FakeNvml, nvml: Nvml) -> None:
    """A board that a hypervisor cuts up belongs to no run alone."""
    fake.gpu(0).virtual(True)
    assert nvml.shared(fake.gpu(0).uuid) == "vgpu"


def test_processes_and_power_profile_are_told(fake: FakeNvml, nvml: Nvml) -> None:
    """Compute processes come by pid; a workload power profile is active or not."""
    gpu = fake.gpu(0)
    gpu.process(os.getpid())
    gpu.power_profile(True)
    gpu.reasons(0x20)
    assert nvml.compute_pids(gpu.uuid) == (os.getpid(),)
    assert nvml.compute_pids(fake.gpu(1).uuid) == ()
    assert nvml.power_profile_active(gpu.uuid)
    assert not nvml.power_profile_active(fake.gpu(1).uuid)
    assert nvml.reasons(gpu.uuid) & 0x20


def test_no_library_and_no_driver_say_what_to_look_at(tmp_path: Path) -> None:
    """A file that is not there, and one that is no library, name themselves."""
    with pytest.raises(DriverGone, match=r"none\.so"):
        Nvml.open(tmp_path / "none.so")
    hollow = tmp_path / "hollow.so"
    hollow.write_bytes(b"no library")
    with pytest.raises(DriverGone, match=r"power\.library"):
        Nvml.open(hollow)


def test_a_second_library_in_one_process_is_refused_until_the_first_is_closed(
    fake: FakeNvml, tmp_path: Path
) -> None:
    """Two libraries at once would read each other's GPUs; one after the other is fine."""
    other = FakeNvml.create(tmp_path / "other", gpus=1, board=Board.H100)
    with Nvml.open(fake.library) as first, Nvml.open(fake.library) as again:
        assert first.uuids() == again.uuids()
        with pytest.raises(InputInvalid, match="start another process"):
            Nvml.open(other.library)
    with Nvml.open(other.library) as second:
        assert second.uuids() == (other.gpu(0).uuid,)
    other.close()


def test_closing_one_door_leaves_the_other_open(fake: FakeNvml) -> None:
    """The last door out shuts the library down, not the first; closing twice counts once."""
    with Nvml.open(fake.library) as stays:
        leaves = Nvml.open(fake.library)
        leaves.close()
        leaves.close()
        assert len(stays.uuids()) == 2


def test_initialising_again_gives_every_door_fresh_handles(fake: FakeNvml, nvml: Nvml) -> None:
    """After one door has initialised NVML again the others read on."""
    uuid = fake.gpu(0).uuid
    with Nvml.open(fake.library) as other:
        assert other.power_w(uuid) == nvml.power_w(uuid)
        nvml.reopen()
        assert other.power_w(uuid) == nvml.power_w(uuid)


def test_nvml_is_not_shut_down_under_a_call_that_hangs(fake: FakeNvml, nvml: Nvml) -> None:
    """While a call hangs nothing is initialised again, and other GPUs are read on."""
    uuid, other = fake.gpu(0).uuid, fake.gpu(1).uuid
    nvml.uuids()
    fake.gpu(0).hang(30)
    with ThreadPoolExecutor(1) as beside:
        hanging = beside.submit(nvml.power_w, uuid)
        _wait_for_a_call()
        with pytest.raises(NvmlFailed, match="hung"):
            nvml.reopen()
        assert nvml.power_w(other) > 0
        fake.gpu(0).hang(0)
        assert hanging.result(10) > 0
    nvml.reopen()
    assert nvml.power_w(uuid) > 0


def _wait_for_a_call() -> None:
    """Wait until some call is under way."""
    until_s = time.monotonic() + 5
    while not nvml_library._held.calls:
        assert time.monotonic() < until_s
        time.sleep(0.001)
