"""The physics of a simulated GPU and its record on disk. Pure: no clock, no file, no process.

One record is everything a device is: its model, its clock, its energy counter and who keeps it
busy. Invariant: energy is integrated in whole picojoules (milliwatts x nanoseconds), so that the
counter loses nothing however often it is read.

The record, little-endian, 192 bytes:

    magic 8s | version u32 | index u32 | uuid 48s | boot id 36s
    idle, base, linear, cubic, limit: f64 watts | max clock, clock: u32 MHz
    energy u64 mJ | carry u64 pJ (below 1 mJ) | updated u64 ns CLOCK_MONOTONIC
    busy pid u64 (0 = idle) | busy process start u64 clock ticks | crc32 of all before u32
"""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Self

from wattmesh.errors import InputInvalid

MAGIC = b"WMSIMGPU"
VERSION = 1
PJ_PER_MJ = 1_000_000_000

_BODY = struct.Struct("<8sII48s36s5d2I5Q")
_CRC = struct.Struct("<I")
RECORD_BYTES = _BODY.size + _CRC.size


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """How a device turns clock into power: `base + linear * f + cubic * f**3`, f = clock / max.

    The shape (leakage, a part that follows frequency, a part that follows frequency and voltage
    squared) is the usual CMOS model; the default numbers are assumed, in the range of a 700 W
    accelerator. A parked device keeps its context and draws `idle_power_w` like an idle one.

    Attributes:
        idle_power_w: drawn while no work runs, at any clock.
        limit_w: board power limit; active power is cut here.
    """

    idle_power_w: float = 55.0
    base_w: float = 130.0
    linear_w: float = 170.0
    cubic_w: float = 400.0
    max_clock_mhz: int = 1980
    limit_w: float = 700.0

    def __post_init__(self) -> None:
        """Refuse a device that would give energy back or cannot be clocked."""
        watts = (self.idle_power_w, self.base_w, self.linear_w, self.cubic_w, self.limit_w)
        if not all(0 <= each < 1e6 for each in watts) or not 0 < self.max_clock_mhz < 100_000:
            raise InputInvalid(
                f"simulated GPU: watts {watts} must lie in [0, 1e6) and max_clock_mhz "
                f"{self.max_clock_mhz} in (0, 100000)"
            )

    def active_power_w(self, clock_mhz: int) -> float:
        """Give the watts drawn while work runs at `clock_mhz`."""
        share = clock_mhz / self.max_clock_mhz
        return min(self.limit_w, self.base_w + self.linear_w * share + self.cubic_w * share**3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One simulated GPU at one moment.

    Attributes:
        energy_mj: the counter a reader sees. `carry_pj`: what is not yet a whole millijoule.
        updated_ns: CLOCK_MONOTONIC up to which energy is integrated; valid within `boot_id`.
        busy_pid, busy_start: the process at work and when it started (pids are reused); 0 = idle.
    """

    index: int
    uuid: str
    model: GpuModel
    clock_mhz: int
    boot_id: str
    updated_ns: int
    energy_mj: int = 0
    carry_pj: int = 0
    busy_pid: int = 0
    busy_start: int = 0

    @property
    def power_mw(self) -> int:
        """Milliwatts drawn right now."""
        active = self.model.active_power_w(self.clock_mhz)
        return round(1000 * (active if self.busy_pid else self.model.idle_power_w))

    def advanced(self, now_ns: int, boot_id: str, *, owner_alive: bool) -> Self:
        """Integrate up to `now_ns`, and give the device as it is then.

        When the busy process has died, the device went idle at its last sign of life: the last
        moment at which anybody wrote this record with the process still there. After a reboot the
        counter stands where it was; the time in between was not observed by anyone.
        """
        if boot_id != self.boot_id:
            return replace(self, boot_id=boot_id, updated_ns=now_ns, busy_pid=0, busy_start=0)
        device = self if owner_alive else replace(self, busy_pid=0, busy_start=0)
        # Two processes may arrive out of order by the time it takes to get the lock.
        elapsed_ns = max(0, now_ns - self.updated_ns)
        whole_mj, carry_pj = divmod(self.carry_pj + device.power_mw * elapsed_ns, PJ_PER_MJ)
        return replace(
            device,
            energy_mj=self.energy_mj + whole_mj,
            carry_pj=carry_pj,
            updated_ns=self.updated_ns + elapsed_ns,
        )

    def pack(self) -> bytes:
        """Give the record as it stands on disk."""
        model = self.model
        body = _BODY.pack(
            MAGIC,
            VERSION,
            self.index,
            self.uuid.encode(),
            self.boot_id.encode(),
            model.idle_power_w,
            model.base_w,
            model.linear_w,
            model.cubic_w,
            model.limit_w,
            model.max_clock_mhz,
            self.clock_mhz,
            self.energy_mj,
            self.carry_pj,
            self.updated_ns,
            self.busy_pid,
            self.busy_start,
        )
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, record: bytes, where: str) -> Self:
        """Read a record.

        Raises:
            InputInvalid: not such a record, another version, or damaged bytes.
        """
        if len(record) != RECORD_BYTES or not record.startswith(MAGIC):
            raise InputInvalid(f"{where} is not a simulated GPU ({len(record)} bytes); create it")
        body, crc = record[: _BODY.size], _CRC.unpack(record[_BODY.size :])[0]
        if zlib.crc32(body) != crc:
            raise InputInvalid(f"{where} is damaged (checksum differs); delete and create it again")
        _, version, index, uuid, boot_id, *numbers = _BODY.unpack(body)
        if version != VERSION:
            raise InputInvalid(f"{where} has version {version}; this wattmesh reads {VERSION}")
        idle_w, base_w, linear_w, cubic_w, limit_w, max_clock_mhz, *state = numbers
        clock_mhz, energy_mj, carry_pj, updated_ns, busy_pid, busy_start = state
        return cls(
            index=index,
            uuid=uuid.rstrip(b"\0").decode(),
            boot_id=boot_id.rstrip(b"\0").decode(),
            model=GpuModel(
                idle_power_w=idle_w,
                base_w=base_w,
                linear_w=linear_w,
                cubic_w=cubic_w,
                limit_w=limit_w,
                max_clock_mhz=max_clock_mhz,
            ),
            clock_mhz=clock_mhz,
            energy_mj=energy_mj,
            carry_pj=carry_pj,
            updated_ns=updated_ns,
            busy_pid=busy_pid,
            busy_start=busy_start,
        )
