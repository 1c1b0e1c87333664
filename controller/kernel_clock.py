"""Ask the kernel whether a time service keeps the wall clock: adjtimex(2), which changes nothing.

Invariant: what the kernel does not say is None, never yes. Under the shipped unit the call is
allowed by name; where a filter refuses it, nothing is known.
"""

import ctypes
import os
import platform
from collections.abc import Callable
from functools import cache

NUMBERS = {"x86_64": 159, "aarch64": 171}
"""The system call adjtimex. The C library would call clock_adjtime, which container runtimes refuse
to everybody who may not set the clock."""

TIMEX_BYTES = 208
STATUS_AT = 40
"""Where `struct timex` has its status on 64-bit Linux (linux/timex.h); modes 0 at 0: only read."""

STA_UNSYNC = 0x0040


def synchronised() -> bool | None:
    """Say whether the kernel calls the wall clock synchronised; None when it does not say.

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
    """Give the C library's way to the kernel; None where there is no Linux."""
    if os.uname().sysname != "Linux":
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return call
