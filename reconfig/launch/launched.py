"""How this process was launched, as its environment says: its rank, its job, which launch of it.

Pure. Invariant: of several launchers inside each other the innermost is believed, and what none of
them says is a process alone.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

Environment = Mapping[str, str]

RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    # SLURM_NTASKS stands in a batch script too, where one process is started.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
LOCAL_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
RESTARTS = 1000
"""More often torchrun restarts no ranks between two requeues of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One process among those of its launch.

    Attributes:
        rank: its global rank. `world_size`: how many processes were launched.
        local_rank: its rank on its node; None where no launcher says.
        job: what stays the same when the same job is launched again; "" where nothing does.
        number: which launch of the job it is, from 1 on.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    job: str = ""
    number: int = 1

    @classmethod
    def read(cls, environment: Environment) -> "Launched":
        """Read it."""
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
        """Give the run's id: a new one, or that of the launches before of the same job."""
        if not self.job:
            return str(uuid.uuid4())
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"wattmesh {uid} {name} {self.job}"))


def scheduler_key(environment: Environment) -> str:
    """Name the job as its scheduler does, and as its nodes find it in their processes' cgroups.

    `slurm:<job id>`, `pod:<uid>` (the pod's own, through the downward API), or "" outside both.
    """
    job, pod = environment.get("SLURM_JOB_ID", ""), environment.get("POD_UID", "")
    return f"slurm:{job}" if job else f"pod:{pod}" if pod else ""


def _rank(environment: Environment) -> tuple[int, int]:
    """Give rank and world size of the first launcher that says both, and sensibly."""
    for rank_name, size_name in RANKS:
        rank, size = _whole(environment, rank_name), _whole(environment, size_name)
        if rank is not None and size is not None and rank < size:
            return rank, size
    return 0, 1


def _job(environment: Environment) -> tuple[str, int]:
    """Give the job and which launch of it this is."""
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
    """Read a whole number of 0 or more; None where there is none."""
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else None
