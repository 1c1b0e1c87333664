"""The torchtitan block of docs/attach.md as a job of one rank, by a stand-in for `Trainer` alone.

torchtitan's own Trainer needs kernels that are built for a GPU; the parts of this one, and the
configurations of parallelism and checkpoints, are torchtitan's.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.config.configs import ParallelismConfig

from tests.docs.blocks import block, filled
from tests.torchtitan.test_checkpoints import trainer
from wattmesh.reconfig.state.state import State


@dataclass
class Config:
    """What the adapter reads of a trainer's configuration."""

    training: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            global_batch_size=2, local_batch_size=2, seq_len=4, steps=4
        )
    )
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    checkpoint: Any = field(default_factory=lambda: CheckpointManager.Config(interval=2))


class Trainer:
    """Builds its parts in a process group that stands, and does steps."""

    def __init__(self, config: Config) -> None:
        """Build."""
        torch.manual_seed(3)
        self.config = config
        dims = self.init_distributed()
        vars(self).update(vars(trainer(Path(os.environ["REAL"]) / "titan")), parallel_dims=dims)
        self.gc_handler = SimpleNamespace(run=lambda step: None)

    def init_distributed(self) -> Any:
        """What the session must not let happen."""
        raise AssertionError("a second process group was made")

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        """Give batches."""
        return iter(data_iterable)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Train on one."""
        mine: Any = self
        inputs, _ = next(data_iterator)
        print("trained", inputs["input"].flatten().tolist())
        torch.autograd.backward(_loss(mine.model_parts[0], inputs["input"]))
        mine.optimizers.step()
        mine.lr_schedulers.step()
        mine.ntokens_seen += 8


def _loss(part: Any, numbers: torch.Tensor) -> torch.Tensor:
    x_BD = numbers.float().expand(-1, 4) / 10
    return nn.functional.mse_loss(part["layers"]["1"](part["layers"]["0"](x_BD)), x_BD)


def _probe(state: State) -> float:
    return float(_loss(state.modules[0], torch.ones(2, 1)))


def main() -> int:
    """Train as the page has it."""
    stand_in = ModuleType("torchtitan.trainer")
    vars(stand_in)["Trainer"] = Trainer
    sys.modules["torchtitan.trainer"] = stand_in
    names: dict[str, Any] = {"config": Config(), "probe": _probe}
    real = {"/shared/llama-8b": f"{os.environ['REAL']}/run"}
    filled(block("docs/attach.md", "torchtitan"), names, **real)
    print("ended", names["session"].outcome)
    return 0
