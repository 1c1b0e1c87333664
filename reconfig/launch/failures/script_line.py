"""Finds the line of the user's own script that an error came through.

Invariant: a file of wattmesh, of an installed package or of Python's own library is never named.
"""

import os
import sysconfig
from pathlib import Path
from types import TracebackType

_LIBRARIES = (f"{Path(__file__).parents[3]}/", f"{sysconfig.get_path('stdlib')}/", "<")
_INSTALLED = ("/site-packages/", "/dist-packages/")


def is_users(file: str) -> bool:
    """Return whether the code in `file`, as a traceback names it, is the user's own."""
    return not file.startswith(_LIBRARIES) and not any(each in file for each in _INSTALLED)


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
