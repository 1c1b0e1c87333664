"""Finds the GPUs that Slurm gave this job on this node, by UUID: used by a process or not.

Slurm names them by its own numbers (sbatch(1) and srun(1): SLURM_JOB_GPUS, SLURM_STEP_GPUS; "global
GPU IDs", which no device cgroup renumbers as it does CUDA_VISIBLE_DEVICES and NVML's index). They
go by slots or by device files, which differ on some nodes (docs/decisions/0071-allocated-gpus.md),
so they name a board only where either means the same.

Invariant: all GPUs that the variables name are found, or none; in doubt a sentence says why.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from wattmesh.reconfig.gpus.own_gpus import (
    NO_BINDING,
    NvmlBoard,
    OwnGpus,
    bounded,
    node_boards,
)
from wattmesh.reconfig.launch.failures.bounded import Attempt

JOB, STEP, NODES = "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_JOB_NUM_NODES"

UNKNOWN = "which GPUs Slurm gave its job is not known"

_NUMBERS = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")

_newest: list[Attempt[OwnGpus]] = []


def allocated_gpus(environment: Mapping[str, str] = os.environ) -> OwnGpus:
    """Find them now, within `LOOK_S`, without raising: in `allocated` and `allocated_why`."""
    ids = gpu_ids(environment)
    if not ids:
        return OwnGpus()
    found = bounded(_newest, lambda: _look(ids)) if not isinstance(ids, str) else OwnGpus(why=ids)
    why = f"{UNKNOWN}: {found.why}" if found.why else ""
    return OwnGpus(allocated=found.uuids, allocated_why=why)


def gpu_ids(environment: Mapping[str, str]) -> tuple[int, ...] | str:
    """Read Slurm's numbers of the job's GPUs on this node; () if it names none. Pure.

    A text says why they are not known. `srun` hands SLURM_JOB_GPUS of the batch script's node on to
    every node, so it counts only where the job has one node. With --gpus-per-task SLURM_STEP_GPUS
    has only the task's own.
    """
    names = [name for name in (JOB, STEP) if environment.get(name, "")]
    if not names or not environment.get("SLURM_JOB_ID", ""):
        return ()
    if environment.get(NODES) != "1":
        if STEP not in names:
            return f"{JOB} is of the batch script's node alone, and the job has others"
        names = [STEP]
    found: set[int] = set()
    for name in names:
        text = environment[name]
        numbers = [int(each) for each in text.split(",")] if _NUMBERS.fullmatch(text) else []
        if not numbers or len({*numbers}) < len(numbers):
            return f"{name} is no list of numbers"
        found.update(numbers)
    return tuple(sorted(found))


def boards_of(boards: Sequence[NvmlBoard], ids: Sequence[int]) -> OwnGpus:
    """Find the boards that Slurm's numbers mean, in `uuids`, or why that is not certain. Pure.

    Args:
        boards: those that this process may open; a device cgroup hides the others.
        ids: Slurm's numbers, all different.
    """
    minors = {each.minor: each for each in boards if each.minor is not None}
    numbers = ",".join(map(str, ids))
    if any(each.sliced for each in boards):
        return OwnGpus(why="a board is cut into MIG slices, which Slurm numbers on their own")
    if not minors.keys() >= {*ids} or len(minors) < len(boards):
        shown = ",".join(sorted(str(each.minor) for each in boards)) or "none"
        return OwnGpus(why=f"Slurm numbers them {numbers}, and NVML shows {shown}")
    # Any order means the same where all boards that are visible are meant.
    if len(ids) < len(boards) and not _in_one_order(boards):
        return OwnGpus(
            why=f"Slurm numbers them {numbers}, and the node's boards are of several kinds or "
            "their device files in another order than their slots"
        )
    return OwnGpus(uuids=tuple(minors[each].uuid for each in ids))


def together(found: Iterable[OwnGpus], used: Iterable[str]) -> OwnGpus:
    """Join what the nodes of a job have found: the whole allocation, or none of it. Pure.

    Args:
        found: of each node.
        used: GPUs of the job's ranks; one that is not allocated shows that variables are of another
            job.
    """
    answers = tuple(found)
    why = next(filter(None, (each.allocated_why for each in answers)), "")
    all_of_it = tuple(dict.fromkeys(gpu for each in answers for gpu in each.allocated))
    strange = sorted({*filter(None, used)}.difference(all_of_it))
    if all_of_it and strange and not why:
        why = f"{UNKNOWN}: a rank computes on {strange[0]}, which is none of those it names"
    return OwnGpus(allocated_why=why) if why else OwnGpus(allocated=all_of_it)


def _in_one_order(boards: Sequence[NvmlBoard]) -> bool:
    """Whether slots, device files and kinds give one order, counted from 0."""
    in_slots = [each.minor for each in boards] == list(range(len(boards)))
    return in_slots and len({each.name for each in boards}) == 1


def _look(ids: Sequence[int]) -> OwnGpus:
    try:
        return boards_of(node_boards(), ids)
    except ImportError:
        return OwnGpus(why=NO_BINDING)
