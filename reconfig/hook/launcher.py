"""What a rank and whoever launched it say to each other: how it goes, and that it shall stop.

Invariant: nothing here can stop training; a word that cannot be said is left out.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from wattmesh.reconfig.hook.job import Job
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE, write_json
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.launch.watchdog import say


def refuse(launch_store: LaunchStore, error: Exception) -> None:
    """Say that starting again would not help, to the supervisor and to the other ranks.

    First on this rank's own stderr: a rank that was told leaves at once, and then a launcher ends
    the others, who may not have said a word by then.
    """
    say(str(error))
    write_outcome("refused", str(error), 0)
    with suppress(RuntimeError):
        launch_store.fail(str(error))


def write_outcome(outcome: str, sentence: str, step: int) -> None:
    """Tell a supervisor how this launch goes, where it asked to be told; waits for no disk."""
    path = os.environ.get(OUTCOME_VARIABLE, "")
    if path:
        with suppress(OSError):
            told = {"outcome": outcome, "sentence": sentence, "step": step}
            write_json(Path(path), told, sync=False)


def heed_sigterm(job: Job) -> Callable[[], None]:
    """Turn SIGTERM into an in-band stop at the next save step; gives what takes that back.

    Once nobody trains, a process that swallowed SIGTERM could be ended by force alone.
    """

    def heed(number: int, frame: FrameType | None) -> None:
        job.stop_reason = f"SIGTERM to rank {job.rank}"

    def unheed() -> None:
        # None was not set by Python, which could not put it back.
        if before is not None and _in_main_thread() and signal.getsignal(signal.SIGTERM) is heed:
            signal.signal(signal.SIGTERM, before)

    before = signal.getsignal(signal.SIGTERM)
    if _in_main_thread():
        signal.signal(signal.SIGTERM, heed)
    return unheed


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
