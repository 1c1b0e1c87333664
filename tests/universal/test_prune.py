"""What pruning may take, and what it never takes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.universal.sources import foreign
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.launch.attempt import AttemptLock
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.prune import PruneCandidate, decide, prune
from wattmesh.reconfig.universal.sources.own import open_own
from wattmesh.reconfig.universal.sources.source import Source
from wattmesh.reconfig.universal.verify import hash_in_background, verify


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A foreign checkpoint."""
    (tmp_path / "src").mkdir()
    return foreign.write(tmp_path / "src")[0]


@pytest.fixture
def run(tmp_path: Path, source: Source) -> Path:
    """Four physical checkpoints, steps 1 to 4."""
    folder = tmp_path / "run"
    folder.mkdir()
    for step in range(1, 5):
        write_physical(source, folder / f"step-{step:08d}")
    return folder


def left(folder: Path) -> set[int]:
    """Steps that are there."""
    return {int(each.name[5:]) for each in folder.glob("step-*")}


def test_the_newest_stay(run: Path) -> None:
    """The rest goes, without a trace; what a dry run says is what happens."""
    (run / "notes").mkdir()
    (run / "notes" / "COMMIT").write_text("not ours")
    (run / "link").symlink_to("step-00000001")
    said = prune(run, keep=2, dry_run=True)
    assert left(run) == {1, 2, 3, 4}
    assert prune(run, keep=2) == said
    assert left(run) == {3, 4}
    assert {each.name for each in run.iterdir()} == {
        *("step-00000003", "step-00000004", "notes", "link")
    }
    assert [each.kept for each in said] == [True, True, False, False]


def test_a_protected_one_stays(run: Path) -> None:
    """By name."""
    prune(run, keep=1, protected={"step-00000002"})
    assert left(run) == {2, 4}


def test_the_newest_verified_one_stays(run: Path, source: Source) -> None:
    """However many unverified ones are newer; once one of them is hashed, it may go."""
    for step in (5, 6):
        write_virtual(source, run / f"step-{step:08d}")
    prune(run, keep=2)
    assert left(run) == {4, 5, 6}
    hash_in_background(run / "step-00000005")
    prune(run, keep=2)
    assert left(run) == {5, 6}


def test_what_a_virtual_one_points_to_stays(run: Path, tmp_path: Path) -> None:
    """Wherever the virtual one is; when both go, both go."""
    write_virtual(open_own(run / "step-00000001"), tmp_path / "elsewhere")
    verdicts = prune(run, keep=1)
    assert left(run) == {1, 4}
    assert verdicts[-1].why == "a virtual checkpoint points to it"
    shutil.rmtree(tmp_path / "elsewhere")
    (run / "step-00000001").rename(run / "step-00000002")
    write_virtual(open_own(run / "step-00000002"), run / "step-00000003")
    prune(run, keep=1)
    assert left(run) == {4}


def test_a_damaged_one_is_for_a_person(run: Path) -> None:
    """It neither goes nor counts; half of one that was being deleted is finished."""
    (run / "step-00000004" / "COMMIT").unlink()
    os.truncate(run / "step-00000003" / "data-00000.safetensors", 5000)
    shutil.copytree(run / "step-00000001", run / ".step-00000009.abc.deleted")
    verdicts = prune(run, keep=1)
    assert left(run) == {2, 3, 4}
    assert [each.why.startswith("damaged") for each in verdicts] == [True, True, False, False]
    assert not list(run.glob(".*"))


HOLDER = """
import sys, time
from pathlib import Path
from wattmesh.reconfig.launch.attempt import AttemptLock
from wattmesh.reconfig.launch.folder import RunFolder
claim = AttemptLock(RunFolder(Path(sys.argv[1])), "job")
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """A job that holds the run's lock."""
    job = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdin is not None
    assert job.stdout is not None
    try:
        assert job.stdout.readline() == "holds\n"
        yield
    finally:
        job.stdin.close()
        job.wait()
        job.stdout.close()


def test_what_a_running_job_may_have_resumed_from_stays(run: Path, source: Source) -> None:
    """Everything that was there when it was launched; after its end, all may go."""
    with running(run):
        for step in (5, 6, 7):
            write_physical(source, run / f"step-{step:08d}")
        prune(run, keep=1)
        assert left(run) == {1, 2, 3, 4, 7}
    prune(run, keep=1)
    assert left(run) == {7}
    assert RunFolder(run).lock.exists()


def test_a_job_that_prunes_its_own_folder_keeps_its_lock(run: Path) -> None:
    """A process loses a POSIX lock by closing any descriptor of the file: another could launch."""
    folder = RunFolder(run)
    with closing(AttemptLock(folder, "job")):
        prune(run, keep=1)
        other = f"from fcntl import *; lockf(open({str(folder.lock)!r}, 'r+'), LOCK_EX | LOCK_NB)"
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, check=False)
    assert b"BlockingIOError" in done.stderr
    assert left(run) == {1, 2, 3, 4}


def test_nonsense_is_refused(tmp_path: Path) -> None:
    """A folder that is none, keeping nothing."""
    with pytest.raises(InputInvalid, match="no folder"):
        prune(tmp_path / "none", keep=1)
    with pytest.raises(InputInvalid, match="at least 1"):
        prune(tmp_path, keep=0)


CANDIDATES = st.builds(
    PruneCandidate,
    name=st.uuids().map(str),
    step=st.integers(-1, 5),
    published_ns=st.integers(1, 9),
    problem=st.sampled_from(["", "", "", "damaged"]),
    verified=st.booleans(),
    virtual=st.booleans(),
    links=st.lists(
        st.tuples(st.tuples(st.just(1), st.integers(0, 3)), st.integers(1, 3)), max_size=2
    ).map(tuple),
)


@given(
    st.lists(CANDIDATES, max_size=8, unique_by=lambda each: each.name),
    st.integers(1, 4),
    st.none() | st.integers(1, 9),
    st.data(),
)
def test_what_may_never_go(
    found: list[PruneCandidate], keep: int, launched_ns: int | None, data: st.DataObject
) -> None:
    """The rules of the module, one by one, on any folder."""
    names = [each.name for each in found]
    protected = data.draw(st.sets(st.sampled_from(names))) if names else set()
    verdicts = decide(found, keep=keep, protected=protected, launched_ns=launched_ns)
    assert {each.name for each in verdicts} == set(names)
    gone = [each for each in found if not {v.name: v.kept for v in verdicts}[each.name]]
    kept = [each for each in found if each not in gone]
    assert not any(each.name in protected or each.problem for each in gone)
    assert not any(launched_ns is not None and each.published_ns <= launched_ns for each in gone)
    if gone:
        assert sum(not each.problem for each in kept) >= keep
    for each in gone:
        newer = [other for other in kept if other.verified and not other.problem]
        assert not each.verified or any(other.step >= each.step for other in newer)
        leaving = [inode for other in gone for inode, _ in other.links]
        assert each.virtual or all(n <= leaving.count(inode) for inode, n in each.links)


def test_pruned_ones_leave_the_rest_good(run: Path) -> None:
    """What stays verifies."""
    prune(run, keep=1)
    assert verify(run / "step-00000004").good
