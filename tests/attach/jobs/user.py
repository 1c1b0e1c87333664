"""A job that has nearly everything, attached as its owner would.

torch.compile, activation checkpointing, gradient accumulation, EMA, a schedule, DataLoader workers
or a loader that cannot seek, a profiler, a signal handler of its own, an experiment tracker, and a
checkpointer of its own. Every rank writes what it saw to `rank-N.json` lines in the folder `out`.
"""

import json
import logging
import os
import pickle
import signal
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, Dataset

from tests.attach.jobs.writer import Writer
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.hook.session import Session, attach
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.per_data_rank import data_rank
from wattmesh.reconfig.state.state import State

WIDTH = 8
BATCH = 8
MICRO = 2
"""Samples of the global batch per optimizer step; microbatches that each rank makes of its part."""

Sample = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Has:
    """What the job has; travels as JSON in the environment variable USER_JOB.

    Attributes:
        turns: (step, layout) of every switch that is ordered.
        compiled, workers, profiler: whether.
        seekable: False for a loader that keeps its own place, per data parallel rank.
        writer: "" | "sync" | "async" | "forgetful": the job's own checkpointer.
        kill_at: rank 1 kills itself once, after this step was logged.
        hold_at, let_go_at: the async save begun at one step ends at the other.
    """

    folder: str
    out: str
    layout: dict[str, Any]
    turns: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    steps: int = 12
    boundary_every: int = 4
    compiled: bool = False
    workers: bool = False
    profiler: bool = False
    seekable: bool = True
    writer: str = ""
    kill_at: int = 0
    hold_at: int = 0
    let_go_at: int = 0

    @classmethod
    def from_environment(cls) -> Self:
        """Read what this process has."""
        return cls(**json.loads(os.environ["USER_JOB"]))

    def to_text(self) -> str:
        """Write it for the environment."""
        return json.dumps(asdict(self))


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self) -> None:
        """Make it."""
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        y_BD: torch.Tensor = x_BD + self.down(torch.tanh(self.up(x_BD)))
        return y_BD


class Net(nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        """Take the blocks."""
        super().__init__()
        self.layers = nn.ModuleDict({str(n): block for n, block in enumerate(blocks)})

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map a batch."""
        for block in self.layers.values():
            x_BD = block(x_BD)
        return x_BD


def sample(number: int) -> Sample:
    """The sample at a global position."""
    generator = torch.Generator().manual_seed(number)
    x_D = torch.randn(WIDTH, generator=generator)
    return x_D, torch.sin(x_D.roll(1)) * x_D


class Part(Dataset[Sample]):
    """What a rank reads from a position on: its part of every global batch."""

    def __init__(self, start: int, rank: int, ranks: int) -> None:
        """Begin at the global sample `start`."""
        self.start, self.rank, self.ranks = start, rank, ranks

    def __len__(self) -> int:
        """More than anybody reads."""
        return 1 << 20

    def __getitem__(self, index: int) -> Sample:
        """The rank's sample number `index`."""
        each = BATCH // self.ranks
        step, within = divmod(index, each)
        return sample(self.start + step * BATCH + self.rank * each + within)


class Packing:
    """A loader that cannot seek: what it gives next depends on all that it has given."""

    def __init__(self, rank: int) -> None:
        """Read a stream of this data parallel rank's own."""
        self.rank = rank
        self.at = 0
        self.left: list[int] = []

    def batch(self, count: int) -> list[Sample]:
        """Give so many samples, packed of documents of different lengths."""
        while len(self.left) < count:
            self.at += 1
            document = 1000 * self.rank + self.at
            self.left += [document * 7 + n for n in range(1 + document % 5)]
        given, self.left = self.left[:count], self.left[count:]
        return [sample(number) for number in given]

    def state_dict(self) -> dict[str, Any]:
        """As torchtitan's loader gives it: bytes that only it understands."""
        return {"rank": self.rank, "bytes": pickle.dumps((self.at, self.left))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        assert state_dict["rank"] == self.rank
        self.at, self.left = pickle.loads(state_dict["bytes"])


class UserJob:
    """One rank."""

    def __init__(self, has: Has) -> None:
        """Prepare."""
        self.has = has
        self.rank = int(os.environ["RANK"])
        self.out = Path(has.out)
        self.signals = 0
        self.built = 0
        self.session: Session | None = None
        self.writer = Writer(Path(has.folder).parent / "own", has.writer, has.hold_at)

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """Everything for one layout."""
        self.built += 1
        mesh = init_device_mesh("cpu", (layout.dp_shard, layout.tp), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(0 if self.built == 1 and not self._resumes() else 77)
        blocks: list[nn.Module] = [Block() for _ in range(2)]
        for n, block in enumerate(blocks):
            if layout.tp > 1:
                plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
                parallelize_module(block, mesh["tp"], plan)
            blocks[n] = checkpoint_wrapper(block)
            if self.has.compiled:
                compiled: Any = torch.compile(blocks[n], backend="eager")
                blocks[n] = compiled
            fully_shard(blocks[n], mesh=mesh["dp"])
        net = Net(blocks)
        fully_shard(net, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
        state = State(
            modules=[net],
            optimizers=[optimizer],
            extra={"schedule": torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)},
            averages={
                "ema": {name: each.detach().clone() for name, each in net.named_parameters()}
            },
        )
        mine = data_rank(layout, ranks.group_rank)
        state.parts.share = (mine, layout.data_parallel)
        if not self.has.seekable:
            state.by_data_rank["loader"] = Packing(mine)
        return state

    def _resumes(self) -> bool:
        return any(Path(self.has.folder).glob("step-*"))

    def probe(self, state: State) -> float:
        """Loss of fixed samples."""
        x_BD, y_BD = (torch.stack(each) for each in zip(*map(sample, range(4)), strict=True))
        loss = nn.functional.mse_loss(state.modules[0](x_BD), y_BD)
        dist.all_reduce(loss)
        return float(loss) / dist.get_world_size()

    def batch(self, state: State) -> Sample:
        """This rank's part of the batch at this position."""
        mine, ranks = state.parts.share
        loader = state.by_data_rank.get("loader")
        if isinstance(loader, Packing):
            given = loader.batch(BATCH // ranks)
        else:
            if not hasattr(state.parts, "batches"):
                part = Part(state.position.samples, mine, ranks)
                workers = 1 if self.has.workers else 0
                loading = DataLoader(part, batch_size=BATCH // ranks, num_workers=workers)
                state.parts.batches = iter(loading)
            x_BD, y_BD = next(state.parts.batches)
            return x_BD, y_BD
        x_BD, y_BD = (torch.stack(each) for each in zip(*given, strict=True))
        return x_BD, y_BD

    def train(self, state: State) -> float:
        """One optimizer step of two microbatches; gives the mean loss."""
        (net,), (optimizer,) = state.modules, state.optimizers
        total = torch.zeros(())
        for x_BD, y_BD in zip(*(each.chunk(MICRO) for each in self.batch(state)), strict=True):
            loss = nn.functional.mse_loss(net(x_BD), y_BD) / MICRO
            torch.autograd.backward(loss)
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        state.extra["schedule"].step()  # type: ignore[attr-defined]
        with torch.no_grad():
            for name, each in net.named_parameters():
                state.averages["ema"][name].lerp_(each, 0.1)
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()

    def run(self) -> int:
        """Train to the end."""
        signal.signal(signal.SIGUSR1, self._heard)
        has = self.has
        turns = [Turn(step=step, layout=Layout(**layout)) for step, layout in has.turns]
        script = Script(turns)
        with (
            self._profiler() as profiler,
            attach(
                "user",
                build=self.build,
                probe=self.probe,
                layout=Layout(**has.layout),
                checkpoint_dir=has.folder,
                boundary_every=has.boundary_every,
                tokens_total=has.steps * BATCH,
                reporter=script if self.rank == 0 else None,
                seekable=has.seekable,
                save=self.writer.save if has.writer else None,
            ) as session,
        ):
            self.session = session
            while not session.done:
                loss = self.train(session.state)
                session.report(tokens=BATCH, samples=BATCH, loss=loss)
                os.kill(os.getpid(), signal.SIGUSR1)
                if profiler is not None:
                    profiler.step()
                self._track(session, loss)
                if session.position.step == has.let_go_at:
                    self.writer.let_go()
                session.boundary()
        self._write(
            "end",
            {
                "rank": self.rank,
                "signals": self.signals,
                "outcome": session.outcome,
                "events": 0 if profiler is None else len(profiler.events() or ()),
                "switches": [[each[0], str(each[1]), each[2]] for each in script.ends()],
            },
        )
        return 0

    def _profiler(self) -> Any:
        if not self.has.profiler:
            return nullcontext()
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1

    def _track(self, session: Session, loss: float) -> None:
        """What docs/attach.md says of experiment trackers."""
        if session.leads:
            line = {
                "run": session.run,
                "step": session.position.step,
                "loss": loss,
                "again": session.retrained,
                "rank": self.rank,
                "layout": str(session.generation.layout),
                "attempt": session.generation.attempt,
                "children": len(_children()),
                "saved": sorted(each.name for each in Path(self.has.folder).glob("step-*")),
            }
            self._write("tracker", line)
        mark = self.out / "killed"
        if self.rank == 1 and session.position.step == self.has.kill_at and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, name: str, line: dict[str, Any]) -> None:
        with (self.out / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _children() -> list[str]:
    """Processes that this one has started."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        found += (task / "children").read_text().split()
    return found


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    return UserJob(Has.from_environment()).run()
