"""A real Slurm for tests: munged, slurmctld and four slurmd on private ports, gone afterwards.

The nodes have eight GPUs each, which are character devices of nobody's driver. All daemons run on
this machine, as Slurm allows where each node has a port of its own; no systemd, no cgroups.

Invariant: nothing of it outlives the test session. Every daemon is stopped by its own process id,
and the kernel stops it when the test process dies first.
"""

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.daemon.waiting import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
MISSING = (
    "Slurm is not installed, or we are not root: run scripts/system-deps as root, or install your "
    "distribution's Slurm packages"
)
NODES = ("n1", "n2", "n3", "n4")
GPUS = 8
NVIDIA_MAJOR = 195
LIMIT_S = 30.0

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
GresTypes=gpu
ReturnToService=2
Epilog={folder}/epilog.sh
KillWait=2
MessageTimeout=10
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=8 RealMemory=1000 \
Gres=gpu:h100:{gpus} State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
PartitionName=other Nodes={nodes} MaxTime=INFINITE State=UP
"""


def is_installed() -> bool:
    """Say whether it can be started here."""
    return os.geteuid() == 0 and all(shutil.which(each) for each in PROGRAMS)


@dataclass(slots=True)
class Cluster:
    """A running Slurm. `environment`: what its clients need."""

    folder: Path
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    hurried: set[tuple[str, str]] = field(default_factory=set)

    def ask(self, *words: str, uid: int = 0, environment: Mapping[str, str] | None = None) -> str:
        """Run a client as a user, with more in its environment; gives what it printed."""
        other = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
        done = subprocess.run(
            [*other, *words],
            env={**os.environ, **self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def submit(
        self,
        script: Path,
        *words: str,
        uid: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Submit a batch job, with more in its environment; gives its id."""
        told = self.ask(
            "sbatch", "--parsable", *words, str(script), uid=uid, environment=environment
        )
        return int(told)

    def states(self) -> dict[int, str]:
        """The state of each job that is known, by id."""
        lines = self.ask("squeue", "--noheader", "--states=all", "--format=%A %T").splitlines()
        return {int(number): state for number, _, state in (each.partition(" ") for each in lines)}

    def reach(self, job: int, *states: str) -> None:
        """Wait until a job is in one of some states."""
        wait_for(lambda: self.states().get(job) in states, f"job {job} {states}: {self.states()}")

    def hurry(self) -> None:
        """Let jobs that were requeued begin soon, as an operator does; Slurm waits two minutes.

        A job whose processes still end is not pending yet, and would be put off again. One that
        begins in the second in which it was ended is refused by its node ("already killed").
        """
        told = self.ask("squeue", "--noheader", "--states=PENDING", "--Format=JobID,RestartCnt")
        for line in told.splitlines():
            job, _, restarts = line.strip().partition(" ")
            if restarts.strip() != "0" and (job, restarts) not in self.hurried:
                self.hurried.add((job, restarts))
                with suppress(AssertionError):  # it has begun meanwhile
                    self.ask("scontrol", "update", f"jobid={job}", "StartTime=now+2")

    def start(self, name: str) -> None:
        """Start a daemon: `munged`, `slurmctld`, or the one of a node."""
        folder = self.folder
        words: Sequence[str] = {
            "munged": [
                *("munged", "--foreground", "--force", "--num-threads=2"),
                *(f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"),
                *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"),
                f"--seed-file={folder}/munged.seed",
            ],
            "slurmctld": ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"],
        }.get(name, ["slurmd", "-D", "-N", name, "-f", f"{folder}/slurm.conf"])
        with (folder / f"{name}.out").open("ab") as sink:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *words],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=folder,
            )

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """Stop a daemon by its process id."""
        process = self.daemons.pop(name)
        process.send_signal(how)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill_node(self, name: str) -> None:
        """Take a node's power: its daemon and every process of its jobs are gone at once."""
        self.stop(name, signal.SIGKILL)
        ours = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        here = f"SLURMD_NODENAME={name}".encode()

        def gone() -> bool:
            tasks = [
                path.parent
                for path in Path("/proc").glob("[0-9]*/environ")
                if _has(path, ours) and _has(path, here)
            ]
            steps = {step for each in tasks if (step := _step_daemon(each))}
            for pid in (*sorted(steps), *(int(each.name) for each in tasks)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not tasks

        wait_for(gone, f"that nothing runs on {name}")
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=killed")

    @contextmanager
    def on_end(self, script: str) -> Iterator[None]:
        """Run a script as root on each node that a job leaves, for the length of the block."""
        path = self.folder / "on-end.sh"
        path.write_text(script)
        path.chmod(0o755)
        try:
            yield
        finally:
            path.unlink()

    def kill_controller(self) -> None:
        """Kill the controller once it has saved what it knows, as it does within seconds.

        It saves where something has changed, so a job is submitted for that.
        """
        saved, now_s = self.folder / "state" / "job_state", time.time()
        self.ask("scancel", str(self.submit(self.folder / "first.sh", "--hold")))
        wait_for(lambda: saved.exists() and saved.stat().st_mtime > now_s, "the state is saved")
        self.stop("slurmctld", signal.SIGKILL)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the controller, so that it takes calls and never answers."""
        controller = self.daemons["slurmctld"]
        controller.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            controller.send_signal(signal.SIGCONT)

    def is_ready(self) -> bool:
        """Say whether the controller answers and every node takes jobs."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            told = self.ask("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T")
            return told.split() == ["idle"] * len(NODES)
        return False

    def clear(self) -> None:
        """End every job, and bring every node back."""
        live = [job for job, state in self.states().items() if state not in ENDED]
        if live:
            self.ask("scancel", "--signal=KILL", "--full", *(str(each) for each in live))
            self.ask("scancel", *(str(each) for each in live))
        if not self.is_ready():
            with suppress(AssertionError):  # nothing to resume
                self.ask("scontrol", "update", f"nodename={','.join(NODES)}", "state=resume")
        wait_for(self.is_ready, "that every node is idle")


ENDED = ("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _prepare(folder: Path) -> None:
    # Jobs of other users read the configuration and go through this folder.
    folder.chmod(0o755)
    for name in ("state", "spool", "dev"):
        (folder / name).mkdir()
    epilog = folder / "epilog.sh"
    epilog.write_text(f"#!/bin/sh\n[ -x {folder}/on-end.sh ] || exit 0\nexec {folder}/on-end.sh\n")
    epilog.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    for number in range(GPUS):
        device = os.makedev(NVIDIA_MAJOR, number)
        os.mknod(folder / "dev" / f"gpu{number}", stat.S_IFCHR | 0o600, device)
    controller, *ports = _free_ports(1 + len(NODES))
    nodes = f"{','.join(NODES)}"
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            folder=folder,
            controller_port=controller,
            nodes=nodes,
            ports=",".join(map(str, ports)),
            gpus=GPUS,
        )
    )
    (folder / "gres.conf").write_text(
        f"NodeName={nodes} Name=gpu Type=h100 File={folder}/dev/gpu[0-{GPUS - 1}]\n"
    )


@contextmanager
def running() -> Iterator[Cluster]:
    """Run a new cluster for as long as the block lasts."""
    # A socket's path may be 107 bytes long at most, so not below pytest's own deep folders.
    with tempfile.TemporaryDirectory(prefix="wattmesh-slurm-") as name:
        folder = Path(name)
        _prepare(folder)
        cluster = Cluster(folder, {"SLURM_CONF": str(folder / "slurm.conf")})
        try:
            cluster.start("munged")
            wait_for((folder / "munge.socket").exists, "munge's socket")
            for each in ("slurmctld", *NODES):
                cluster.start(each)
            try:
                wait_for(cluster.is_ready, "that four nodes are idle")
                _warm_up(cluster)
            except AssertionError as error:
                told = "\n".join(each.read_text()[-2000:] for each in folder.glob("*.out"))
                raise RuntimeError(f"Slurm did not start: {told}") from error
            yield cluster
            cluster.clear()
        finally:
            for each in reversed(list(cluster.daemons)):
                cluster.stop(each)
            _wait_for_steps(folder)


def _warm_up(cluster: Cluster) -> None:
    """Run one job: a controller that schedules nothing at first is started anew."""
    script = cluster.folder / "first.sh"
    script.write_text("#!/bin/sh\n")
    for _ in range(3):
        job = cluster.submit(script, "--output=/dev/null")
        with suppress(AssertionError):
            wait_for(lambda job=job: cluster.states()[job] == "COMPLETED", "the first job", 10.0)  # type: ignore[misc]
            return
        cluster.stop("slurmctld")
        cluster.start("slurmctld")
        wait_for(cluster.is_ready, "that four nodes are idle")
    raise AssertionError("no job starts")


def _wait_for_steps(folder: Path) -> None:
    """Kill what jobs and their step daemons have left: they are ours by their configuration."""
    ours = f"SLURM_CONF={folder}/slurm.conf".encode()
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        left = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if _has(path, ours) and int(path.parent.name) != os.getpid()
        ]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _step_daemon(task: Path) -> int | None:
    """Give the process id of the slurmstepd that started a task; None: it has another parent."""
    with suppress(OSError, ValueError, IndexError):
        parent = int((task / "stat").read_text().rpartition(")")[2].split()[1])
        if (Path("/proc") / str(parent) / "comm").read_text().startswith("slurmstepd"):
            return parent
    return None


def _has(environment: Path, line: bytes) -> bool:
    with suppress(OSError):
        return line in environment.read_bytes().split(b"\0")
    return False
