"""Which job this is, how ranks are divided, what is held as asked for, how long nodes take."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from wattmesh.errors import InputInvalid
from wattmesh.integrations.slurm.answers import SlurmJob
from wattmesh.integrations.slurm.client import without_job
from wattmesh.integrations.slurm.own_job import (
    LaunchShape,
    OwnJob,
    own_shape,
    script_arguments,
    shape_of,
)
from wattmesh.integrations.slurm.slurm_queue import begin_word, earlier, not_as_asked, state_of
from wattmesh.reconfig.launcher import queue_waits
from wattmesh.reconfig.launcher.contract import HeldState
from wattmesh.reconfig.launcher.launch_book import BookedState, LaunchRecord

NOW = datetime(2026, 11, 24, 3, tzinfo=UTC)
JOB = {"SLURM_JOB_ID": "17", "SLURM_CLUSTER_NAME": "alps", "SLURM_JOB_NUM_NODES": "2"}
HELD = SlurmJob(
    number=18,
    uid=0,
    state="PENDING",
    submitted_at=NOW,
    begins_at=None,
    nodes=2,
    reason="Dependency",
    gpus="gres:gpu:8",
    memory="0",
    features="",
    mark="r.a",
)


def test_a_batch_job_knows_itself() -> None:
    """By its cluster and id, over requeues."""
    own = OwnJob.read({**JOB, "SLURM_RESTART_COUNT": "3"})
    assert (own.name, own.requeues, own.nodes) == ("alps/17", 3, 2)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"SLURM_JOB_ID": ""}, "start this in a batch script"),
        ({"SLURM_ARRAY_JOB_ID": "17"}, "a job array"),
        ({"SLURM_HET_SIZE": "2"}, "a heterogeneous job"),
    ],
)
def test_what_can_have_no_successor_is_refused(more: dict[str, str], why: str) -> None:
    """Before anything starts."""
    with pytest.raises(InputInvalid, match=why):
        OwnJob.read({**JOB, **more})


@pytest.mark.parametrize(
    ("more", "asked", "per_node"),
    [
        ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "8"}, None, 4),
        ({"SLURM_NTASKS_PER_NODE": "4(x2)"}, None, 4),
        ({"SLURM_GPUS_ON_NODE": "8"}, None, 8),
        ({"SLURM_GPUS_ON_NODE": "8"}, 2, 2),
    ],
)
def test_ranks_of_a_node(more: dict[str, str], asked: int | None, per_node: int) -> None:
    """What was asked for, else its tasks, else its GPUs."""
    assert own_shape({**JOB, **more}, asked) == LaunchShape(nodes=2, per_node=per_node)


def test_ranks_of_a_node_that_nothing_tells_are_asked_for() -> None:
    """They are never guessed."""
    with pytest.raises(InputInvalid, match="--ranks-per-node"):
        own_shape(JOB, None)


@pytest.mark.parametrize(
    ("ranks", "most", "nodes", "per_node"),
    [(16, 8, 2, 8), (4, 8, 1, 4), (12, 8, 2, 6), (1, 1, 1, 1)],
)
def test_ranks_are_divided_equally(ranks: int, most: int, nodes: int, per_node: int) -> None:
    """Among as few nodes as hold them."""
    assert shape_of(ranks, most) == LaunchShape(nodes=nodes, per_node=per_node)


@pytest.mark.parametrize(("ranks", "most"), [(9, 8), (0, 8), (-8, 8), (17, 8)])
def test_ranks_that_do_not_divide_are_refused(ranks: int, most: int) -> None:
    """With a sentence, and no submission."""
    with pytest.raises(InputInvalid, match="do not divide"):
        shape_of(ranks, most)


def test_a_job_hands_nothing_of_its_own_to_the_next() -> None:
    """Options of the first job's environment would count for the second job's steps."""
    mine = {
        **{"PATH": "/bin", "SLURM_CONF": "/c", "WATTMESH_TOKEN_FILE": "/t", "MODULES": "x"},
        **{"SLURM_NTASKS": "4", "SBATCH_HOLD": "1", "SQUEUE_FORMAT": "%i", "PMI_RANK": "0"},
        **{"CUDA_VISIBLE_DEVICES": "0", "WATTMESH_LAUNCH": "t", "WATTMESH_SLURM_KEY": "a"},
    }
    assert set(without_job(mine)) == {"PATH", "SLURM_CONF", "WATTMESH_TOKEN_FILE", "MODULES"}


def test_a_batch_scripts_arguments_are_found_in_the_process_tree(tmp_path: Path) -> None:
    """Where the script replaced itself they are not known, which is not the same as none."""
    for pid, parent, words in (
        ("30", "20", ["python", "-m", "wattmesh.integrations.slurm"]),
        ("20", "10", ["/bin/bash", "/var/spool/job17/slurm_script", "a b", "--x"]),
        ("10", "0", ["slurmstepd: [17.batch]"]),
    ):
        folder = tmp_path / pid
        folder.mkdir()
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        (folder / "stat").write_text(f"{pid} (some ) name) S {parent} 1 1")
    assert script_arguments(tmp_path, "30") == ["a b", "--x"]
    assert script_arguments(tmp_path, "10") is None


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (HELD, ""),
        (replace(HELD, nodes=1), "it asks for 1 nodes, not 2"),
        (replace(HELD, reason="JobHeldUser"), "--hold"),
        (replace(HELD, reason="JobHeldAdmin"), "--hold"),
        (replace(HELD, gpus=""), "its gpus on each node are none"),
        (replace(HELD, memory="8G"), "its memory on each node are 8G"),
        (replace(HELD, features="a100"), "its features on each node are a100"),
    ],
)
def test_what_was_submitted_is_compared_with_what_was_asked(held: SlurmJob, why: str) -> None:
    """A site's plugin, or an option of the command line, may have made another job of it."""
    said = not_as_asked(held, LaunchShape(nodes=2, per_node=8), replace(HELD, number=17, nodes=1))
    assert why in said
    assert bool(said) is bool(why)


@pytest.mark.parametrize(
    ("state", "jobs", "found", "is_now"),
    [
        (BookedState.ASKED, (), (), None),
        (BookedState.ASKED, (), (HELD,), HeldState.HELD),
        (BookedState.HELD, ("alps/18",), (HELD,), HeldState.HELD),
        (BookedState.HELD, ("alps/18",), (replace(HELD, state="CANCELLED"),), HeldState.WITHDRAWN),
        (BookedState.HELD, ("alps/18",), (), HeldState.WITHDRAWN),
        (
            BookedState.HELD,
            ("alps/18",),
            (replace(HELD, reason="JobHeldAdmin"),),
            HeldState.WITHDRAWN,
        ),
        (BookedState.WITHDRAWN, ("alps/18",), (HELD,), HeldState.WITHDRAWN),
        (BookedState.BEGUN, ("alps/18",), (replace(HELD, state="RUNNING"),), HeldState.STARTED),
        (BookedState.BEGUN, ("alps/18",), (), HeldState.ENDED),
    ],
)
def test_what_became_of_a_launch(
    state: BookedState, jobs: tuple[str, ...], found: tuple[SlurmJob, ...], is_now: HeldState | None
) -> None:
    """The book says who may train, Slurm who still can."""
    begun_by = "alps/18" if state is BookedState.BEGUN else ""
    record = LaunchRecord(key="a", ranks=2, state=state, jobs=jobs, begun_by=begun_by)
    assert state_of(record, found, "alps") is is_now


def test_a_time_is_given_in_seconds_that_no_zone_shifts() -> None:
    """`uts` is Slurm's own word for them."""
    assert begin_word(None) == "now"
    assert begin_word(NOW) == f"uts{int(NOW.timestamp())}"


@pytest.mark.parametrize(("behind_s", "sooner_s"), [(0, 0), (1, 0), (3600, 3600), (-3600, 0)])
def test_a_job_begins_by_the_clock_that_is_first(behind_s: int, sooner_s: int) -> None:
    """A controller behind us is told an earlier time; one that is ahead comes early by itself."""
    submitted = NOW - timedelta(seconds=behind_s)
    begins_at = NOW + timedelta(hours=5)
    assert earlier(begins_at, NOW, submitted) == begins_at - timedelta(seconds=sooner_s)
    assert earlier(begins_at, NOW, None) == begins_at


def test_no_bound_is_named_from_too_few_waits() -> None:
    """Nineteen is the least number of which one can be above 95 % of all."""
    assert queue_waits.reacquire_s([5.0] * (queue_waits.FEWEST - 1)) is None
    assert queue_waits.reacquire_s([5.0] * (queue_waits.FEWEST - 1) + [9.0]) == 9.0


def test_the_bound_is_exceeded_in_at_most_one_case_of_twenty() -> None:
    """In 2,000 draws from a heavy tail, 40 waits known each time."""
    draw = random.Random(7)
    exceeded = 0
    for _ in range(2000):
        known = [draw.paretovariate(1.2) for _ in range(40)]
        bound = queue_waits.reacquire_s(known)
        assert bound is not None
        exceeded += draw.paretovariate(1.2) > bound
    assert exceeded / 2000 <= 0.05
