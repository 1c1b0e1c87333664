"""Real DeepSpeed checkpoints, made once per session: ZeRO-1, 2 and 3, and what the ranks held.

No DeepSpeed is imported here; deepspeed_job.py trains in processes of its own.
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
class Trained:
    """What came of the runs.

    Attributes:
        folder: `folder / name` is what DeepSpeed saved under that run's name, with its `latest`.
    """

    folder: Path

    def held(self, name: str) -> Held:
        """What the ranks of a run held in memory, whole, by (name, state)."""
        return held_in(self.folder / f"{name}.safetensors")


def train_all(folder: Path) -> Trained:
    """Train and save every run of RUNS."""
    command = [sys.executable, "-m", "tests.universal.sources.deepspeed_job", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return Trained(folder)


@pytest.fixture(scope="session")
def deepspeed_runs(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Every run of RUNS, trained once."""
    return train_all(tmp_path_factory.mktemp("deepspeed_runs"))
