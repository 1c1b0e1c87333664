"""The node's own view: real processes and process tables of real folders, hostile ones too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from wattmesh.telemetry.energy.node_view import Looker, job_key, process

POD = "2a3b4c5d-1111-2222-3333-444455556666"
FIRST_NAMESPACE = "pid:[4026531836]"


class Table:
    """A process table in a folder."""

    def __init__(self, root: Path) -> None:
        """Begin an hour after boot, without a process."""
        self.root = root
        (root / "uptime").write_text("3600.00 7000.00\n")

    def add(self, pid: int, *, state: str = "S", uid: int = 1000, cgroup: str = "0::/\n") -> Path:
        """Add a process, or write it anew."""
        folder = self.root / str(pid)
        self.thread(folder, state)
        self.thread(folder / "task" / str(pid), state)
        (folder / "status").write_text(f"Name:\tpython\nUid:\t0\t{uid}\t{uid}\t{uid}\nGid:\t0\n")
        (folder / "cgroup").write_text(cgroup)
        return folder

    def thread(self, folder: Path, state: str, started: int = 1000) -> None:
        """Write the stat of a process or thread whose name is as awkward as names may be."""
        folder.mkdir(parents=True, exist_ok=True)
        rest = " ".join(["1"] * 18)
        (folder / "stat").write_text(f"7 (py) S (1 thon) {state} {rest} {started} 1 1\n")

    def of_the_first_namespace(self) -> None:
        """Be the table that shows every process of the machine."""
        (self.root / "self" / "ns").mkdir(parents=True)
        (self.root / "self" / "ns" / "pid").symlink_to(FIRST_NAMESPACE)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """An empty process table."""
    return Table(tmp_path)


@pytest.mark.parametrize(
    ("cgroup", "key"),
    [
        ("0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0", "slurm:1234"),
        ("0::/system.slice/n17_slurmstepd.scope/job_9/step_batch/user/task_special", "slurm:9"),
        ("9:name=systemd:/\n4:memory:/slurm/uid_1000/job_77/step_0/task_0", "slurm:77"),
        ("4:memory:/slurm_n17/uid_1000/job_78", "slurm:78"),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-"
            f"pod{POD.replace('-', '_')}.slice/cri-containerd-0123abcd.scope",
            f"pod:{POD}",
        ),
        (
            f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/crio-01.scope",
            f"pod:{POD}",
        ),
        (f"5:cpu:/kubepods/besteffort/pod{POD}/0123456789abcdef", f"pod:{POD}"),
        (f"0::/kubepods/pod{POD}/0123", f"pod:{POD}"),
        (f"0::/kubepods/burstable/pod{POD.replace('-', '')}/01", f"pod:{POD.replace('-', '')}"),
        (
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-o-1.scope",
            f"pod:{POD}",
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope", "unit:session-3.scope"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope",
            "unit:run-r1.scope",
        ),
        ("0::/system.slice/train.service", "unit:train.service"),
        ("0::/", ""),
        ("", ""),
        ("no cgroup at all", ""),
        ("0::/home/job_12/step_0", ""),
        ("0::/user.slice/podium-pod/x", ""),
    ],
)
def test_a_cgroup_names_its_job_in_every_spelling(cgroup: str, key: str) -> None:
    """Slurm with cgroups 1 and 2, Kubernetes with both drivers, sessions, services, none."""
    assert job_key(cgroup + "\n") == key


def test_a_process_is_its_user_its_job_and_its_start(table: Table) -> None:
    """The effective user, as a socket's credentials show it."""
    table.add(40, uid=1234, cgroup="0::/system.slice/slurmstepd.scope/job_5/step_0\n")
    found = process(40, table.root)
    assert found is not None
    assert (found.uid, found.job) == (1234, "slurm:5")
    assert found.started_at is not None


def test_a_zombie_holds_no_gpu_but_one_with_a_live_thread_does(table: Table) -> None:
    """The first thread may end before the others: what they hold is held still."""
    folder = table.add(40, state="Z")
    assert process(40, table.root) is None
    table.thread(folder / "task" / "41", "R")
    assert process(40, table.root) is not None
    table.thread(folder / "task" / "41", "X")
    assert process(40, table.root) is None


def test_a_pid_that_the_table_does_not_show_is_somebody_unknown(table: Table) -> None:
    """A process of another pid namespace: it computes, and nobody can say for whom."""
    view = Looker(table.root, "n1").look({"GPU-1": [4711]})
    assert [(each.pid, each.uid) for each in view.users["GPU-1"]] == [(4711, None)]


def test_a_pid_that_was_shown_before_and_is_not_any_more_is_dead(table: Table) -> None:
    """The driver may list it a little longer, as often as it is asked."""
    looker = Looker(table.root, "n1")
    folder = table.add(40)
    assert looker.look({"GPU-1": [40]}).users["GPU-1"]
    folder.rename(table.root / "gone")
    assert looker.look({"GPU-1": [40]}).users == {"GPU-1": ()}
    assert looker.look({"GPU-1": [40]}).users == {"GPU-1": ()}


def test_in_the_first_namespace_every_pid_that_is_not_shown_is_dead(table: Table) -> None:
    """There the table shows all there are."""
    table.of_the_first_namespace()
    assert Looker(table.root, "n1").look({"GPU-1": [4711]}).users == {"GPU-1": ()}


@pytest.mark.parametrize("name", ["stat", "status", "cgroup"])
@pytest.mark.parametrize("content", [b"", b"7", b"\xff\xfe", b"7 (python", b"Uid:\n"])
def test_a_damaged_table_is_unknown_and_never_an_error(
    table: Table, name: str, content: bytes
) -> None:
    """A table that cannot be read says nothing about a process, not even that it is dead."""
    folder = table.add(40)
    if name != "cgroup" or content == b"\xff\xfe":
        (folder / name).write_bytes(content)
        found = process(40, table.root)
        assert found is not None
        assert found.uid is None


def test_real_processes_are_seen_alive_as_zombies_and_gone() -> None:
    """A child of ours: running, ended but not waited for, waited for."""
    looker = Looker()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        view = looker.look({"GPU-1": [child.pid]}, registered=[os.getpid()])
        assert [each.uid for each in view.users["GPU-1"]] == [os.geteuid()]
        assert view.known[os.getpid()].uid == os.geteuid()
        child.kill()
        # A zombie now: it is not waited for yet.
        wait_for(lambda: not looker.look({"GPU-1": [child.pid]}).users["GPU-1"], "the zombie")
        assert Path(f"/proc/{child.pid}").exists()
    finally:
        child.kill()
        child.communicate()
    assert looker.look({"GPU-1": [child.pid]}).users == {"GPU-1": ()}
