"""The physics of a simulated GPU, against a plain sum."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.simulated_device import Device, GpuModel

FRESH = Device(
    index=3, uuid="SIM-1", model=GpuModel(), clock_mhz=1980, boot_id="boot", updated_ns=10**12
)

STEPS = st.lists(
    st.tuples(st.integers(0, 10**11), st.booleans(), st.integers(1, 1980)), max_size=30
)


@given(STEPS)
def test_the_counter_equals_the_plain_sum_of_power_times_time(
    steps: list[tuple[int, bool, int]],
) -> None:
    """However often it is read, the counter is the exact integral, rounded down once."""
    device, joules = FRESH, Fraction(0)
    for elapsed_ns, busy, clock_mhz in steps:
        device = replace(device, busy_pid=7 if busy else 0, clock_mhz=clock_mhz)
        joules += Fraction(device.power_mw * elapsed_ns, 10**12)
        device = device.advanced(device.updated_ns + elapsed_ns, "boot", owner_alive=True)
    assert device.energy_mj == joules * 1000 // 1
    assert Fraction(device.carry_pj, 10**12) == joules - Fraction(device.energy_mj, 1000)


@given(
    energy_mj=st.integers(0, 2**60),
    pid=st.integers(0, 2**31),
    clock_mhz=st.integers(1, 1980),
    index=st.integers(0, 999),
)
def test_a_record_reads_back_as_written(
    energy_mj: int, pid: int, clock_mhz: int, index: int
) -> None:
    """Packing and unpacking change nothing."""
    device = replace(
        FRESH, energy_mj=energy_mj, busy_pid=pid, clock_mhz=clock_mhz, index=index, carry_pj=5
    )
    assert Device.unpack(device.pack(), "here") == device


@given(st.integers(0, 191), st.integers(1, 255))
def test_any_flipped_byte_is_noticed(place: int, flip: int) -> None:
    """The checksum covers the whole record."""
    record = bytearray(FRESH.pack())
    record[place] ^= flip
    with pytest.raises(InputInvalid, match="here"):
        Device.unpack(bytes(record), "here")


def test_time_that_runs_backwards_adds_nothing() -> None:
    """A reader that got the lock late never takes energy away."""
    assert FRESH.advanced(FRESH.updated_ns - 5, "boot", owner_alive=True) == FRESH


def test_after_a_reboot_the_counter_stands_and_the_device_is_idle() -> None:
    """The monotonic clock of another boot says nothing about energy."""
    busy = replace(FRESH, busy_pid=7, busy_start=9, energy_mj=1234)
    after = busy.advanced(50, "another", owner_alive=True)
    assert (after.energy_mj, after.busy_pid, after.updated_ns) == (1234, 0, 50)


@pytest.mark.parametrize("wrong", [{"idle_power_w": -1}, {"cubic_w": 1e9}, {"max_clock_mhz": 0}])
def test_an_impossible_model_is_refused(wrong: dict[str, int]) -> None:
    """A model that would give energy back, or has no clock, is named with its numbers."""
    with pytest.raises(InputInvalid, match="simulated GPU"):
        GpuModel(**wrong)
