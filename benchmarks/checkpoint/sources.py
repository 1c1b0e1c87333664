"""Real checkpoints to convert, written by those whose formats they are.

    torchrun ... -m benchmarks.checkpoint.sources zero FOLDER --stage 1 --params 110e6
    torchrun ... -m benchmarks.checkpoint.sources dcp FOLDER --params 110e6

`zero`: DeepSpeed trains a GPT for one step with Adam and saves it as global_step1. `dcp`: tensors
of the same shapes, with both moments, sharded over the ranks and saved by torch.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

LAYERS, CONTEXT = 12, 16
"""Depth of the model; tokens of its one training sample."""


def sizes(params: float) -> tuple[int, int]:
    """Width and vocabulary of a GPT of about so many parameters: 110e6 gives 768 and 16384."""
    width = max(32, round((params / 110.2e6) ** 0.5 * 768 / 32) * 32)
    return width, max(64, width * 64 // 3)


class Block(nn.Module):
    """One transformer block's weights; attention without its softmax is enough for gradients."""

    def __init__(self, width: int) -> None:
        """Make the weights."""
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix."""
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        x = x + self.o(torch.tanh(q * k) * v)
        out: torch.Tensor = x + self.down(torch.relu(self.up(self.ln2(x))))
        return out


class Model(nn.Module):
    """A GPT's tensors, in a GPT's proportions."""

    def __init__(self, params: float) -> None:
        """Make about so many parameters."""
        super().__init__()
        width, vocabulary = sizes(params)
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Loss of predicting the next token."""
        x = self.embed(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def zero(folder: Path, stage: int, params: float) -> None:
    """Train one step with DeepSpeed and save."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    # Only here: the other sources need no DeepSpeed.
    import deepspeed  # noqa: PLC0415

    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(0)
    model = Model(params)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(
        model=model, config=config, model_parameters=list(model.parameters())
    )
    chance = torch.Generator().manual_seed(100 + dist.get_rank())
    tokens = torch.randint(0, 64, (1, CONTEXT + 1), generator=chance)
    engine.backward(engine(tokens))
    engine.step()
    info = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.4}}
    engine.save_checkpoint(str(folder), tag="global_step1", client_state=info)


def tensors(params: float, dim: int, *, filled: bool) -> dict[str, Any]:
    """The model's tensors and both moments of each, sharded along `dim` where they can be."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.device("meta"):
        shapes: Mapping[str, torch.Size] = {
            name: each.shape for name, each in Model(params).named_parameters()
        }
    chance = torch.Generator().manual_seed(dist.get_rank())
    world = dist.get_world_size()
    found: dict[str, Any] = {}
    for name, shape in shapes.items():
        along = dim if dim < len(shape) and shape[dim] % world == 0 else 0
        local = list(shape)
        local[along] //= world
        for key in (f"model.{name}", *(f"optim.state.{name}.{slot}" for slot in SLOTS)):
            data = torch.rand(local, generator=chance) if filled else torch.zeros(local)
            found[key] = DTensor.from_local(data, mesh, [Shard(along)])
    return found


SLOTS = ("exp_avg", "exp_avg_sq")


def main() -> int:
    """Write one source; every rank of a launch calls this."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["zero", "dcp"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--params", type=float, default=110e6)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.kind == "zero":
        zero(chosen.folder, chosen.stage, chosen.params)
    else:
        dist.init_process_group("gloo")
        save(tensors(chosen.params, 0, filled=True), checkpoint_id=chosen.folder)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
