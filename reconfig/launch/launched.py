"""Reads from the environment how this process was launched: its rank, its job, which launch of it.

Invariant: of several nested launchers the innermost counts; without any, the process is rank
0 of 1.
"""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from wattmesh.reconfig.ranges import MOST_RANKS

Environment = Mapping[str, str]

RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    # Not SLURM_NTASKS: a batch script, which is one process, has it set too.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
LOCAL_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
RESTARTS = 1000
"""An upper bound of torchrun's restarts between two requeues of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProcess:
    """One process among those of its launch.

    Attributes:
        rank: its global rank.
        world_size: how many processes were launched.
        local_rank: its rank on its node; None if no launcher says.
        job: an id that stays the same when the job is launched again; "" if there is none.
        number: which launch of the job this is, from 1 on; it only rises.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    job: str = ""
    number: int = 1

    @classmethod
    def read(cls, environment: Environment) -> "LaunchedProcess":
        """Read it from the environment variables of a process."""
        rank, world_size = _rank(environment)
        job, number = _job(environment)
        local = (_whole(environment, name) for name in LOCAL_RANKS)
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=next((each for each in local if each is not None), None),
            job=job,
            number=number,
        )

    def run(self, uid: int, name: str) -> str:
        """Return the run's UUID: the same for all launches of one `job`, else a new one."""
        if not self.job:
            return str(uuid.uuid4())
        # A variable may hold bytes that are no text, which no hash takes.
        job = self.job.encode(errors="backslashreplace").decode()
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"wattmesh {uid} {name} {job}"))


def scheduler_key(environment: Environment) -> str:
    """Return the scheduler's id of the job, which nodes also find in its processes' cgroups.

    It is `slurm:<job id>`, `pod:<uid>` (from the downward API), or "" outside both.
    """
    job, pod = environment.get("SLURM_JOB_ID", ""), environment.get("POD_UID", "")
    return f"slurm:{job}" if job else f"pod:{pod}" if pod else ""


def _rank(environment: Environment) -> tuple[int, int]:
    """Return rank and world size of the first launcher whose two values are valid.

    The size is at most that of any job: a variable that says more is wrong, and costs no memory.
    """
    for rank_name, size_name in RANKS:
        rank, size = _whole(environment, rank_name), _whole(environment, size_name)
        if rank is not None and size is not None and rank < size:
            return rank, min(size, MOST_RANKS)
    return 0, 1


def _job(environment: Environment) -> tuple[str, int]:
    elastic = environment.get("TORCHELASTIC_RUN_ID", "")
    restarts = _whole(environment, "TORCHELASTIC_RESTART_COUNT") or 0
    slurm = environment.get("SLURM_JOB_ID", "")
    if slurm:
        cluster = environment.get("SLURM_CLUSTER_NAME", "")
        step = environment.get("SLURM_STEP_ID", "")
        requeues = _whole(environment, "SLURM_RESTART_COUNT") or 0
        return f"slurm {cluster} {slurm}.{step}", 1 + requeues * RESTARTS + restarts
    if elastic and elastic != "none":
        return f"torchelastic {elastic}", 1 + restarts
    return "", 1


def _whole(environment: Environment, name: str) -> int | None:
    """Read a whole number of 0 or more, at most 7 digits; None if there is none."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else None


def ranks_here() -> int:
    """Return how many ranks this host has, as torchrun or one of our launchers says; 0: nobody."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
