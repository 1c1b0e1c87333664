"""Finds the line of the user's own script that an error came through.

Invariant: a file of wattmesh, of an installed package, of Python's own library or of the code that
torch.compile or Triton generated is never named.
"""

import os
import sysconfig
import tempfile
from pathlib import Path
from types import TracebackType

_LIBRARIES = (f"{Path(__file__).parents[3]}/", f"{sysconfig.get_path('stdlib')}/", "<")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Where torch.compile and Triton write the code that they generate, if these are set."""


def is_users(file: str) -> bool:
    """Return whether the code in `file`, as a traceback names it, is the user's own."""
    if file.startswith(_LIBRARIES) or any(each in file for each in _INSTALLED):
        return False
    return not _is_generated(os.path.realpath(file))


def _is_generated(file: str) -> bool:
    """Return whether a file lies in a cache of torch.compile or of Triton."""
    caches = [f"{os.path.realpath(tempfile.gettempdir())}/torchinductor_"]
    # torch reads the variable itself, and does not expand `~` in it.
    caches += [f"{os.path.realpath(found)}/" for each in _CACHES if (found := os.environ.get(each))]
    return file.startswith((*caches, f"{os.path.realpath(Path.home())}/.triton/"))


def script_line(error: BaseException) -> str:
    """Return `FILE:LINE` of the innermost frame of an error that is the user's; "" for none."""
    found = ""
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if is_users(file):
            found = f"{os.path.abspath(file)}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found
