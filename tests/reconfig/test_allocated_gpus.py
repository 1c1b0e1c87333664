"""Which boards Slurm's variables mean: all of them without doubt, or a sentence."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.reconfig.gpus.allocated_gpus import (
    UNKNOWN,
    allocated_gpus,
    boards_of,
    gpu_ids,
    together,
)
from wattmesh.reconfig.gpus.own_gpus import NvmlBoard, OwnGpus
from wattmesh.reconfig.launch.peers import RankProcess
from wattmesh.telemetry.fake_nvml import FakeNvml

ONE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
TWO = ONE | {"SLURM_JOB_NUM_NODES": "2"}
JOB, STEP = "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"
BAD = (
    *("0-3", "0,1,", ",", "0,,1", "1,1", "-1", "0x1", "1.0", "GPU-aa11", "99999", "0 1", " ", "\n"),
    *("\u0662", "\u00b2", "0;1", "gpu:0", "0\x00", "\udcff", "9" * 5000, "0," * 5000),
)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ()),
        (ONE, ()),  # a job without GPUs
        (ONE | {JOB: "", STEP: ""}, ()),
        ({JOB: "0,1"}, ()),  # of a job that this is not
        (ONE | {JOB: "2,3"}, (2, 3)),  # a batch script
        (ONE | {JOB: "3,2,10"}, (2, 3, 10)),
        (ONE | {STEP: "2,3"}, (2, 3)),  # srun within salloc
        # A step, or a task of it, has fewer than its job.
        (ONE | {JOB: "0,1,2,3", STEP: "2"}, (0, 1, 2, 3)),
        # On several nodes the one variable is of another node.
        (TWO | {JOB: "0,1", STEP: "4,5"}, (4, 5)),
        (TWO | {JOB: "0,1"}, "the batch script's node alone"),
        ({"SLURM_JOB_ID": "7", JOB: "0,1"}, "the batch script's node alone"),
        *((ONE | {JOB: bad}, "no list of numbers") for bad in BAD),
        *((ONE | {JOB: "0", STEP: bad}, "no list of numbers") for bad in BAD),
    ],
)
def test_slurms_numbers_are_read_or_said_to_be_unknown(
    environment: Mapping[str, str], found: tuple[int, ...] | str
) -> None:
    """Nonsense is no number, and not none either."""
    told = gpu_ids(environment)
    if isinstance(found, str):
        assert isinstance(told, str)
        assert found in told
    else:
        assert told == found


def node(*minors: int | None) -> tuple[NvmlBoard, ...]:
    """Give boards in the order of their slots, with the numbers of their device files."""
    return tuple(NvmlBoard(uuid=f"GPU-{each}", name="H100", minor=each) for each in minors)


MIXED = tuple(replace(each, name="T4") if each.minor == 3 else each for each in node(0, 1, 2, 3))
SLICED = tuple(replace(each, sliced=each.minor == 0) for each in node(0, 1, 2, 3))
TURNED = node(3, 2, 1, 0)


@pytest.mark.parametrize(
    ("boards", "ids", "found"),
    [
        (node(0, 1, 2, 3), (1, 2), ["GPU-1", "GPU-2"]),
        (node(0, 1, 2, 3), (0, 1, 2, 3), ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        # A device cgroup hides the others: NVML counts anew, device files keep their numbers.
        (node(2, 3), (2, 3), ["GPU-2", "GPU-3"]),
        (node(2, 3), (2,), "in another order than their slots"),
        # It shows less than the job has, as a step's: the rest could not be named.
        (node(2, 3), (1, 2, 3), "NVML shows 2,3"),
        (node(0, 1), (2, 3), "NVML shows 0,1"),
        ((), (0,), "NVML shows none"),
        # Slots and device files may be ordered differently: Slurm may count either.
        (TURNED, (0, 1), "in another order than their slots"),
        (TURNED, (0, 1, 2, 3), ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        # Slurm may count kind by kind.
        (MIXED, (0, 1), "of several kinds"),
        (MIXED, (0, 1, 2, 3), ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        (SLICED, (1,), "MIG"),
        (node(0, 1, None), (0,), "NVML shows"),
        (node(0, 0), (0,), "NVML shows"),
    ],
)
def test_numbers_mean_boards_only_where_every_order_is_the_same(
    boards: tuple[NvmlBoard, ...], ids: tuple[int, ...], found: list[str] | str
) -> None:
    """In doubt none is named."""
    told = boards_of(boards, ids)
    if isinstance(found, str):
        assert told.uuids == ()
        assert found in told.why
    else:
        assert told == OwnGpus(uuids=tuple(found))


@given(
    order=st.permutations(range(4)),
    seen=st.sets(st.integers(0, 3)),
    mine=st.sets(st.integers(0, 3), min_size=1),
    by_minor=st.booleans(),
)
def test_whatever_order_a_site_counts_in_no_other_board_is_named(
    order: list[int], seen: set[int], mine: set[int], by_minor: bool
) -> None:
    """Brute force over nodes whose device files are in any order, and cgroups that hide some."""
    boards = node(*order)
    meant = [each for slot, each in enumerate(boards) if (each.minor if by_minor else slot) in mine]
    # A cgroup hides nothing that the job has, or it is none of Slurm's.
    shown = [each for slot, each in enumerate(boards) if slot in seen or each in meant]
    constrained = [each for each in boards if each in meant]
    for visible in (boards, constrained) if shown else (boards,):
        told = boards_of(visible, sorted(mine))
        assert {*told.uuids} in (set(), {each.uuid for each in meant}), (visible, mine)


def test_counting_in_one_order_only_would_name_others() -> None:
    """Sabotaged twins: places of a list that a cgroup has cut, and device files that are turned."""
    assert [node(2, 3, 5)[place].uuid for place in (0, 2)] != ["GPU-0", "GPU-2"]
    by_place = {TURNED[place].uuid for place in (0, 1)}
    by_file = {each.uuid for each in TURNED if each.minor in (0, 1)}
    assert by_place != by_file
    assert (boards_of(node(2, 3, 5), (0, 2)).uuids, boards_of(TURNED, (0, 1)).uuids) == ((), ())


def test_a_job_on_several_nodes_is_known_whole_or_not_at_all() -> None:
    """One node's doubt is the job's; so is a rank's GPU that is none of those named."""
    here, there = OwnGpus(allocated=("A", "B")), OwnGpus(allocated=("C",))
    assert together([here, there, here], ["A", "C", ""]) == OwnGpus(allocated=("A", "B", "C"))
    doubt = OwnGpus(allocated_why="no")
    assert together([here, doubt], ["A"]) == doubt
    stale = together([here], ["A", "X"])
    assert (stale.allocated, stale.allocated_why) == (
        (),
        f"{UNKNOWN}: a rank computes on X, which is none of those it names",
    )
    assert together([OwnGpus(), OwnGpus()], ["A"]) == OwnGpus()


def test_ranks_tell_rank_0_what_their_nodes_have() -> None:
    """As it was found, over the launch's store; a rank of a launch without Slurm tells nothing."""
    for told in (
        RankProcess.here(0, "A", "", ("A", "B"), ""),
        RankProcess.here(0, "", "why", (), UNKNOWN),
    ):
        assert RankProcess.from_json(told.to_json()) == told
    assert RankProcess.here(0, "A").allocated == ()


def test_a_real_library_names_what_slurm_numbers(tmp_path: Path) -> None:
    """Through NVML's own binding, in a process of its own; a missing library is a sentence."""
    fake = FakeNvml.create(tmp_path / "gpus", 3)
    code = (
        "from wattmesh.reconfig.gpus.allocated_gpus import allocated_gpus\n"
        "found = allocated_gpus(); print('|'.join(found.allocated), found.allocated_why)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**fake.environment(), **ONE, JOB: "0,2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{fake.gpu(0).uuid}|{fake.gpu(2).uuid} \n"
    assert allocated_gpus({}) == OwnGpus()
    assert (
        allocated_gpus(ONE | {JOB: "x"}).allocated_why == f"{UNKNOWN}: {JOB} is no list of numbers"
    )
