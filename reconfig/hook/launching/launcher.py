"""How a rank and its launcher communicate: the outcome of the launch, and SIGTERM.

Invariant: nothing here can stop training; a message that cannot be delivered is dropped.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from wattmesh.reconfig.hook.job import AttachedJob
from wattmesh.reconfig.launch.failures.watchdog import say
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE, write_json
from wattmesh.reconfig.launch.launch_store import LaunchStore


def refuse(launch_store: LaunchStore, error: Exception) -> None:
    """Tell the supervisor and the other ranks that starting again would not help.

    This rank's stderr comes first: the other ranks leave as soon as they are told, and then the
    launcher may end this process before it has printed anything.
    """
    say(str(error))
    write_outcome("refused", str(error), 0)
    with suppress(RuntimeError):
        launch_store.fail(str(error))


def write_outcome(outcome: str, sentence: str, step: int) -> None:
    """Write the launch's outcome where the supervisor asked for it; without fsync."""
    path = os.environ.get(OUTCOME_VARIABLE, "")
    if path:
        with suppress(OSError):
            told = {"outcome": outcome, "sentence": sentence, "step": step}
            write_json(Path(path), told, sync=False)


def heed_sigterm(job: AttachedJob) -> Callable[[], None]:
    """Turn SIGTERM into a stop at the next save step; returns a function that undoes this.

    Undo it once training has ended: a process that still ignored SIGTERM would need SIGKILL.
    """

    def heed(number: int, frame: FrameType | None) -> None:
        job.stop_reason = f"SIGTERM to rank {job.rank}"

    def unheed() -> None:
        # None: the handler was not installed from Python, so Python cannot restore it.
        if before is not None and _in_main_thread() and signal.getsignal(signal.SIGTERM) is heed:
            signal.signal(signal.SIGTERM, before)

    before = signal.getsignal(signal.SIGTERM)
    if _in_main_thread():
        signal.signal(signal.SIGTERM, heed)
    return unheed


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
