"""Checkpoints: whole or not at all, damage named before anything is loaded, the rest goes on."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import TP2, Run, Zygote, until, worst_difference
from wattmesh.errors import CallHuman, CheckpointDamaged, InputInvalid
from wattmesh.reconfig.checkpoint.checkpoint import prune, read_whole
from wattmesh.reconfig.hook.launching import start
from wattmesh.reconfig.hook.launching.start import AttachRequest, first_generation, newest_whole
from wattmesh.reconfig.launch.attempt import LaunchIdentity
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.supervisor import EXIT_REFUSED
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.universal.against import matches_memory
from wattmesh.reconfig.universal.folder import COMMIT, open_checkpoint
from wattmesh.reconfig.universal.verify import verify

Undisturbed = Callable[[int, str], dict[int, float]]
FILES = (
    "manifest.json",
    "COMMIT",
    "trainer.json",
    "index.json",
    "index.safetensors",
    "data-0-0.safetensors",
    "data-1-0.safetensors",
)


@pytest.fixture(scope="module")
def finished(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 15 steps that has ended, with three checkpoints."""
    run = Run(zygote, tmp_path_factory.mktemp("finished"), 2, steps=15, boundary_every=5)
    assert run.once() == 0, run.log()
    return run


@pytest.fixture
def folder(finished: Run, tmp_path: Path) -> RunFolder:
    """A copy of the finished run's folder, to be damaged."""
    shutil.copytree(finished.checkpoints, tmp_path / "ck")
    return RunFolder(tmp_path / "ck")


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lengthen(path: Path) -> None:
    """Append a byte."""
    with path.open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("damage", [flip, truncate, lengthen, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_file_is_named(
    folder: RunFolder, name: str, damage: Callable[[Path], None]
) -> None:
    """One bit, one byte, half a file or a whole file: the message names what is wrong."""
    newest = folder.checkpoints()[0]
    read_whole(newest)
    damage(newest / name)
    named = name if name not in ("manifest.json", "COMMIT") else "manifest.json|COMMIT"
    with pytest.raises(CheckpointDamaged, match=named):
        read_whole(newest)


def test_the_files_hold_what_was_in_memory(folder: RunFolder) -> None:
    """The digest taken before the save, from device memory, is that of the bytes on the disk."""
    for each in folder.checkpoints():
        assert verify(each).good
        assert matches_memory(open_checkpoint(each)) is True
    newest = folder.checkpoints()[0]
    index = open_checkpoint(newest).index
    row = index.segments_of(index.rows[index.entries[0].key]).start
    with (newest / index.files[int(index.segments.file[row])]).open("r+b") as file:
        file.seek(int(index.segments.offset[row]))
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    assert matches_memory(open_checkpoint(newest)) is False


def test_the_newest_whole_checkpoint_is_taken(folder: RunFolder) -> None:
    """A damaged one is passed over, not deleted; when all are damaged a human is called."""
    newest, middle, oldest = folder.checkpoints()
    flip(newest / "data-0-0.safetensors")
    found = newest_whole(folder)
    assert found is not None
    assert found[0] == middle
    assert newest.exists()
    truncate(middle / "index.json")
    (oldest / "COMMIT").unlink()
    with pytest.raises(CallHuman, match=r"every checkpoint .* is damaged"):
        newest_whole(folder)


def test_a_run_resumes_before_the_damage(
    zygote: Zygote, finished: Run, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """With its newest checkpoint damaged, a run trains those steps again, to the same losses."""
    run = Run(zygote, tmp_path, 2, steps=20, boundary_every=5)
    shutil.copytree(finished.checkpoints, run.checkpoints)
    flip(run.checkpoints / "step-00000015" / "data-1-0.safetensors")
    assert run.once() == 0, run.log()
    assert [line["step"] for line in run.lines()] == list(range(11, 21))
    expected = undisturbed(20, "float32")
    assert worst_difference(run.losses(), {s: expected[s] for s in range(11, 21)}) == 0.0
    assert "step-00000015: data-1-0.safetensors has changed: " in run.log()
    assert "resumes from step-00000010" in run.log()
    assert list(run.checkpoints.glob("step-00000015.set-aside-*"))


def test_another_dtype_is_an_error_not_a_cast(
    zygote: Zygote, finished: Run, tmp_path: Path
) -> None:
    """A job that builds its model in another dtype is told so, and is not started again."""
    run = Run(zygote, tmp_path, 2, steps=20, boundary_every=5, dtype="float64")
    shutil.copytree(finished.checkpoints, run.checkpoints)
    assert run.supervised() == EXIT_REFUSED, run.said
    assert "was saved as float32" in run.said[-1]
    assert run.lines() == []


def test_a_full_disk_does_not_stop_training(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The checkpoint is given up with one sentence, the switch with it; the next one is saved."""
    wish = Wish(layout=TP2, ranks=(0, 1), at=10)
    run = Run(
        zygote,
        tmp_path,
        2,
        steps=15,
        boundary_every=5,
        wait_for={"10": "order-1"},
        file_limit_at=10,
    ).with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.once() == 0, run.log()
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0
    assert run.layouts() == ["dp2"]
    names = sorted(each.name for each in run.checkpoints.iterdir() if "step-" in each.name)
    assert names == ["step-00000005", "step-00000015"]
    assert "the checkpoint of step 10 was not saved" in run.log()
    assert "make room on the disk" in run.log()
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert "no checkpoint" in daemon.heard.transitions[-1].detail


def test_a_newer_attempt_fences_an_older_one(zygote: Zygote, tmp_path: Path) -> None:
    """Where a higher attempt number was claimed, the launch ends without publishing."""
    run = Run(zygote, tmp_path, 2, steps=15, boundary_every=5, wait_for={"10": "go"})
    run.launch({})
    until((run.checkpoints / "step-00000005").exists, "the first checkpoint")
    (run.checkpoints / "attempts" / "0009").write_text("{}")
    (run.out / "go").touch()
    assert run.zygote.wait(run.launches[0]) != 0
    assert "attempt 9 of this run exists, this is attempt 1" in run.log()
    assert [each.name for each in RunFolder(run.checkpoints).checkpoints()] == ["step-00000005"]
    assert not list(run.checkpoints.glob(".*staging"))


def test_a_second_launch_of_a_live_run_is_refused(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The second is told who holds the run; the first does not notice."""
    run = Run(zygote, tmp_path, 2, steps=15, boundary_every=5, wait_for={"10": "go"})
    run.launch({})
    until((run.checkpoints / "step-00000005").exists, "the first checkpoint")
    other = Run(zygote, tmp_path / "other", 2, steps=15, boundary_every=5)
    other.change(folder=str(run.checkpoints))
    assert other.supervised() == EXIT_REFUSED
    pid = zygote.pids(run.launches[0])[0]
    assert f"pid {pid} holds it" in other.said[-1]
    (run.out / "go").touch()
    assert zygote.wait(run.launches[0]) == 0, run.log()
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0


def test_prune_keeps_the_newest_and_the_protected(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run resumed from stays, however old; of the rest COMMIT goes first, durably."""
    newest, middle, oldest = folder.checkpoints()
    durable = list[set[str]]()
    monkeypatch.setattr(os, "fsync", lambda fd: durable.append(set(os.listdir(fd))))
    whole = set(os.listdir(middle))
    prune(folder, keep=1, protected={oldest.name})
    assert folder.checkpoints() == [newest, oldest]
    assert durable == [whole - {COMMIT}]


def wanted(launched: int, layout: Layout) -> AttachRequest:
    """What `attach` was asked for."""
    return AttachRequest(layout=layout, ranks=None, launched=launched)


def identity(folder: RunFolder, run: str = "") -> LaunchIdentity:
    """A launch of the run that wrote the checkpoints in `folder`."""
    known = read_whole(folder.checkpoints()[0]).run
    return LaunchIdentity(run=run or known, name="r", incarnation="i", attempt=2, supersedes=None)


def test_a_launch_with_fewer_ranks_takes_the_layout_it_asked_for(folder: RunFolder) -> None:
    """The checkpoint's own layout holds where it fits; else the caller's; else nothing."""
    begun = first_generation(folder, identity(folder), wanted(4, Layout(tp=4)))
    assert begun.generation.layout == Layout(dp_shard=2)
    begun = first_generation(folder, identity(folder), wanted(1, Layout()))
    assert begun.generation.layout == Layout()
    assert begun.generation.step == 15
    with pytest.raises(InputInvalid, match="started 1 ranks; launch at least 2"):
        first_generation(folder, identity(folder), wanted(1, Layout(tp=2)))


def test_a_job_with_its_own_checkpointer_has_its_experts_by_number_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That one stores rows as they lie; the checkpoint to load has them by number anyway."""
    rows = ((1, 0),)
    monkeypatch.setattr(start, "read_whole", lambda path: replace(read_whole(path), placement=rows))
    asked = wanted(2, Layout(dp_shard=2))
    begun = first_generation(folder, identity(folder), asked)
    assert begun.generation.placement == rows
    own = first_generation(folder, identity(folder), replace(asked, own_save=True))
    assert own.generation.placement == ()
    assert "in the order of their numbers again" in caplog.text


def test_checkpoints_of_another_run_call_a_human(folder: RunFolder) -> None:
    """Two runs' checkpoints in one folder are not guessed apart."""
    with pytest.raises(CallHuman, match="two runs were mixed"):
        first_generation(folder, identity(folder, run="other"), wanted(2, Layout(tp=2)))
