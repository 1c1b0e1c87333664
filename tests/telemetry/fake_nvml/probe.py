"""The physics of a fake GPU as a function: events with their moments in, answers out."""

import ctypes
import functools
import shutil
import tempfile
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, NamedTuple

from wattmesh.telemetry.fake_nvml.boards import BoardModel
from wattmesh.telemetry.fake_nvml.build import compile_library
from wattmesh.telemetry.fake_nvml.native import NativeBoard, native_board

NS_PER_MS = 1_000_000
PJ_PER_MJ = 10**9


class Kind(IntEnum):
    """What happens; the order is that of probe.c."""

    LOOK = 0
    LOAD = 1
    DRAW = 2
    LIMIT = 3
    LOCK = 4
    ZERO = 5
    RELOAD = 6


class Event(NamedTuple):
    """Something that happens at a moment; every event is also a look."""

    at_ns: int
    kind: Kind = Kind.LOOK
    value: int = 0


class Answer(NamedTuple):
    """What a look shows: the truth, and what the sensor makes of it."""

    drawn_pj: int
    counter_mj: int
    capped_ns: int
    power_mw: int
    shown_mw: int
    average_mw: int
    clock_mhz: int
    capped: bool
    reasons: int


class _Event(ctypes.Structure):
    _fields_: ClassVar = [
        ("at_ns", ctypes.c_uint64),
        ("kind", ctypes.c_int64),
        ("value", ctypes.c_int64),
    ]


class _Answer(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, ctypes.c_uint64) for name in ("mj", "pj", "counter", "capped_ns")),
        *((name, ctypes.c_uint32) for name in ("power", "shown", "average", "clock", "capped")),
        ("reasons", ctypes.c_uint32),
    ]


class Sensor(NamedTuple):
    """How the sensor looks, in milliseconds (see `struct record`)."""

    update_ms: int = 0
    period_ms: int = 1
    window_ms: int = 1


PERFECT = Sensor()


def probe(events: Sequence[Event], board: BoardModel, sensor: Sensor = PERFECT) -> list[Answer]:
    """Let events happen to a GPU that begins idle at moment 0."""
    native = (_Event * len(events))(*(_Event(*each) for each in events))
    answers = (_Answer * len(events))()
    numbers = (ctypes.c_uint32 * 3)(*sensor)
    _library().probe(ctypes.byref(native_board(board)), numbers, len(events), native, answers)
    return [
        Answer(
            drawn_pj=each.mj * PJ_PER_MJ + each.pj,
            counter_mj=each.counter,
            capped_ns=each.capped_ns,
            power_mw=each.power,
            shown_mw=each.shown,
            average_mw=each.average,
            clock_mhz=each.clock,
            capped=bool(each.capped),
            reasons=each.reasons,
        )
        for each in answers
    ]


@functools.cache
def _library() -> ctypes.CDLL:
    """Compile probe.c with the real physics.c."""
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    source = Path(__file__).with_name("probe.c")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "libprobe.so"
        compile_library(compiler, [source], target)
        library = ctypes.CDLL(str(target))
    library.probe.argtypes = [
        ctypes.POINTER(NativeBoard),
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.c_uint32,
        ctypes.POINTER(_Event),
        ctypes.POINTER(_Answer),
    ]
    library.probe.restype = None
    return library
