"""A tiny torchtitan configuration that runs on the CPU: `my_configuration` of docs/trainers.md.

It is torchtitan's own Llama 3 with two settings that a CPU needs: plain attention (torch's flexible
attention has no backward there), and DTensors for model-parallel axes only (what torchtitan calls
`spmd_types` needs a torch newer than 2.13).
"""

# B: sample, S: place in the sample.

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.data import IterableDataset

from tests.torchtitan.absent import stood_in

with stood_in():
    importlib.import_module("torchtitan.trainer")

from torchtitan import trainer as trainer_module
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config.configs import (
    CommConfig,
    DebugConfig,
    ParallelismConfig,
    TrainingConfig,
)
from torchtitan.distributed import utils as distributed_utils
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.trainer import Trainer

__all__ = ["Sentences", "Trainer", "configuration", "distributed_utils", "trainer_module"]

BATCH, LENGTH, WORDS, WIDTH = 8, 8, 32, 16


def fill(parameter: Tensor) -> None:
    """Initialize by the logical place, so that every layout begins with the same values."""
    drawn = torch.Generator().manual_seed(parameter.numel())
    whole = torch.randn(parameter.shape, generator=drawn) / 4
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        parameter.copy_(distribute_tensor(whole, mesh, placements, src_data_rank=None))
    else:
        parameter.copy_(whole)


INIT: Any = {"weight": fill, "bias": fill}
NORM: Any = {"weight": torch.nn.init.ones_}


def model() -> Any:
    """One layer of Llama 3."""
    rope = ComplexRoPE.Config(dim=4, max_seq_len=64, theta=10000)
    layers = llama3._build_llama3_layers(
        n_layers=1, dim=WIDTH, n_heads=4, hidden_dim=24, rope=rope, attn_backend="flex"
    )
    made = llama3.Llama3Model.Config(
        dim=WIDTH,
        vocab_size=WORDS,
        tok_embeddings=Embedding.Config(num_embeddings=WORDS, embedding_dim=WIDTH, param_init=INIT),
        norm=RMSNorm.Config(normalized_shape=WIDTH, param_init=NORM),
        lm_head=Linear.Config(in_features=WIDTH, out_features=WORDS, param_init=INIT),
        layers=layers,
    )
    for _, each, _, _ in made.traverse(Linear.Config):
        each.param_init = INIT
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return replace(llama3.model_registry("debugmodel"), model=made)


class Sentences(IterableDataset[Any]):
    """Numbered samples, dealt to data parallel ranks in turn."""

    ends: float = math.inf
    """How many there are."""

    def __init__(self, rank: int, ranks: int) -> None:
        """Begin at this rank's first."""
        self._next, self._ranks = rank, ranks

    def __iter__(self) -> Iterator[Any]:
        """Give them to the end."""
        while self._next < self.ends:
            drawn = torch.Generator().manual_seed(self._next)
            self._next += self._ranks
            start, step = torch.randint(WORDS, (2,), generator=drawn).tolist()
            words_S = (start + torch.arange(LENGTH + 1) * (1 + step % 3)) % WORDS
            yield {"input": words_S[:-1]}, words_S[1:]

    def state_dict(self) -> dict[str, Any]:
        """Give the place."""
        return {"next": self._next}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a place."""
        self._next = state_dict["next"]


class Loader(ParallelAwareDataloader):  # type: ignore[misc]
    """A data loader of the user's own, as torchtitan has them."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):  # type: ignore[misc]
        """Nothing more."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        local_batch_size: int,
        **other: Any,
    ) -> None:
        """Load for one data parallel rank."""
        del config, other
        mine = Sentences(dp_rank, dp_world_size)
        super().__init__(mine, dp_rank, dp_world_size, batch_size=local_batch_size)


class NoWords(BaseTokenizer):  # type: ignore[misc]
    """A tokenizer that is never asked."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        """Nothing."""

    def __init__(self, config: Config, **other: Any) -> None:
        """Keep nothing."""
        super().__init__()

    def encode(self, *args: Any, **named: Any) -> list[int]:
        """Nothing is encoded."""
        raise AssertionError

    def decode(self, *args: Any, **named: Any) -> str:
        """Nothing is decoded."""
        raise AssertionError

    def get_vocab_size(self) -> int:
        """Its words."""
        return WORDS


def configuration(folder: str, steps: int, **degrees: Any) -> Any:
    """Make the configuration: two samples at a time, eight for a step."""
    return Trainer.Config(
        dump_folder=folder,
        hf_assets_path=folder,
        model_spec=model(),
        loss=CrossEntropyLoss.Config(global_vocab_size=WORDS),
        tokenizer=NoWords.Config(),
        dataloader=Loader.Config(),
        optimizer=default_adamw(lr=1e-2),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=2,
            global_batch_size=BATCH,
            seq_len=LENGTH,
            steps=steps,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=False, interval=1),
        activation_checkpoint=None,
        comm=CommConfig(trace_buf_size=0),
        debug=DebugConfig(seed=1, enable_structured_logging=False),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor", **degrees),
    )
