"""What a rank and whoever launched it say to each other: how it goes, and that it shall stop.

Invariant: nothing here can stop training; a word that cannot be said is left out.
"""

import os
import signal
import threading
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


def heed_sigterm(job: Job) -> None:
    """Turn SIGTERM into an in-band stop at the next save step."""

    def heed(number: int, frame: FrameType | None) -> None:
        job.stop_reason = f"SIGTERM to rank {job.rank}"

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, heed)
