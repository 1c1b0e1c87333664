"""One rank of the job that benchmarks.gpu.switch moves about: the example under the session.

Several ranks may share device 0, over gloo. What each rank saw is written to `out/rank-N.json`:
losses by step, the moments of every switch, and the device's memory at the start of every `build`,
which is what a teardown has left there.
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

import wattmesh
from benchmarks.gpu.train import LARGE
from examples.pretrain.config import PRESETS, TrainConfig
from examples.pretrain.train import build_state, probe, train_step
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.launch.failures.deadlines import Deadlines
from wattmesh.reconfig.layout import Layout

VARIABLE = "GPU_SWITCH_JOB"
CONFIGS = {**PRESETS, "large": replace(LARGE, model=replace(LARGE.model, seq_len=512))}
PATIENT = Deadlines(agree_s=120, save_s=240, teardown_s=60, rebuild_s=120, load_s=240, verify_s=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the job is run; travels as JSON in an environment variable.

    Attributes:
        layouts: in turn, `every` steps each, round and round; the first one begins.
        switches: how many; 0 trains as many `steps` in the first layout.
        compiled: whether `build` compiles the model.
        deterministic: whether torch is asked for kernels that sum in one order.
    """

    config: str
    dtype: str
    folder: str
    out: str
    steps: int
    layouts: list[dict[str, Any]]
    device: str = "cuda"
    backend: str = ""
    every: int = 4
    switches: int = 0
    compiled: bool = False
    deterministic: bool = False

    @classmethod
    def here(cls) -> Self:
        """Read the options of this process."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def to_text(self) -> str:
        """Write the options for the environment."""
        return json.dumps(asdict(self))

    def turns(self) -> list[Turn]:
        """When to switch, and to what."""
        layouts = [Layout.from_dict(each) for each in self.layouts]
        return [
            Turn(step=self.every * number, layout=layouts[number % len(layouts)])
            for number in range(1, self.switches + 1)
        ]


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one rank saw; all moments are monotonic seconds of the machine.

    Attributes:
        left_s, began_s: by switch: the boundary entered, the first step after it done.
        built_on: allocated bytes of the device at the start of every build; `before`: on entering
            the boundary that led there. `reserved_on`: what torch's allocator held there.
        evidence: by switch, as the leader told it: seconds of every phase. `ends`: how each ended.
    """

    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    built_on: list[int] = field(default_factory=list)
    reserved_on: list[int] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    ends: list[list[Any]] = field(default_factory=list)
    first_step_at_s: float = 0.0
    peak: int = 0


class Rank:
    """Trains, and notes what each switch took and left."""

    def __init__(self, options: Options) -> None:
        """Prepare."""
        self.options = options
        self.config: TrainConfig = replace(CONFIGS[options.config], dtype=options.dtype)
        self.script = Script(options.turns())
        self.seen = Seen()

    def build(self, layout: Layout, ranks: wattmesh.Ranks) -> wattmesh.State:
        """Note what is on the device, and build."""
        self.seen.built_on.append(self._allocated())
        self.seen.reserved_on.append(
            torch.cuda.memory_reserved() if self.options.device == "cuda" else 0
        )
        state = build_state(self.config, layout, device=self.options.device, fresh=ranks.fresh)
        if self.options.compiled:
            for each in state.modules:
                each.compile()
        return state

    def run(self) -> None:
        """Train to the end, through all turns."""
        options = self.options
        with wattmesh.attach(
            "gpu-switch",
            build=self.build,
            probe=probe,
            layout=Layout.from_dict(options.layouts[0]),
            checkpoint_dir=options.folder,
            boundary_every=options.every,
            tokens_total=options.steps * self.config.tokens_per_step,
            device=options.device,
            backend=options.backend,
            deadlines=PATIENT,
            reporter=self.script,
            keep=2,
        ) as session:
            number = session.generation.number
            while not session.done:
                self._step(session)
                self.seen.first_step_at_s = self.seen.first_step_at_s or time.monotonic()
                if session.generation.number != number:
                    number = session.generation.number
                    self.seen.began_s.append(time.monotonic())
                if self.script.turn(session.position.step) is not None:
                    self.seen.left_s.append(time.monotonic())
                    self.seen.before.append(self._allocated())
                session.boundary()
        self._write()

    def _step(self, session: wattmesh.Session) -> None:
        began_s = time.monotonic()
        done = train_step(session.state)
        session.report(tokens=done.tokens, samples=done.samples, loss=done.loss)
        self.seen.losses.append(done.loss)
        self.seen.step_s.append(time.monotonic() - began_s)

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.options.device == "cuda" else 0

    def _write(self) -> None:
        told = self.script.transitions
        self.seen.ends = [[step, str(state), detail] for step, state, detail in self.script.ends()]
        self.seen.evidence = [
            dict(each.evidence) for each in told if str(each.state) == "confirmed"
        ]
        if self.options.device == "cuda":
            self.seen.peak = torch.cuda.max_memory_allocated()
        path = Path(self.options.out) / f"rank-{os.environ['RANK']}.json"
        path.write_text(json.dumps(asdict(self.seen)), encoding="utf-8")


def main() -> int:
    """Run one rank."""
    options = Options.here()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(options.deterministic)
    if options.device == "cuda":
        torch.cuda.set_device(0)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    Rank(options).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
