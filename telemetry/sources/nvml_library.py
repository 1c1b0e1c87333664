"""The process's one NVML library, and calls into it with typed errors.

Invariant: a process has one NVML library, because nvidia-ml-py keeps it in a global; and NVML is
not shut down while a call of `call_nvml` is under way.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from wattmesh.errors import InputInvalid, SourceUnavailable

QUIET_S = 0.5
"""Longest wait of `Nvml.reopen` for the calls of other threads."""


class NvmlFailed(SourceUnavailable):
    """NVML answered with an error. `code`: its return code (nvmlReturn_t)."""

    def __init__(self, message: str, code: int) -> None:
        """Keep the code."""
        self.code = code
        super().__init__(message)


class DriverGone(NvmlFailed):
    """No library, no driver, or a driver that was reloaded: `Nvml.reopen` may help."""


class DeviceLost(NvmlFailed):
    """The GPU fell off the bus, needs a reset, or does not exist; others may answer."""


class NotPermitted(NvmlFailed):
    """This process may not do that (setters need root)."""


class NotSupported(NvmlFailed):
    """This board or driver has no such function; do not ask again."""


_KINDS: dict[int, type[NvmlFailed]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: DriverGone,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverGone,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverGone,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: DriverGone,
    pynvml.NVML_ERROR_GPU_IS_LOST: DeviceLost,
    pynvml.NVML_ERROR_RESET_REQUIRED: DeviceLost,
    pynvml.NVML_ERROR_NOT_FOUND: DeviceLost,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: DeviceLost,
    pynvml.NVML_ERROR_NO_PERMISSION: NotPermitted,
    pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupported,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupported,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NotSupported,
    pynvml.NVML_ERROR_DEPRECATED: NotSupported,
}


@dataclass(slots=True)
class _Library:
    """The library of this process.

    Attributes:
        generation: rises with each initialisation.
        calls: number of calls under way.
        closed: no further call may begin, because the library is being initialised again.
    """

    path: Path | None = None
    users: int = 0
    generation: int = 0
    calls: int = 0
    closed: bool = False


_lock = threading.Lock()
_gate = threading.Condition()
_held = _Library()


def acquire(path: Path | None) -> None:
    """Start using the library at `path` (None: the system's); the first user initialises it.

    Raises:
        DriverGone: there is no such library, or it finds no driver.
        InputInvalid: this process uses another library.
    """
    with _lock:
        if _held.users and _held.path != path:
            raise InputInvalid(
                f"this process reads {_held.path or 'the system NVML'} already and cannot read "
                f"{path or 'the system NVML'} too; close that first, or start another process"
            )
        if not _held.users:
            _load(path)
            call_nvml("be initialised", "nvmlInit")
            _held.path, _held.generation = path, _held.generation + 1
        _held.users += 1


def release() -> None:
    """Stop using the library; the last user shuts it down."""
    with _lock:
        _held.users -= 1
        if not _held.users:
            _shut_down()


def initialise_again() -> None:
    """Shut NVML down and initialise it, with no other call under way.

    Raises:
        DriverGone: there is no driver now.
        NvmlFailed: another call hangs; nothing was done.
    """
    with _lock, _alone():
        _shut_down()
        _held.generation += 1
        call_nvml("be initialised again", "nvmlInit", gated=False)


def generation() -> int:
    """Count the initialisations: handles from an older one are void."""
    return _held.generation


def call_nvml(what: str, name: str, *arguments: object, gated: bool = True) -> Any:
    """Call a function of nvidia-ml-py by name, and raise its errors as ours.

    By name, because older bindings lack some functions; that raises `NotSupported`, as an older
    driver does.

    Raises:
        NvmlFailed: or one of its subclasses, by return code.
    """
    call = getattr(pynvml, name, None)
    if call is None:
        raise NotSupported(
            f"NVML could not {what}: this nvidia-ml-py has no {name}; install a newer one",
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        )
    try:
        with _counted() if gated else nullcontext():
            return call(*arguments)
    except pynvml.NVMLError as error:
        code = int(error.value)
        kind = _KINDS.get(code, NvmlFailed)
        advice = _ADVICE.get(kind, "")
        raise kind(f"NVML could not {what}: {error} (code {code}){advice}", code) from None


@contextmanager
def _counted() -> Iterator[None]:
    """Count a call as under way; it waits while NVML is initialised again."""
    with _gate:
        _gate.wait_for(lambda: not _held.closed)
        _held.calls += 1
    try:
        yield
    finally:
        with _gate:
            _held.calls -= 1
            _gate.notify_all()


@contextmanager
def _alone() -> Iterator[None]:
    """Run with no other call under way.

    Raises:
        NvmlFailed: another call hangs.
    """
    with _gate:
        _held.closed = True
        quiet = _gate.wait_for(lambda: not _held.calls, QUIET_S)
    try:
        if not quiet:
            raise NvmlFailed(
                f"NVML cannot be initialised again: a call has hung for more than {QUIET_S} s; "
                "GPUs that came back are not found until it ends",
                pynvml.NVML_ERROR_IN_USE,
            )
        yield
    finally:
        with _gate:
            _held.closed = False
            _gate.notify_all()


_ADVICE: dict[type[NvmlFailed], str] = {
    DriverGone: "; look at `nvidia-smi`: is the NVIDIA driver loaded on this machine?",
    DeviceLost: "; look at `nvidia-smi` and the kernel log for its Xid; it may need a reset",
    NotPermitted: "; setting needs root: only the actuator does it, as its own service",
}


def _load(path: Path | None) -> None:
    """Make nvidia-ml-py use a library; None: it finds the system's.

    Raises:
        DriverGone: the file cannot be loaded.
    """
    pynvml._nvmlGetFunctionPointer_cache.clear()  # holds functions of the previous library
    pynvml.nvmlLib = None
    if path is None:
        return
    try:
        pynvml.nvmlLib = ctypes.CDLL(str(path))
    except OSError as error:
        raise DriverGone(
            f"{path} cannot be loaded ({error}); correct power.library",
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        ) from error


def _shut_down() -> None:
    """Shut NVML down, unless it is down."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return
