"""The fast path: a switch goes on before its checkpoint is on disk, and nothing is lost by it."""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, TP2, Run, Zygote, until, worst_difference
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.checkpoint import read_whole
from wattmesh.reconfig.checkpoint.in_memory.early_rebuild import (
    HEADROOM,
    RankResources,
    free_memory,
    refusal,
)
from wattmesh.reconfig.checkpoint.in_memory.host_memory import HostMemory
from wattmesh.reconfig.hook.background_fsync import (
    BackgroundFsync,
    StagedCheckpoint,
    durable_name,
    settle,
)
from wattmesh.reconfig.hook.job import AttachedJob
from wattmesh.reconfig.hook.launching.start import newest_whole
from wattmesh.reconfig.launch.failures.deadlines import Deadlines
from wattmesh.reconfig.launch.folder import RunFolder, attempt_of
from wattmesh.reconfig.switch import SwitchState

Undisturbed = Callable[[int, str], dict[int, float]]

GOOD = RankResources(
    state_bytes=1000,
    free_bytes=10_000,
    disk_bytes=10_000,
    host="a k1",
    next_hosts=("a k1", "b k2"),
    durable="step-00000010",
    failed="",
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": "c k3"}, "no rank of c trains in the new layout"),
        ({"host": "a k2"}, "no rank of a trains in the new layout"),
        ({"durable": ""}, "no durable checkpoint to go back to"),
        ({"failed": "OSError: disk full"}, "disk full"),
        ({"free_bytes": 2999}, "0 MB of memory are free on a"),
        ({"free_bytes": 1499, "host": "b k2"}, "of memory are free on b"),
        ({"disk_bytes": 2999}, "free on the disk"),
    ],
)
def test_one_rank_without_footing_makes_all_wait_for_the_disk(
    change: dict[str, object], words: str
) -> None:
    """Each reason has its sentence; without any, two ranks with 2 kB and 3 kB of room may go.

    Memory is each host's own, the disk is one for all.
    """
    assert refusal([GOOD, replace(GOOD, **change)]).find(words) >= 0  # type: ignore[arg-type]
    just_enough = replace(GOOD, free_bytes=int(2000 * HEADROOM), next_hosts=())
    assert refusal([GOOD, just_enough]) == ""
    alone = replace(GOOD, host="b k2", free_bytes=int(1000 * HEADROOM), next_hosts=())
    assert refusal([GOOD, alone]) == ""


def test_free_memory_heeds_the_kernel_and_every_control_group(tmp_path: Path) -> None:
    """The tightest of MemAvailable and the limits on the way up counts; nothing known is none."""
    meminfo, own = tmp_path / "meminfo", tmp_path / "own"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    own.write_text("0::/jobs/one\n")
    group = tmp_path / "groups" / "jobs" / "one"
    group.mkdir(parents=True)
    assert free_memory(meminfo, tmp_path / "groups", own) == 500 * 1024
    for folder, limit in ((group, "max"), (group.parent, "300000")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("200000")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 50000\n")
    assert free_memory(meminfo, tmp_path / "groups", own) == 150_000
    assert free_memory(tmp_path / "missing", tmp_path / "groups", own) == 0


def switched(
    zygote: Zygote, folder: Path, socket: Path, **options: object
) -> tuple[Run, FakeDaemon]:
    """A run that saves at 5 and switches at 10, with its daemon (not begun)."""
    run = Run(zygote, folder, 2, steps=20, boundary_every=5, wait_for={"10": "order-1"}, **options)
    wish = Wish(layout=TP2, ranks=(1, 0), at=10)
    return run.with_daemon(socket), FakeDaemon(socket, run.out, [wish])


def test_a_switch_goes_on_before_its_checkpoint_is_durable(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Losses stay, the evidence says where a restart would begin, and afterwards it is on disk."""
    run, daemon = switched(zygote, tmp_path, socket_path)
    with daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "tp2"]
    assert worst_difference(run.losses(), undisturbed(20, "float32")) <= 1e-5
    evidence = daemon.heard.transitions[-1].evidence
    assert daemon.states()[-1] is SwitchState.CONFIRMED
    assert evidence["checkpoint"].startswith("in shared memory, made durable")
    assert "a restart begins from step-00000005" in evidence["checkpoint"]
    assert evidence["digest_before"] == evidence["digest_after"]
    assert read_whole(run.checkpoints / "step-00000010").step == 10
    assert not list(run.checkpoints.glob(".*staging"))


def test_the_first_save_of_a_run_is_never_left_to_the_page_cache(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """With nothing durable to go back to, the switch waits for the disk and says so."""
    run = Run(zygote, tmp_path, 2, steps=10, boundary_every=5, wait_for={"5": "order-1"})
    wish = Wish(layout=TP2, ranks=(0, 1), at=5)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.with_daemon(socket_path).once() == 0, run.log()
    told = daemon.heard.transitions[-1].evidence["checkpoint"]
    assert told.startswith("on disk before the switch: there is no durable checkpoint")


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("can't start new thread")])
def test_whatever_the_background_fails_with_is_a_reason_to_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The next switch hears of it, and nothing half written is left."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(checkpoint, "settle", fail)
    folder, memory, asked = RunFolder(tmp_path), HostMemory(), list[bool]()
    staged = StagedCheckpoint(name=folder.staging(10, 1).name, step=10, attempt=1)
    memory.hosts = (memory.here, "another boot")

    def peek(_: str) -> str | None:
        asked.append((tmp_path / staged.name).exists())
        return "" if len(asked) > 1 else None  # it has written its part, at last

    store = SimpleNamespace(separate=lambda _: SimpleNamespace(peek=peek))
    job = SimpleNamespace(folder=folder, launch_store=store, deadlines=Deadlines())
    (tmp_path / staged.name).mkdir()
    fsync = BackgroundFsync(cast(AttachedJob, job), memory)
    fsync._run(staged)
    assert asked == [True, True]  # nobody's folder is taken away while it writes
    assert fsync.problem == f"{type(error).__name__}: {error}"
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_fails_in_the_background_undoes_nothing(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The switch stands, the checkpoint before stays, and the next one waits for the disk."""
    run, daemon = switched(zygote, tmp_path, socket_path)
    run.change(wait_for={"10": "order-1", "9": "go"})
    with daemon:
        run.launch({})
        until((run.checkpoints / "step-00000005" / "COMMIT").exists, "the first checkpoint")
        # Neither can the checkpoint take its name, nor can what has it be moved away.
        for name in ("step-00000010", "step-00000010.set-aside-by-attempt-1"):
            (run.checkpoints / name / "in the way").mkdir(parents=True)
        (run.out / "go").touch()
        assert zygote.wait(run.launches[0]) == 0, run.log()
    assert run.layouts() == ["dp2", "tp2"]
    assert worst_difference(run.losses(), undisturbed(20, "float32")) <= 1e-5
    assert daemon.states()[-1] is SwitchState.CONFIRMED
    assert "the switch stands, but step-00000010 could not be made durable" in run.log()
    assert [read_whole(run.checkpoints / f"step-{n:08d}").step for n in (15, 20)] == [15, 20]
    assert not list(run.checkpoints.glob(".*staging"))


@pytest.fixture(scope="module")
def halfway(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with step 5 durable and step 10 staged, as a killed switch leaves it."""
    run = Run(zygote, tmp_path_factory.mktemp("halfway"), 2, layout=DP2, steps=10, boundary_every=5)
    assert run.once() == 0, run.log()
    staged = RunFolder(run.checkpoints).staging(10, 1)
    (run.checkpoints / "step-00000010").rename(staged)
    return run.checkpoints


@pytest.mark.parametrize("killed", ["before", "after the sync", "after the name"])
def test_a_crash_while_settling_leaves_the_old_or_the_new(
    halfway: Path, tmp_path: Path, killed: str
) -> None:
    """Killed at each step, the next launch begins from the last whole checkpoint with a name."""
    folder = RunFolder(tmp_path / "ck")
    shutil.copytree(halfway, folder.path)
    name = folder.staging(10, 1).name
    staged = StagedCheckpoint(name=name, step=10, attempt=attempt_of(name))

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        if killed == "before":
            die()
        settle(folder, staged, die if killed == "after the sync" else lambda: None)
        die()
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    expected = 10 if killed == "after the name" else 5
    assert durable_name(folder) == f"step-{expected:08d}"
    folder.drop_stagings()
    found = newest_whole(folder)
    assert found is not None
    assert found[1].step == expected
    assert not folder.path.joinpath(name).exists()
