"""The control library through ctypes: its structures, its knobs, its return codes.

The physics exist once, in C. What the two sides must agree on is compared when the library is
loaded (`fake_layout`).
"""

import ctypes
import functools
import os
import weakref
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import ClassVar

from wattmesh.errors import InputInvalid, SourceUnavailable, WattmeshError
from wattmesh.telemetry.fake_nvml.boards import BoardModel
from wattmesh.telemetry.fake_nvml.build import built

STATE_VERSION = 1
GPUS_MAX = 256
PROCESSES_MAX = 20
MIG_INSTANCES = 2
UUID_BYTES = 48


class Code(IntEnum):
    """Return codes: those of NVML that the control library gives."""

    OK = 0
    INVALID_ARGUMENT = 2
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMED_OUT = 10
    CORRUPTED = 14
    OPERATING_SYSTEM = 17
    VERSION_MISMATCH = 18


class Knob(IntEnum):
    """What can be set on a fake GPU, in the order of `enum knob` in control.c."""

    LOAD = 0
    DRAW = 1
    LIMIT = 2
    OUT_OF_BAND = 3
    LOCK = 4
    FLAG = 5
    FREEZE = 6
    REASONS = 7
    HANG = 8
    WINDOW = 9
    UPDATE = 10
    ZERO = 11
    RELOAD = 12
    TAKE = 13
    RELEASE = 14
    CLEAR_PROCESSES = 15


class Flag(IntFlag):
    """States of a fake GPU that are on or off."""

    LOST = 1
    FROZEN = 2
    NO_COUNTER = 4
    MIG = 8
    PERSISTENCE = 16
    POWER_PROFILE = 32
    VIRTUAL = 64


class NativeBoard(ctypes.Structure):
    """`struct board`."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char * 64),
        ("architecture", ctypes.c_uint32),
        ("compute_major", ctypes.c_uint32),
        ("compute_minor", ctypes.c_uint32),
        ("default_mw", ctypes.c_uint32),
        ("min_mw", ctypes.c_uint32),
        ("max_mw", ctypes.c_uint32),
        ("idle_mw", ctypes.c_uint32),
        ("active_mw", ctypes.c_uint32),
        ("linear_mw", ctypes.c_uint32),
        ("switching_mw", ctypes.c_uint32),
        ("voltage_floor_permille", ctypes.c_uint32),
        ("clock_max_mhz", ctypes.c_uint32),
        ("clock_min_mhz", ctypes.c_uint32),
        ("clock_step_mhz", ctypes.c_uint32),
        ("clock_idle_mhz", ctypes.c_uint32),
        ("memory_clock_mhz", ctypes.c_uint32),
        ("averages", ctypes.c_uint32),
        ("power_profiles", ctypes.c_uint32),
        ("memory_bytes", ctypes.c_uint64),
    ]


class NativeTruth(ctypes.Structure):
    """`struct truth`."""

    _fields_: ClassVar = [
        ("energy_mj", ctypes.c_uint64),
        ("energy_pj", ctypes.c_uint64),
        ("counter_mj", ctypes.c_uint64),
        ("forced_reasons", ctypes.c_uint64),
        ("reasons", ctypes.c_uint64),
        ("power_mw", ctypes.c_uint32),
        ("clock_mhz", ctypes.c_uint32),
        ("lock_mhz", ctypes.c_uint32),
        ("requested_mw", ctypes.c_uint32),
        ("enforced_mw", ctypes.c_uint32),
        ("default_mw", ctypes.c_uint32),
        ("load_permille", ctypes.c_uint32),
        ("capped", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("owner_pid", ctypes.c_uint32),
        ("processes", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("loaded_clock_mhz", ctypes.c_uint32),
        ("max_clock_mhz", ctypes.c_uint32),
        ("uuid", ctypes.c_char * UUID_BYTES),
    ]


_PROCESS_BYTES = 24


def native_board(board: BoardModel) -> NativeBoard:
    """Convert a board to the C structure: milliwatts and bytes."""
    return NativeBoard(
        name=board.name.encode()[:63],
        architecture=board.architecture,
        compute_major=board.compute[0],
        compute_minor=board.compute[1],
        default_mw=round(1000 * board.default_w),
        min_mw=round(1000 * board.min_w),
        max_mw=round(1000 * board.max_w),
        idle_mw=round(1000 * board.idle_w),
        active_mw=round(1000 * board.active_w),
        linear_mw=round(1000 * board.linear_w),
        switching_mw=round(1000 * board.switching_w),
        voltage_floor_permille=round(1000 * board.voltage_floor),
        clock_max_mhz=board.clock_max_mhz,
        clock_min_mhz=board.clock_min_mhz,
        clock_step_mhz=board.clock_step_mhz,
        clock_idle_mhz=board.clock_idle_mhz,
        memory_clock_mhz=board.memory_clock_mhz,
        averages=int(board.averages),
        power_profiles=int(board.power_profiles),
        memory_bytes=board.memory_gib << 30,
    )


def expected_layout() -> int:
    """Give what `fake_layout` must answer: version, number of knobs and sizes of structures."""
    sizes = ctypes.sizeof(NativeTruth) << 24 | ctypes.sizeof(NativeBoard) << 12 | _PROCESS_BYTES
    return STATE_VERSION << 48 | len(Knob) << 40 | sizes


@functools.cache
def control_library() -> ctypes.CDLL:
    """Load the control library, compiled if needed, and declare its functions' arguments.

    Raises:
        InputInvalid: it cannot be built, or does not fit this module.
    """
    library = ctypes.CDLL(str(built().control))
    library.fake_layout.restype = ctypes.c_uint64
    if library.fake_layout() != expected_layout():
        raise InputInvalid(
            f"fake NVML: the C side has layout {library.fake_layout():#x}, the Python side "
            f"{expected_layout():#x}; native.py and control.c do not fit each other"
        )
    u32, u64, i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
    text, handle = ctypes.c_char_p, ctypes.c_void_p
    library.fake_create.argtypes = [text, ctypes.POINTER(NativeBoard), u32, text, text, u32]
    library.fake_open.argtypes = [text, ctypes.POINTER(handle), ctypes.POINTER(u32)]
    library.fake_close.argtypes = [handle]
    library.fake_close.restype = None
    library.fake_permit.argtypes = [handle, ctypes.c_int]
    library.fake_turn.argtypes = [handle, u32, u32, i64, i64]
    library.fake_process.argtypes = [handle, u32, u32, u32, u64, ctypes.c_int]
    library.fake_truth.argtypes = [handle, u32, ctypes.POINTER(NativeTruth)]
    return library


def create_state(
    path: Path, board: BoardModel, uuids: bytes, driver: str, *, gpus: int, update_ms: int
) -> None:
    """Write a state file of idle GPUs; `path` must be new.

    Raises:
        InputInvalid: the file cannot be written, or a number is out of range.
    """
    library = control_library()
    native = native_board(board)
    code = library.fake_create(os.fsencode(path), native, gpus, uuids, driver.encode(), update_ms)
    _check(code, str(path))


class StateFile:
    """An open state file; `close` it, or drop the last reference."""

    def __init__(self, path: Path) -> None:
        """Open a state file.

        Raises:
            InputInvalid: it is not there, is damaged, or has another version.
        """
        self._where = str(path)
        self._library = control_library()
        handle, count = ctypes.c_void_p(), ctypes.c_uint32()
        code = self._library.fake_open(os.fsencode(path), ctypes.byref(handle), ctypes.byref(count))
        _check(code, self._where)
        self._handle = handle
        self._closing = weakref.finalize(self, self._library.fake_close, handle)
        self.gpus = count.value

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._closing()

    def permit(self, allowed: bool) -> None:
        """Permit or forbid the setters."""
        self._check(self._library.fake_permit(self._open_handle(), int(allowed)))

    def turn(self, gpu: int, knob: Knob, a: int = 0, b: int = 0) -> None:
        """Set one knob of one GPU; `enum knob` defines `a` and `b`."""
        self._check(self._library.fake_turn(self._open_handle(), gpu, knob, a, b), f" GPU {gpu}")

    def process(
        self, gpu: int, pid: int, *, utilization: int, memory_bytes: int, lingers: bool
    ) -> None:
        """List a process on a GPU."""
        code = self._library.fake_process(
            self._open_handle(), gpu, pid, utilization, memory_bytes, int(lingers)
        )
        self._check(code, f" GPU {gpu}")

    def truth(self, gpu: int) -> NativeTruth:
        """Read the true state of a GPU."""
        truth = NativeTruth()
        self._check(
            self._library.fake_truth(self._open_handle(), gpu, ctypes.byref(truth)), f" GPU {gpu}"
        )
        return truth

    def _open_handle(self) -> ctypes.c_void_p:
        if not self._closing.alive:
            raise InputInvalid(f"fake NVML: {self._where} was closed; open it again")
        return self._handle

    def _check(self, code: int, what: str = "") -> None:
        _check(code, self._where + what)


def _check(code: int, where: str) -> None:
    """Raise the error of a return code; nothing for success.

    Raises:
        InputInvalid, SourceUnavailable: see the message.
    """
    if code:
        raise _error(code, where)


def _error(code: int, where: str) -> WattmeshError:
    """Return the message of a return code, with the way out."""
    meaning = {
        Code.INVALID_ARGUMENT: "such a GPU or value does not exist there",
        Code.NO_PERMISSION: "may not be written by this user, or is busy with another process",
        Code.NOT_FOUND: "no such process is alive",
        Code.INSUFFICIENT_SIZE: f"lists {PROCESSES_MAX} processes already, and holds no more",
        Code.DRIVER_NOT_LOADED: "is not there; create it first",
        Code.CORRUPTED: "is damaged or cut short; delete the folder and create it again",
        Code.OPERATING_SYSTEM: "cannot be read or written: see its rights and the disk",
        Code.VERSION_MISMATCH: "was made by another version of wattmesh; create it again",
    }
    if code == Code.TIMED_OUT:
        return SourceUnavailable(
            f"{where} has been locked for half a second by a process that does not run on; try "
            "again when it ends"
        )
    return InputInvalid(f"fake NVML: {where} {meaning.get(Code(code), f'fails with {code}')}")
