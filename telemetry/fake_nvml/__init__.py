"""A fake NVML: `libnvidia-ml.so.1` in C with GPUs that draw power, obey, and misbehave.

nvidia-ml-py and every other NVML client run on it unmodified. `python -m
wattmesh.telemetry.fake_nvml` makes and scripts it.

The map:
    control.py    the GPUs of a folder: make them, open them
    gpu.py        one of them: load it, break it, read its true state
    boards.py     models of boards, and power as a function of clock (nominal numbers)
    native.py     the control library through ctypes
    build.py      compiles the two libraries, once per user and version
    __main__.py   the same from a shell
    device.h      what a GPU is: the record in the state file, and its invariants
    physics.c     power, clock, energy, and the sensor's readings (no I/O)
    state.c       the state file: lock-free readers, writers under a kernel lock
    library.c     NVML calls: the library, handles, names, MIG
    calls.c       NVML calls: power, energy, clocks, limits, processes
    control.c     what control.py calls
    abi.h         the part of NVML's binary interface that is served
"""

from wattmesh.telemetry.fake_nvml.boards import BOARDS, DEMO_BOARD, Board, BoardModel
from wattmesh.telemetry.fake_nvml.build import LIBRARY
from wattmesh.telemetry.fake_nvml.control import FOLDER_VARIABLE, FakeNvml
from wattmesh.telemetry.fake_nvml.gpu import FakeGpu, Truth, Work

__all__ = [
    "BOARDS",
    "DEMO_BOARD",
    "FOLDER_VARIABLE",
    "LIBRARY",
    "Board",
    "BoardModel",
    "FakeGpu",
    "FakeNvml",
    "Truth",
    "Work",
]
