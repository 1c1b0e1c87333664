"""A small job that watches over a sleeping run's orders, where its user asks for one.

While a run sleeps only Slurm knows of it, so an order to wake needs somebody of the run's own user
who fetches it. It is `wake --watch` as a batch job without GPUs.

Invariant: a run sleeps, and wakes by its alarm, whether or not it has a watcher.
"""

import shlex
import sys
from collections.abc import Sequence

from wattmesh.errors import SourceUnavailable
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.reconfig.launch.folder import RunFolder

JOB_NAME = "wattmesh-watch"

BEFORE_S = 120
"""Slurm says so long before the watcher's time limit that it ends; another one takes its place."""

SHORTEST_S = 60.0
"""A watcher that was let watch for less has none follow it: its limit is too short."""


def script_of(folder: RunFolder, more: Sequence[str] = ()) -> str:
    """Return the batch script of a run's watcher; `more`: words for the `sbatch` of the next."""
    told = [sys.executable, "-m", "wattmesh.integrations.slurm", "wake", "--watch"]
    told += [f"--checkpoint-dir={folder.path.absolute()}", *(f"--watcher={each}" for each in more)]
    return f"#!/bin/sh\nexec {shlex.join(told)}\n"


def submit(folder: RunFolder, client: SlurmClient, more: Sequence[str] = ()) -> int:
    """Submit the watcher of a run that has just fallen asleep; returns its job's id.

    `more`: further words for `sbatch`; of an option that is named twice the last one counts.

    Raises:
        SourceUnavailable: the script cannot be written, or it is not known whether one was.
        InputInvalid: Slurm refuses.
    """
    script = folder.path / "watch.sh"
    try:
        script.write_text(script_of(folder, more))
    except OSError as error:
        raise SourceUnavailable(f"{script} cannot be written ({error})") from error
    words = (
        *("--nodes=1", "--ntasks=1", f"--job-name={JOB_NAME}"),
        f"--signal=B:USR1@{BEFORE_S}",
        *(f"--output={folder.path.absolute()}/watch.out", "--open-mode=append"),
    )
    return client.submit_other((*words, *more), script)
