"""The job under test: a tiny MLP over dp_shard and tp, attached as a user would.

It can hurt itself on demand (`Options.fault`): stop or kill one rank inside a callback that the
session runs in a known phase, so that the phase needs no hook in the product.
"""

import ctypes
import errno
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tests.hook import hosts
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.in_memory.host_memory import MEMORY
from wattmesh.reconfig.hook.session import Session, attach
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.failures.deadlines import Deadlines
from wattmesh.reconfig.launch.folder import read_json
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State

WIDTH = 16
PATIENCE_S = 30.0
SILENT = ("wrong", "nan", "drift", "shift", "stale", "late", "rate")
"""Faults that no call of the session does by itself."""

EVERY = -1
"""As a fault's rank: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What one rank does to itself, once per `once` file.

    Attributes:
        at: train | agree | save | teardown | rebuild | load | verify, or behind_before,
            behind_written, behind_named: while the checkpoint of a switch is made durable, before
            anything is written, before it gets its name, and after; or host_before, host_written:
            before and after what its host holds is written
        what: stop | kill | kill_host (every rank of its host) | kill_all (every rank of the
            launch) | raise | hang |
            wrong (a wrong probe) | nan (a probe that is no number) | drift (a changed weight) |
            damage, damage_streams (a changed byte in the newest checkpoint) |
            damage_plan (the newest checkpoint's memory.json is gone) |
            cut (this host's cable) | shift (another step's data) | stale (an older position) |
            late (an older schedule) |
            rate (a schedule that sets the learning rate on loading, to 100 times what it was)
        after_step: the fault waits for this step; `layout`: and for this layout, if given.
    """

    rank: int
    at: str
    what: str
    after_step: int
    layout: dict[str, Any] | None = None
    repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the job is run; travels as JSON in the environment variable TINY.

    Attributes:
        reuses: whether `build` makes its mesh so that it stays for the next one.
        keep_lock_s: while it waits for a mark, the main thread keeps Python's lock for so long at
            a time.
    """

    folder: str
    out: str
    steps: int = 30
    boundary_every: int = 5
    layout: dict[str, Any] = field(default_factory=lambda: {"dp_shard": 2})
    ranks: list[int] | None = None
    deadlines: dict[str, float] = field(default_factory=dict)
    wait_for: dict[str, str] = field(default_factory=dict)
    orders_by: dict[str, int] = field(default_factory=dict)
    fault: Fault | None = None
    dtype: str = "float32"
    keep_gradients_at: list[int] = field(default_factory=list)
    leak_at: int = 0
    file_limit_at: int = 0
    pace_s: float = 0.0
    seed: int = 0
    batch: int = 8
    compiled: bool = False
    tell_data: bool = True
    few_files_at: int = 0
    stuck_disk_at: int = 0
    keep_lock_s: float = 0.0
    no_shared_memory: bool = False
    reuses: bool = False

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step, over all ranks."""
        return self.batch * WIDTH

    @classmethod
    def from_environment(cls) -> Self:
        """Read the options of this process."""
        data = json.loads(os.environ["TINY"])
        fault = data.pop("fault", None)
        return cls(**data, fault=Fault(**fault) if fault else None)

    def to_text(self) -> str:
        """Write the options for the environment."""
        return json.dumps(asdict(self))


class Net(nn.Module):
    """Two linear layers and a norm's weight; the norm is replicated over tp."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        y_BD: torch.Tensor = self.down(torch.tanh(self.up(x_BD * self.scale)))
        return y_BD.clone()


class Schedule:
    """An extra state: a learning rate that falls, and the place where some faults are done."""

    def __init__(self, job: "TinyJob") -> None:
        """Begin at the first step."""
        self.job = job
        self.steps = 0
        self.note: dict[Any, Any] = {1: (2, 3), "mean": [0.1, None, True]}

    def state_dict(self) -> dict[str, Any]:
        """Give the state; the session asks for it while it saves."""
        self.job.hurt("save")
        return {"steps": self.steps, "note": self.note}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back."""
        self.job.hurt("load")
        assert state_dict["note"] == {1: (2, 3), "mean": [0.1, None, True]}
        self.steps = int(state_dict["steps"])
        self.job.change_rate()


class Bomb:
    """Does a fault when its state is emptied at teardown."""

    def __init__(self, act: Callable[[], None]) -> None:
        """Do `act` when collected."""
        self.act = act

    def __del__(self) -> None:
        """The state is being torn down."""
        self.act()


MESHES: list[weakref.ref[DeviceMesh]] = []
"""Every mesh that was ever made: what a switch sets aside, `gc.get_objects` does not list."""


def _noted(make: Callable[..., None]) -> Callable[..., None]:
    def init(self: DeviceMesh, *args: Any, **named: Any) -> None:
        MESHES.append(weakref.ref(self))
        make(self, *args, **named)

    return init


settle, settle_of_host = checkpoint.settle, checkpoint.settle_of_host


def _no_memory(*_: Any) -> int:
    """Be a kernel that gives no shared memory."""
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def _last_data_file(folder: Path) -> tuple[Path, int, int]:
    """Where a checkpoint's last data file is: in its folder, or in a rank's staging area.

    A file, the byte of it where the data file begins, and the data file's size.
    """
    if not (folder / MEMORY).exists():
        path = max(folder.glob("data-*.safetensors"))
        return path, 0, path.stat().st_size
    where = json.loads((folder / MEMORY).read_text())
    last = where[max(where)]
    area = last["area"]
    return Path(f"/proc/{area['pid']}/fd/{area['descriptor']}"), last["at"], last["nbytes"]


def _never_answer(fd: Any) -> None:
    """Be a disk that is asked to keep something and is not heard of again."""
    threading.Event().wait()


class TinyJob:
    """One rank of the job."""

    def __init__(self, options: Options) -> None:
        """Prepare; nothing is built yet."""
        self.options = options
        self.out = Path(options.out)
        self.layout = Layout(**options.layout)
        self.rank = int(os.environ["RANK"])
        self.dtype = getattr(torch, options.dtype)
        self.position = Position()
        self.leaked: list[nn.Parameter] = []
        self.session: Session | None = None
        self.in_boundary = False
        self.read = range(0)
        self.optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """Make the model for a layout; weights come from the seed, or from a checkpoint after."""
        self.layout = layout
        self.hurt("rebuild")
        make = partial(init_device_mesh, "cpu", (layout.dp_shard, layout.tp))
        make = partial(make, mesh_dim_names=("dp", "tp"))
        mesh = group.reuse(("tiny", layout.degrees), make) if self.options.reuses else make()
        self.hurt("rebuild_after_mesh")
        # A rebuilt model must get everything from the checkpoint, so its seed is another one.
        fresh = self.session is None and not list(Path(self.options.folder).glob("step-*"))
        torch.manual_seed(self.options.seed if fresh else int(time.time_ns() % 1000) + 7)
        net = Net().to(self.dtype)
        if not fresh:
            for parameter in net.parameters():
                dist.broadcast(parameter.detach(), 0)
        if layout.tp > 1:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(net, mesh["tp"], plan)
        if self.options.compiled:
            net.compile(backend="aot_eager")
        fully_shard(net, mesh=mesh["dp"])
        state = State(
            modules=[net],
            optimizers=[torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)],
            extra={"schedule": Schedule(self)},
        )
        self.optimizer = weakref.ref(state.optimizers[0])
        state.parts.mesh = mesh
        state.parts.bomb = Bomb(lambda: self.hurt("teardown"))
        return state

    def probe(self, state: State) -> float:
        """Loss of a fixed batch, the same on every rank."""
        if self.in_boundary and state.position.step == self.position.step:
            self.hurt("probe_before" if state.parts.__dict__.get("trained") else "verify")
        else:
            self.hurt("verify")
        loss = self._mean_loss(state, 10_000)
        fault = self.options.fault
        if fault and fault.what == "wrong" and self.due("verify"):
            self.used(fault)
            loss *= 1.01
        if fault and fault.what == "nan" and self.due(fault.at):
            self.used(fault)
            return float("nan")
        return loss

    def train(self, session: Session) -> float:
        """Do one step on the batch of this position."""
        state = session.state
        state.parts.trained = True
        step = state.position.step
        net, optimizer = state.modules[0], state.optimizers[0]
        x, y = self._batch(state, step, self._shift(step + 1))
        loss = nn.functional.mse_loss(net(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        if step + 1 not in self.options.keep_gradients_at:
            optimizer.zero_grad()
        if self.options.leak_at == step + 1:
            self.leaked = list(net.parameters())
        self._drift(net, step + 1)
        schedule = state.extra["schedule"]
        assert isinstance(schedule, Schedule)
        schedule.steps += 1
        return self._average(state, loss.detach())

    def run(self) -> int:
        """Train to the end."""
        options = self.options
        if options.no_shared_memory:
            vars(os)["memfd_create"] = _no_memory
        vars(checkpoint)["settle"] = self._settle
        vars(checkpoint)["settle_of_host"] = self._settle_of_host
        setattr(DeviceMesh, "__init__", _noted(DeviceMesh.__init__))  # noqa: B010
        with attach(
            "tiny",
            build=self.build,
            probe=self.probe,
            layout=self.layout,
            checkpoint_dir=options.folder,
            boundary_every=options.boundary_every,
            tokens_total=options.steps * options.tokens_per_step,
            deadlines=Deadlines(**options.deadlines),
            initial_ranks=tuple(options.ranks) if options.ranks else None,
        ) as session:
            self.session = session
            while not session.done:
                self._wait(session.state.position.step + 1)
                loss = self.train(session)
                session.report(
                    tokens=options.tokens_per_step,
                    samples=options.batch,
                    loss=loss,
                    data=self.read if options.tell_data else (),
                )
                self._stale(session)
                self._note(session, loss)
                self.hurt("agree")
                self.position, self.in_boundary = session.position, True
                self._few_files(session.position.step)
                if 0 < options.stuck_disk_at <= session.position.step:
                    os.fsync = _never_answer
                with self._small_disk(session.position.step):
                    session.boundary()
                self.in_boundary = False
            self._write("outcome", {"rank": self.rank, "outcome": session.outcome})
        return 0

    def _few_files(self, step: int) -> None:
        """From one step on, let the kernel refuse this process a few more open files."""
        if step == self.options.few_files_at and self.rank == 1:
            few = len(os.listdir("/proc/self/fd")) + 4
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))

    @contextmanager
    def _small_disk(self, step: int) -> Iterator[None]:
        """Let the kernel refuse files above 16 KiB at one step, as a full disk would."""
        soft = 16384 if step == self.options.file_limit_at else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def due(self, at: str) -> bool:
        """Whether the fault is to be done here and now."""
        fault = self.options.fault
        if fault is None or fault.rank not in (self.rank, EVERY) or fault.at != at:
            return False
        session = self.session
        step = session.position.step if session and self._training() else self.position.step
        wanted = fault.layout is None or Layout(**fault.layout) == self.layout
        done = len(list(self.out.glob("fault-*")))
        return step >= fault.after_step and wanted and done < fault.repeats

    def change_rate(self) -> None:
        """Let the learning rate be another one on this rank, if that is due."""
        fault, optimizer = self.options.fault, self.optimizer()
        if fault and fault.what == "rate" and self.due("load") and optimizer is not None:
            self.used(fault)
            for each in optimizer.param_groups:
                each["lr"] *= 100

    def used(self, fault: Fault) -> None:
        """Leave the mark that keeps a fault from being done again after a restart."""
        (self.out / f"fault-{time.time_ns()}").write_text(str(time.time()))

    def hurt(self, at: str) -> None:
        """Do the fault if it is due."""
        fault = self.options.fault
        if fault is None or not self.due(at) or fault.what in SILENT:
            return
        self.used(fault)
        if fault.what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.what in ("kill_all", "kill_host"):
            self._kill(here=fault.what == "kill_host")
        elif fault.what == "hang":
            time.sleep(3600)
        elif fault.what.startswith("damage"):
            self._damage(fault.what)
        elif fault.what == "cut":
            hosts.cut_cable()
        else:
            raise RuntimeError(f"the test broke rank {self.rank} in {at}")

    def _kill(self, *, here: bool) -> None:
        """Kill every rank of this launch, or those of this host, this one last."""
        assert self.session is not None
        peers = self.session._job.launch_store.separate(PATIENCE_S).peers()
        ended = {p.pid for p in peers.values() if not here or p.where == peers[self.rank].where}
        for pid in sorted(ended - {os.getpid()}):
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _settle(self, folder: Any, staging: Any, *about: Any, **named: Any) -> None:
        """Make the checkpoint of a switch durable, and hurt this rank on the way if that is due."""
        fence = named.pop("fence")

        def fenced() -> None:
            self.hurt("behind_written")
            fence()

        self.hurt("behind_before")
        settle(folder, staging, *about, **named, fence=fenced)
        self.hurt("behind_named")

    def _settle_of_host(self, staging: Any, memory: Any) -> Any:
        """Write what this host holds, and hurt this rank before or after if that is due."""
        self.hurt("host_before")
        mapped = settle_of_host(staging, memory)
        self.hurt("host_written")
        return mapped

    def _damage(self, what: str) -> None:
        """Change a byte of the newest checkpoint: the first tensor's first, or the last of all.

        Or delete the plan that says where its data files are in memory.
        """
        folder = Path(self.options.folder)
        newest = max([*folder.glob(".step-*.staging")] or folder.glob("step-*"))
        if what == "damage_plan":
            (newest / MEMORY).unlink()
            return
        path, begin, size = _last_data_file(newest)
        with path.open("r+b") as file:
            file.seek(begin)
            header = int.from_bytes(file.read(8), "little")
            at = begin + (size - 1 if what == "damage_streams" else 8 + header)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))

    def _training(self) -> bool:
        return self.session is not None and not self.in_boundary and not self.session.done

    def _drift(self, net: nn.Module, step: int) -> None:
        """Change one replica's weight on one rank only, as silent corruption would."""
        fault = self.options.fault
        if fault and fault.what == "drift" and fault.rank == self.rank and step == fault.after_step:
            self.used(fault)
            scale = net.get_parameter("scale")
            local = scale.to_local() if isinstance(scale, DTensor) else scale
            with torch.no_grad():
                local[0] += 1e-4

    def _shift(self, step: int) -> int:
        """How many steps this rank's loader is ahead of the others'."""
        fault = self.options.fault
        if fault is None or fault.what != "shift" or fault.rank != self.rank:
            return 0
        if step != fault.after_step or list(self.out.glob("fault-*")):
            return 0
        self.used(fault)
        return 1

    def _stale(self, session: Session) -> None:
        """Set this rank's counters back by a step, as a loader that was not told would."""
        fault = self.options.fault
        if fault and fault.what in ("stale", "late") and fault.rank == self.rank:
            position = session.state.position
            if position.step == fault.after_step and not list(self.out.glob("fault-*")):
                self.used(fault)
                if fault.what == "stale":
                    session.state.position = replace(position, step=position.step - 1)
                else:
                    schedule = session.state.extra["schedule"]
                    assert isinstance(schedule, Schedule)
                    schedule.steps -= 1

    def _batch(self, state: State, step: int, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's samples of the global batch at `step`; `shift`: at a later one instead."""
        step += shift
        generator = torch.Generator().manual_seed(1000 + step)
        batch = self.options.batch
        x = torch.randn(batch, WIDTH, generator=generator, dtype=torch.float64).to(self.dtype)
        y = torch.sin(x.roll(1, 1)) * x
        mesh = state.parts.mesh["dp"]
        share, mine = batch // mesh.size(), mesh.get_local_rank()
        self.read = range(step * batch + mine * share, step * batch + (mine + 1) * share)
        return x[mine * share : (mine + 1) * share], y[mine * share : (mine + 1) * share]

    def _mean_loss(self, state: State, step: int) -> float:
        x, y = self._batch(state, step)
        return self._average(state, nn.functional.mse_loss(state.modules[0](x), y))

    def _average(self, state: State, loss: torch.Tensor) -> float:
        loss = loss.clone()
        dist.all_reduce(loss)
        return float(loss) / dist.get_world_size()

    def _wait(self, step: int) -> None:
        """Wait for a mark (an order that was fetched) before doing `step`."""
        if self.options.pace_s:
            time.sleep(self.options.pace_s)
        name = self.options.wait_for.get(str(step))
        until = time.monotonic() + PATIENCE_S
        while name and not (self.out / name).exists():
            if time.monotonic() > until:
                raise TimeoutError(f"{name} did not appear before step {step}")
            if self.options.keep_lock_s:
                # Called through PyDLL, a C function keeps the lock, as an extension may.
                ctypes.PyDLL(None).usleep(int(1e6 * self.options.keep_lock_s))
            time.sleep(0.01)
        while not self._has_orders(self.options.orders_by.get(str(step), 0)):
            if time.monotonic() > until:
                raise TimeoutError(f"no order was heard before step {step}")
            time.sleep(0.01)

    def _has_orders(self, number: int) -> bool:
        """Whether so many orders have come in, where they come in; one may not be begun yet."""
        if number == 0 or self.rank != 0:
            return True
        assert self.session is not None
        job = self.session._job
        order = job.client.orders().order
        begun = (read_json(job.folder.orders_file) or {}).get("done", ())
        return len(begun) + (order is not None and order.switch_id not in begun) >= number

    def _note(self, session: Session, loss: float) -> None:
        """The lowest rank of the generation writes what was trained."""
        generation = session.generation
        if generation.leader == self.rank:
            line = {
                "step": session.position.step,
                "samples": session.position.samples,
                "tokens": session.position.tokens,
                "loss": loss,
                "layout": str(generation.layout),
                "ranks": list(generation.ranks),
                "attempt": generation.attempt,
                "at": time.time(),
                "host": socket.gethostname(),
                "files": len(os.listdir("/proc/self/fd")),
                "threads": len(os.listdir("/proc/self/task")),
                "rss": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
                "meshes": sum(each() is not None for each in MESHES),
            }
            self._write("losses", line)

    def _write(self, name: str, line: dict[str, Any]) -> None:
        with (self.out / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    return TinyJob(Options.from_environment()).run()


if __name__ == "__main__":
    sys.exit(main())
