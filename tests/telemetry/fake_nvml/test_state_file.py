"""A state file that is missing, cut, flipped or forged: a clear word, never a crash or a hang."""

import ctypes
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.fake_nvml.through import run_on
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.fake_nvml import BOARDS, Board, FakeNvml
from wattmesh.telemetry.fake_nvml.native import control_library, expected_layout

HEADER_BYTES, RECORD_BYTES, STATE = 4096, 2048, "fake-nvml.state"

EVERYTHING = """
import os, pynvml, sys
from pathlib import Path

def calls():
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for call in (
        pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetTotalEnergyConsumption, pynvml.nvmlDeviceGetPciInfo,
        lambda each: pynvml.nvmlDeviceGetFieldValues(each, [191, 186, 185, 190, 192, 74]),
        lambda each: pynvml.nvmlDeviceGetTemperature(each, 0), pynvml.nvmlDeviceGetMemoryInfo,
        lambda each: pynvml.nvmlDeviceGetSupportedGraphicsClocks(each, 2619),
        pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetUtilizationRates,
        lambda each: pynvml.nvmlDeviceGetProcessUtilization(each, 0),
        pynvml.nvmlDeviceGetCurrentClocksEventReasons,
        lambda each: pynvml.nvmlDeviceSetPowerManagementLimit(each, 300000),
        lambda each: pynvml.nvmlDeviceSetGpuLockedClocks(each, 990, 990),
        pynvml.nvmlDeviceResetGpuLockedClocks,
    ):
        try:
            call(handle)
        except pynvml.NVMLError:
            pass

def look():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return error.value
    try:
        calls()
    except pynvml.NVMLError as error:
        return error.value
    finally:
        pynvml.nvmlShutdown()
    return 0
"""

FORGER = (
    EVERYTHING
    + """
def fnv(data):
    total = 0xcbf29ce484222325
    for at in range(0, len(data) - 7, 8):
        total = (total ^ int.from_bytes(data[at:at + 8], "little")) * 0x100000001b3 % 2**64
    return total.to_bytes(8, "little")

path, size, spared = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
whole = path.read_bytes()
accepted = 0
for at in range(8, size, 4):
    if at in (spared, spared + 4):
        continue
    for value in (0, 0x7fffffff, 0xffffffff):
        record = bytearray(whole[4096:4096 + size])
        record[at:at + 4] = value.to_bytes(4, "little")
        record[:8] = fnv(bytes(record[8:]))
        path.write_bytes(whole[:4096] + bytes(record) + whole[4096 + size:])
        accepted += look() == 0
print(accepted)
"""
)


def state_of(fake: FakeNvml) -> Path:
    """Give the state file."""
    return fake.folder / STATE


def record_of(fake: FakeNvml) -> bytes:
    """Give the first GPU's record."""
    return state_of(fake).read_bytes()[HEADER_BYTES : HEADER_BYTES + RECORD_BYTES]


def used_bytes() -> int:
    """Give how much of a record's place is used."""
    count: int = control_library().fake_record_bytes()
    return count


def looked_at(fake: FakeNvml) -> int:
    """Give the code with which a fresh process of nvidia-ml-py ends; 0: everything answered."""
    return int(run_on(fake, EVERYTHING + "print(look())"))


def test_no_state_file_is_a_driver_that_is_not_loaded(fake: FakeNvml) -> None:
    """The library beside nothing says so; Python says what to do."""
    state_of(fake).unlink()
    assert looked_at(fake) == 9
    with pytest.raises(InputInvalid, match="create it first"):
        FakeNvml.open(fake.folder)


@pytest.mark.parametrize("length", [0, 7, 64, 4095])
def test_a_file_cut_in_its_header_is_damaged(fake: FakeNvml, length: int) -> None:
    """Neither side opens it."""
    os.truncate(state_of(fake), length)
    assert looked_at(fake) == 14
    with pytest.raises(InputInvalid, match="damaged or cut short"):
        FakeNvml.open(fake.folder)


@pytest.mark.parametrize("length", [4096, 4097, 5000, HEADER_BYTES + RECORD_BYTES])
def test_a_file_cut_in_a_record_loses_the_gpus_behind_the_cut(fake: FakeNvml, length: int) -> None:
    """Python refuses it whole; NVML fails the calls on those GPUs."""
    os.truncate(state_of(fake), length)
    assert looked_at(fake) == (0 if length == HEADER_BYTES + RECORD_BYTES else 14)
    with pytest.raises(InputInvalid, match="damaged or cut short"):
        FakeNvml.open(fake.folder)


def test_a_file_cut_under_a_running_process_is_an_error_code(fake: FakeNvml) -> None:
    """No bus error: the state is read, not mapped."""
    seen = run_on(
        fake,
        "import os, pynvml, sys\n"
        "pynvml.nvmlInit()\n"
        "handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "os.truncate(sys.argv[1], 4100)\n"
        "for call in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceResetGpuLockedClocks):\n"
        "    try: call(handle)\n"
        "    except pynvml.NVMLError as error: print(error.value)\n",
        str(state_of(fake)),
    )
    assert seen.split() == ["14", "14"]


def test_a_flipped_byte_anywhere_is_noticed(fake: FakeNvml) -> None:
    """In the header or in a record; a byte of padding is nobody's."""
    whole = state_of(fake).read_bytes()
    for at in (*range(0, 100), *range(HEADER_BYTES, HEADER_BYTES + used_bytes(), 13)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        state_of(fake).write_bytes(flipped)
        with pytest.raises(InputInvalid, match=r"damaged|version"):
            FakeNvml.open(fake.folder)
    state_of(fake).write_bytes(whole)
    assert FakeNvml.open(fake.folder).gpu(0).truth().power_w == 95


def test_one_damaged_gpu_leaves_the_others(fake: FakeNvml) -> None:
    """Only its own calls say that it is corrupted."""
    whole = bytearray(state_of(fake).read_bytes())
    whole[HEADER_BYTES + 100] ^= 1
    state_of(fake).write_bytes(whole)
    seen = run_on(
        fake,
        "import pynvml\n"
        "pynvml.nvmlInit()\n"
        "for index in range(2):\n"
        "    try: print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))\n"
        "    except pynvml.NVMLError as error: print(error.value)\n",
    )
    assert seen.split() == ["14", fake.gpu(1).uuid]


def test_another_version_is_told_from_damage(fake: FakeNvml) -> None:
    """NVML calls it a driver and a library that do not fit; Python says to create it again."""
    whole = bytearray(state_of(fake).read_bytes())
    whole[16:20] = struct.pack("<I", 99)
    state_of(fake).write_bytes(whole)
    assert looked_at(fake) == 18
    with pytest.raises(InputInvalid, match="another version"):
        FakeNvml.open(fake.folder)


def test_a_forged_record_neither_crashes_nor_hangs_the_library(fake: FakeNvml) -> None:
    """Every word of a record set to extremes, under a right checksum, with every call on it.

    But the one that lets calls hang on purpose.
    """
    fake.gpu(0).hang(0.001)
    spared = record_of(fake).index((1_000_000).to_bytes(8, "little"))
    fake.gpu(0).hang(0)
    accepted = run_on(fake, FORGER, str(state_of(fake)), str(used_bytes()), str(spared))
    assert int(accepted) > 0


def test_both_sides_agree_on_every_structure(fake: FakeNvml) -> None:
    """Sizes, number of knobs and version, and each fact lands in the field of its name."""
    assert control_library().fake_layout() == expected_layout()
    gpu = fake.gpu(1)
    gpu.draw(123.456)
    gpu.foreign_limit(222)
    gpu.foreign_lock(990)
    gpu.out_of_band_cap(211)
    gpu.reasons(0x40)
    truth = gpu.truth()
    assert (truth.index, truth.uuid, truth.power_w) == (1, gpu.uuid, 123.456)
    assert (truth.requested_limit_w, truth.enforced_limit_w) == (222, 211)
    assert (truth.default_limit_w, truth.lock_mhz, truth.sm_clock_mhz) == (700, 990, 990)
    assert truth.reasons == 0x40
    assert (truth.capped, truth.lost, truth.mig, truth.persistence) == (False, False, False, True)
    gpu.process(4_000_003)
    assert control_library().fake_layout.restype is ctypes.c_uint64


def test_gpus_are_made_once_per_folder(fake: FakeNvml, tmp_path: Path) -> None:
    """Making them again is refused and harms nothing; their names follow from the folder."""
    before = fake.gpu(0).truth()
    with pytest.raises(InputInvalid, match="already"):
        FakeNvml.create(fake.folder, 4)
    assert FakeNvml.open(fake.folder).gpu(0).truth().energy_pj >= before.energy_pj
    assert sorted(each.name for each in fake.folder.iterdir()) == [STATE, "libnvidia-ml.so.1"]
    other = FakeNvml.create(tmp_path / "other", 3)
    assert len({each.uuid for each in (*fake.gpus, *other.gpus)}) == 5


@pytest.mark.parametrize("count", [0, 257, -1])
def test_a_count_out_of_range_is_refused(tmp_path: Path, count: int) -> None:
    """And nothing is left in the folder."""
    with pytest.raises(InputInvalid, match="1 to 256"):
        FakeNvml.create(tmp_path / "gpus", count)
    assert not (tmp_path / "gpus").exists()


def test_a_closed_fake_says_so(fake: FakeNvml) -> None:
    """Closing twice is fine; using it is not."""
    gpu = fake.gpu(0)
    fake.close()
    fake.close()
    with pytest.raises(InputInvalid, match="was closed"):
        gpu.truth()


def test_a_creation_that_was_cut_short_is_done_again(fake: FakeNvml) -> None:
    """With the library alone there are no GPUs yet; whoever makes them may go on."""
    state_of(fake).unlink()
    again = FakeNvml.create(fake.folder, 3)
    assert len(again.gpus) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "B\n"}, "printable"),
        ({"name": "x" * 64}, "1 to 63"),
        ({"idle_w": -1}, "watts"),
        ({"min_w": 800}, "limits"),
        ({"clock_step_mhz": 0}, "clocks"),
        ({"clock_idle_mhz": 5000}, "clocks"),
        ({"voltage_floor": 1.1}, "voltage_floor"),
    ],
)
def test_a_board_that_could_not_run_is_refused(change: dict[str, Any], said: str) -> None:
    """With the number that is wrong."""
    with pytest.raises(InputInvalid, match=said):
        replace(BOARDS[Board.H100], **change)
