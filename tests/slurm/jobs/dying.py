"""The job's supervisor, which kills itself at one step of one act, once.

    DIES=hold:6 DIED=FILE python -m tests.slurm.jobs.dying run ...

A step is a call of one of Slurm's clients, or a change of the launch book; it dies before the
sixth one, or where the act is over by then, at its end. `hold@2:6` means the second time that it
holds a launch.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattmesh.integrations.slurm.__main__ import main
from wattmesh.integrations.slurm.begin import StartedJob
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.slurm_queue import SlurmQueue
from wattmesh.reconfig.launcher.launch_book import LaunchBook

ACTS: dict[str, tuple[type, str]] = {
    "hold": (SlurmQueue, "hold"),
    "withdraw": (SlurmQueue, "withdraw"),
    "claim": (StartedJob, "claim"),
}


class Death:
    """Counts the steps of an act."""

    def __init__(self, act: str, step: int, died: Path, key: str, time: int = 1) -> None:
        """Die before `step` of `act`, in a job that has a key or, for other acts, any.

        `time`: at which time that the act is done.
        """
        self.times_left = time
        self.act, self.step, self.died = act, step, died
        self.armed = act != "claim" or bool(key)
        self.within, self.count = False, 0

    def arrive(self) -> None:
        """Do one step more."""
        self.count += self.within
        if self.within and self.count >= self.step:
            self.end()

    def end(self) -> None:
        """Die, unless that has been done."""
        if self.armed and not self.died.exists():
            self.died.write_text(os.environ["SLURM_JOB_ID"])
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what makes a step."""

        @functools.wraps(inner)
        def step(*words: Any, **named: Any) -> Any:
            self.arrive()
            return inner(*words, **named)

        return step

    def bounded(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the act."""

        @functools.wraps(inner)
        def act(*words: Any, **named: Any) -> Any:
            self.times_left -= 1
            self.within = self.times_left == 0
            answer = inner(*words, **named)
            if self.within:
                self.end()
            return answer

        return act


def arm() -> None:
    """Prepare to die."""
    named, _, step = os.environ["DIES"].partition(":")
    act, _, time = named.partition("@")
    key = os.environ.get("WATTMESH_SLURM_KEY", "")
    death = Death(act, int(step), Path(os.environ["DIED"]), key, int(time or 1))
    owner, name = ACTS[act]
    setattr(owner, name, death.bounded(getattr(owner, name)))
    for each, step_name in ((SlurmClient, "_run"), (LaunchBook, "change")):
        setattr(each, step_name, death.counted(getattr(each, step_name)))


if __name__ == "__main__":
    arm()
    sys.exit(main())
