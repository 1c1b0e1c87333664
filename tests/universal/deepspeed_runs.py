"""Real DeepSpeed checkpoints, made once per session: ZeRO-1, 2 and 3, and what the ranks held.

No DeepSpeed is imported here; sources/deepspeed_parallel_job.py trains in processes of its own.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.universal.comparing import Held, held_in

PATIENCE_S = 240


@dataclass(frozen=True, slots=True)
class Run:
    """One training run; `slots` are those of the parameters' shape.

    Attributes:
        elastic: the optimizer's state is saved without padding, and without its settings.
        separate: DeepSpeed's separate bf16 optimizer, which names no stage.
    """

    name: str
    stage: int
    ranks: int
    slots: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    bf16: bool = False
    elastic: bool = False
    separate: bool = False

    @property
    def described(self) -> str:
        """What a reader calls it."""
        kind = "bf16 optimizer" if self.separate else f"ZeRO-{self.stage}"
        return f"DeepSpeed {kind}, {self.ranks} ranks"


RUNS = (
    Run("zero1", 1, 2),
    Run("zero1-bf16", 1, 2, bf16=True),
    Run("zero2", 2, 2, slots=("momentum_buffer",)),
    Run("zero3", 3, 4),
    Run("elastic", 1, 2, elastic=True),
    Run("bf16-optimizer", 1, 2, bf16=True, separate=True),
)


@dataclass(frozen=True, slots=True)
class Parallel:
    """One training run with model or expert parallelism.

    Attributes:
        stages: of a pipeline module; 0 for a model that is none.
        tensor, data: degrees.
        experts: expert-parallel ranks among the data-parallel ones; 0 for no experts.
        data_first: neighbours are data-parallel replicas of the same experts.
        auto: DeepSpeed splits the layers (AutoTP); else the model does.
        told: the script tells how its ranks hold parameters.
        apart: stages share a layer with a bias, which DeepSpeed does not keep equal.
    """

    name: str
    stages: int = 0
    tensor: int = 1
    data: int = 1
    bf16: bool = False
    separate: bool = False
    auto: bool = False
    apart: bool = False
    told: bool = False
    experts: int = 0
    data_first: bool = False
    zero: int = 1

    @property
    def model(self) -> int:
        """Model-parallel ranks, or expert-parallel ones."""
        return self.experts or max(1, self.stages) * self.tensor

    @property
    def described(self) -> str:
        """What a reader calls it."""
        kind = "bf16 optimizer" if self.separate else f"ZeRO-{self.zero}"
        experts = f", expert parallelism {self.experts}" if self.experts else ""
        plural = "s" if self.data > 1 else ""
        stages = f", {self.stages} pipeline stages" if self.stages else ""
        tensor = f", tensor parallelism {self.tensor}" if self.tensor > 1 else ""
        return f"DeepSpeed {kind}, {self.data} data-parallel rank{plural}{stages}{tensor}{experts}"


PARALLEL = (
    Parallel("pipe", stages=2, data=2),
    Parallel("pipe-bf16", stages=3, bf16=True),
    Parallel("pipe-separate", stages=2, bf16=True, separate=True),
    Parallel("pipe-apart", stages=2, apart=True),
    Parallel("pipe-tensor", stages=2, tensor=2),
    Parallel("split", tensor=2, data=2, told=True),
    Parallel("auto", tensor=2, data=2, auto=True, zero=2),
    Parallel("experts", data=4, experts=2, zero=2),
    Parallel("experts-bf16", data=4, experts=2, data_first=True, bf16=True),
)


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of the runs.

    Attributes:
        folder: `folder / name` is what DeepSpeed saved under that run's name, with its `latest`.
    """

    folder: Path

    def held_by(self, run: Parallel) -> list[Held]:
        """What each model-parallel rank of a run held, whole over its data-parallel ones."""
        names = (f"{run.name}-{rank}.safetensors" for rank in range(run.model))
        return [held_in(self.folder / name) for name in names]

    def held(self, name: str) -> Held:
        """What the ranks of a run held in memory, whole, by (name, state)."""
        return held_in(self.folder / f"{name}.safetensors")


def train_all(folder: Path) -> Trained:
    """Train and save every run."""
    job = "tests.universal.sources.deepspeed_parallel_job"
    command = [sys.executable, "-m", job, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["DS_ACCELERATOR"] = "cpu"
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return Trained(folder)


@pytest.fixture(scope="session")
def deepspeed_runs(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Every run of RUNS and of PARALLEL, trained once: DeepSpeed is imported once for all."""
    return train_all(tmp_path_factory.mktemp("deepspeed_runs"))
