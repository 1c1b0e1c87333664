"""nvidia-ml-py on a fake library, in this process and in others."""

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest

from wattmesh.telemetry.fake_nvml import FakeNvml

Nvml = Any
"""The module pynvml; it ships no types."""


@contextmanager
def nvml_of(fake: FakeNvml) -> Iterator[Nvml]:
    """Let the one nvidia-ml-py of this process speak to `fake`, and to nobody afterwards."""
    _forget()
    pynvml.nvmlLib = ctypes.CDLL(str(fake.library))
    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
        _forget()


def _forget() -> None:
    """Undo what nvidia-ml-py remembers of a library: it, and the functions it looked up."""
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


def code_of(call: Callable[..., object], *arguments: object) -> int:
    """Give the return code with which a call fails.

    Raises:
        Failed: it does not fail.
    """
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        code: int = error.value
        return code
    pytest.fail(f"{call.__name__} did not fail")


def run_on(fake: FakeNvml, code: str, *arguments: str) -> str:
    """Run Python code in a process whose NVML is `fake`, and give what it prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env=fake.environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
