"""One rank of a script that is observed, as `tests.hook.reporting.test_observe` writes it."""

import ctypes
import os
import sys
from pathlib import Path


def main() -> int:
    """Run the script, whose NVML is the fake one."""
    library = Path(os.environ["LIBRARY"])
    ctypes.CDLL(str(library))  # loaded once, it is found by its name
    sys.argv = ["train.py", os.environ["OUT"], str(library.parent), "0"]
    exec(compile(os.environ["SCRIPT"], "train.py", "exec"), {"__name__": "__main__"})
    return 0
