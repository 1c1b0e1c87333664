"""Starts the ranks of one launch as a step of the job, on all its nodes.

Each rank gets the variables that torch reads (RANK, WORLD_SIZE, MASTER_ADDR ...) from those that
Slurm sets for a task. Rank 0 is on the node of the batch script.

Invariant: the step has a name of its own, so that no other step of the job is ended; no process of
it is left when the next one starts, as far as Slurm can be asked.
"""

import logging
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.own_job import LaunchShape
from wattmesh.reconfig.launcher.hosts.launcher import free_port
from wattmesh.reconfig.launcher.supervisor import TOKEN_VARIABLE, Launch

log = logging.getLogger(__name__)

END_S = 30.0
"""How long a step that was killed may take to end."""

LOOK_S = 0.2

RANK_SCRIPT = (
    "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID GROUP_RANK=$SLURM_NODEID "
    "WORLD_SIZE=$SLURM_STEP_NUM_TASKS; "
    'exec "$@"'
)
"""What each task does: it becomes the rank."""


class StepLauncher:
    """Launches through `srun` in this job's allocation."""

    def __init__(
        self,
        shape: LaunchShape,
        command: Sequence[str],
        client: SlurmClient,
        job: int,
        *,
        address: str = "",
        more: Sequence[str] = (),
    ) -> None:
        """Run `command` as each rank of a launch of `shape`.

        Args:
            shape: nodes, and ranks on each.
            command: words of a program, for example `python train.py`.
            client: ends steps.
            job: id of this job.
            address: of this node, as the others reach it; "": its host name.
            more: further words for `srun`.
        """
        self._shape, self._command = shape, list(command)
        self._client, self._job = client, job
        self._address, self._more = address or socket.gethostname(), list(more)

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the step.

        Raises:
            SourceUnavailable: Slurm's controller does not answer, so that `srun` would start none.
        """
        token = environment[TOKEN_VARIABLE]
        shape, name = self._shape, f"wattmesh-{token[:8]}"
        with suppress(InputInvalid):
            self._client.steps(self._job, name)
        words = [
            *("srun", f"--nodes={shape.nodes}", f"--ntasks={shape.ranks}"),
            *(f"--ntasks-per-node={shape.per_node}", "--distribution=block"),
            *("--kill-on-bad-exit=1", f"--job-name={name}", "--export=ALL"),
            *(*self._more, "sh", "-c", RANK_SCRIPT, "sh", *self._command),
        ]
        added = {
            **environment,
            "MASTER_ADDR": self._address,
            "MASTER_PORT": str(free_port()),
            "LOCAL_WORLD_SIZE": str(shape.per_node),
        }
        process = subprocess.Popen(
            words, env={**os.environ, **added}, stdin=subprocess.DEVNULL, start_new_session=True
        )
        return _Step(process, self._client, self._job, name)


class _Step:
    def __init__(
        self, process: subprocess.Popen[bytes], client: SlurmClient, job: int, name: str
    ) -> None:
        """Watch the `srun` of a step."""
        self._process, self._client = process, client
        self._job, self._name = job, name
        self._over = False

    def poll(self) -> int | None:
        """Return the exit status, after killing what a broken `srun` left; None while it runs."""
        status = self._process.poll()
        if status is not None and status < 0 and not self._over:
            self._kill()
        self._over = status is not None
        return status

    def end(self) -> None:
        """Kill the step; `srun` ends with it, and is killed if it does not."""
        if self._process.poll() is None:
            self._kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            if self._process.poll() is None:
                self._process.kill()
        self._process.wait()
        self._over = True

    def _kill(self) -> None:
        """Kill every process of the step, and wait until Slurm has ended it, for `END_S`."""
        until = time.monotonic() + END_S
        try:
            while steps := self._client.steps(self._job, self._name):
                for step in steps:
                    self._client.kill_step(step)
                if time.monotonic() > until:
                    log.warning("step %s is still in Slurm's list after %g s", steps[0], END_S)
                    return
                time.sleep(LOOK_S)
        except WattmeshError as error:
            log.warning("the step %s of job %d may live on: %s", self._name, self._job, error)
