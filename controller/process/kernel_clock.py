"""Ask the kernel whether a time service keeps the wall clock; this changes nothing.

It calls adjtimex(2). Where a filter refuses that call (systemd's `ProtectClock`, which the shipped
unit sets), it asks `systemd-timedated`, which makes the same call. Invariant: where neither
answers, the result is None, never True.
"""

import ctypes
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache

NUMBERS = {"x86_64": 159, "aarch64": 171}
"""Number of the system call adjtimex. The C library would call clock_adjtime, which container
runtimes refuse to everybody who may not set the clock."""

TIMEX_BYTES = 208
STATUS_AT = 40
"""Offset of `status` in `struct timex` on 64-bit Linux (linux/timex.h); `modes` is 0: only read."""

STA_UNSYNC = 0x0040

TIMEDATECTL = ("timedatectl", "show", "--property=NTPSynchronized", "--value")
ASKED_EVERY_S = 60.0
ANSWER_LIMIT_S = 2.0


def synchronised() -> bool | None:
    """Say whether the kernel calls the wall clock synchronised; None when that is not known."""
    said = flag()
    return _timedated.newest() if said is None else said


def flag() -> bool | None:
    """Read the kernel's flag; None where it may not be asked.

    The flag is set at boot, by whoever sets the clock, and when no time service has corrected the
    clock for about nine hours (man 2 adjtimex; kernel/time/ntp.c).
    """
    number, call = NUMBERS.get(platform.machine()), _call()
    if number is None or call is None:
        return None
    answer = ctypes.create_string_buffer(TIMEX_BYTES)
    if call(ctypes.c_long(number), answer) < 0:
        return None
    status = int.from_bytes(answer.raw[STATUS_AT : STATUS_AT + 4], "little")
    return not status & STA_UNSYNC


@cache
def _call() -> Callable[..., int] | None:
    """Give the C library's syscall(2); None on any system but Linux."""
    if os.uname().sysname != "Linux":
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return call


class _Timedated:
    """What timedatectl says, asked again after a minute; only the first answer is waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked_s: float | None = None
        self._newest: bool | None = None

    def newest(self) -> bool | None:
        """Give the newest answer; ask again in a thread where that is due."""
        with self._lock:
            now_s, first = time.monotonic(), self._asked_s is None
            if first or now_s - (self._asked_s or 0.0) >= ASKED_EVERY_S:
                self._asked_s = now_s
                if first:
                    self._newest = _ask()
                else:
                    threading.Thread(target=self._again, name="timedatectl", daemon=True).start()
            return self._newest

    def _again(self) -> None:
        """Ask again; callers get the previous answer meanwhile."""
        self._newest = _ask()


def _ask() -> bool | None:
    """Run timedatectl; None where there is none, or no systemd."""
    try:
        done = subprocess.run(
            TIMEDATECTL, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())


_timedated = _Timedated()
