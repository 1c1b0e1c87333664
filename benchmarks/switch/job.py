"""One rank of the job that benchmarks.switch moves about: the example trainer under the session.

Every second step is a save step. Before it the ranks that train wait until the next order has
arrived; from there to the end of the first step in the new layout is what is timed, by the clock
that all processes of a machine share.
"""

import json
import logging
import os
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

import wattmesh
from examples.pretrain.config import PRESETS, TrainConfig
from examples.pretrain.model import Block, LanguageModel
from examples.pretrain.train import build_state, probe, train_step
from wattmesh.reconfig.state.state import State

VARIABLE = "SWITCH_JOB"
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How the job is run; travels as JSON in an environment variable.

    Attributes:
        switches: how many orders there will be; 0: none, the run ends at its first save step.
        out: folder for marks and for what each rank measured.
        gc_freeze: as `attach` takes it.
        model: what differs from the preset's model.
        compiled: backend that torch compiles every block with; "": none.
        own_group: whether `build` makes a process group of its own, so that no group and nothing
            compiled stays at a switch.
    """

    preset: str
    layout: dict[str, Any]
    folder: str
    out: str
    switches: int
    gc_freeze: bool = False
    model: dict[str, Any] = field(default_factory=dict)
    compiled: str = ""
    own_group: bool = False

    @property
    def config(self) -> TrainConfig:
        """What is trained."""
        preset = PRESETS[self.preset]
        return replace(preset, model=replace(preset.model, **self.model))

    @classmethod
    def here(cls) -> Self:
        """Read the options of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def to_text(self) -> str:
        """Write the options for the environment."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A rank entered the boundary at which switch `number` was due.

    Attributes:
        at_s: monotonic. `cpu_s`: used by the process so far.
    """

    rank: int
    number: int
    at_s: float
    cpu_s: float
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A rank has done its first step after switch `number` (0: the start of the launch).

    Attributes:
        at_s: monotonic. `cpu_s`: used by the process so far. `step_s`: of the first step alone.
        peak_mib: the most that was resident since the rank left the layout before.
        files, threads, rss_mib: of the process, after that step.
    """

    rank: int
    number: int
    at_s: float
    cpu_s: float
    step_s: float
    layout: str
    peak_mib: float
    files: int
    threads: int
    rss_mib: float


class Rank:
    """Trains, and notes what each switch took."""

    def __init__(self, options: JobOptions) -> None:
        """Prepare."""
        self.options = options
        self.rank = int(os.environ["RANK"])
        self.out = Path(options.out)
        self.config = options.config
        self.notes: list[Left | Began] = []

    def run(self) -> None:
        """Train through all orders, and end the run."""
        options = self.options
        with wattmesh.attach(
            "switch-benchmark",
            build=self._build,
            probe=probe,
            layout=wattmesh.Layout(**options.layout),
            checkpoint_dir=options.folder,
            boundary_every=2,
            gc_freeze=options.gc_freeze,
        ) as session:
            while not session.done:
                number = session.generation.number - 1
                began_s = time.monotonic()
                self._step(session)
                self._note_began(number, session, began_s)
                self._step(session)
                if number == options.switches:
                    session.finish()
                else:
                    self._await_order(number + 1)
                self._note_left(number + 1)
                session.boundary()
        self._write()

    def _build(self, layout: wattmesh.Layout, ranks: wattmesh.Ranks) -> State:
        state = build_state(self.config, layout, fresh=ranks.fresh)
        if self.options.compiled:
            for each in (each for module in state.modules for each in module.modules()):
                if isinstance(each, Block):
                    each.compile(backend=self.options.compiled)
        if self.options.own_group:
            dist.new_group()
        return state

    def _step(self, session: wattmesh.Session) -> None:
        metrics = train_step(session.state)
        session.report(tokens=metrics.tokens, samples=metrics.samples, loss=metrics.loss)

    def _await_order(self, number: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while not (self.out / f"order-{number}").exists():
            if time.monotonic() > until:
                raise TimeoutError(f"order {number} did not arrive within {PATIENCE_S} s")
            time.sleep(0.01)

    def _note_left(self, number: int) -> None:
        rss = _memory_mib("VmRSS")
        _reset_peak()
        self.notes.append(
            Left(
                rank=self.rank,
                number=number,
                at_s=time.monotonic(),
                cpu_s=time.process_time(),
                rss_mib=rss,
            )
        )

    def _note_began(self, number: int, session: wattmesh.Session, began_s: float) -> None:
        at_s = time.monotonic()
        self.notes.append(
            Began(
                rank=self.rank,
                number=number,
                at_s=at_s,
                cpu_s=time.process_time(),
                step_s=at_s - began_s,
                layout=str(session.generation.layout),
                peak_mib=_memory_mib("VmHWM"),
                files=len(os.listdir("/proc/self/fd")),
                threads=len(os.listdir("/proc/self/task")),
                rss_mib=_memory_mib("VmRSS"),
            )
        )

    def _write(self) -> None:
        lines = [
            json.dumps({"kind": type(each).__name__, **asdict(each)}) + "\n" for each in self.notes
        ]
        (self.out / f"rank-{self.rank}.jsonl").write_text("".join(lines), encoding="utf-8")


def state_bytes(config: TrainConfig) -> tuple[int, int]:
    """Count a config's parameters, and the bytes of its logical state.

    Parameters, AdamW's two moments, and their average where one is kept.
    """
    with torch.device("meta"):
        model = LanguageModel(config)
    count = sum(each.numel() for each in model.parameters())
    copies = 4 if config.ema_decay else 3
    return count, copies * count * next(model.parameters()).element_size()


def _memory_mib(key: str) -> float:
    """VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


def _reset_peak() -> None:
    """Let VmHWM begin anew (Linux: a 5 written to clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    Rank(JobOptions.here()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
