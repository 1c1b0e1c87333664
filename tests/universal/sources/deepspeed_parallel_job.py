"""Trains tiny models under a real DeepSpeed's pipeline and tensor parallelism; saves them.

    python -m tests.universal.sources.deepspeed_parallel_job FOLDER

As deepspeed_job.py, but what is held in memory is told by every model-parallel rank for itself:
FOLDER/<run>-<model-parallel rank>.safetensors.
"""

import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.runtime.pipe.engine
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import is_moe_param, split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import (
    PipelineParallelGrid,
    PipeModelDataParallelTopology,
)
from deepspeed.utils import groups
from safetensors.torch import save_file
from torch import nn

from tests.universal.deepspeed_runs import PARALLEL, Parallel
from tests.universal.sources.deepspeed_job import STEPS, ranks_of_runs, run_all

WIDTH, VOCABULARY = 6, 23


class _Copied(torch.autograd.Function):
    """The input of a split layer: its gradients are summed over the tensor-parallel ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.contiguous()
        torch.distributed.all_reduce(grad, group=ctx.group)
        return grad, None


class _Summed(torch.autograd.Function):
    """The output of a split layer, summed over the tensor-parallel ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        total = x.contiguous().clone()
        torch.distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class Split(nn.Module):
    """A perceptron that the model itself splits: columns, then rows; a bias and a norm are copies.

    Ranks hold 5 and 4 of 9 features, so that slices are uneven.
    """

    GROUP: Any = None

    def __init__(self) -> None:
        """Draw all of it, keep a part."""
        super().__init__()
        ranks = torch.distributed.get_world_size(self.GROUP) if self.GROUP is not None else 1
        rank = torch.distributed.get_rank(self.GROUP) if self.GROUP is not None else 0
        whole = nn.Linear(WIDTH, 9), nn.Linear(9, WIDTH)
        self.inner = nn.Parameter(torch.tensor_split(whole[0].weight.data, ranks)[rank].clone())
        self.shift = nn.Parameter(torch.tensor_split(whole[0].bias.data, ranks)[rank].clone())
        self.back = nn.Parameter(torch.tensor_split(whole[1].weight.data, ranks, 1)[rank].clone())
        self.bias = nn.Parameter(whole[1].bias.data.clone())
        self.norm = nn.LayerNorm(WIDTH)
        self.frozen = nn.Parameter(torch.randn(3, 5), requires_grad=False)
        self.register_buffer("counts", torch.randn(4).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With its residual."""
        seen = x if self.GROUP is None else _Copied.apply(x, self.GROUP)  # type: ignore[no-untyped-call]
        part = torch.tanh(seen @ self.inner.T + self.shift) @ self.back.T
        total = part if self.GROUP is None else _Summed.apply(part, self.GROUP)  # type: ignore[no-untyped-call]
        out: torch.Tensor = self.norm(x + total + self.bias)
        return out


class Twice(nn.Module):
    """A layer that has one weight under two names."""

    def __init__(self) -> None:
        """Draw it."""
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH, bias=False)
        self.two = nn.Linear(WIDTH, WIDTH, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both."""
        out: torch.Tensor = x + self.two(torch.tanh(self.one(x)))
        return out


class Scale(nn.Module):
    """A layer that stages share."""

    def __init__(self) -> None:
        """Ones."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale."""
        return x * self.weight


class Frozen(nn.Module):
    """A layer that is not trained."""

    def __init__(self) -> None:
        """Draw it."""
        super().__init__()
        self.factor = nn.Parameter(torch.rand(WIDTH) + 1, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale."""
        return x * self.factor


def logits(embedding: nn.Embedding, x: torch.Tensor) -> torch.Tensor:
    """The head: the embedding again."""
    out: torch.Tensor = x @ embedding.weight.T
    return out


def loss_of(out: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy."""
    return nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())


def pipeline(topology: Any, *, apart: bool) -> Any:
    """A module of ten layers: two are shared by stages, one is a function, one is frozen."""
    scale = TiedLayerSpec("scale", Scale)
    if apart:
        scale = TiedLayerSpec("scale", nn.LayerNorm, WIDTH)
    layers = [
        TiedLayerSpec("embed", nn.Embedding, VOCABULARY, WIDTH),
        LayerSpec(Twice),
        scale,
        torch.tanh,
        LayerSpec(Split),
        LayerSpec(nn.Linear, WIDTH, WIDTH),
        LayerSpec(Frozen),
        LayerSpec(Split),
        scale,
        TiedLayerSpec("embed", nn.Embedding, VOCABULARY, WIDTH, forward_fn=logits),
    ]
    return PipelineModule(layers, topology=topology, loss_fn=loss_of, partition_method="uniform")


class Net(nn.Module):
    """The same without stages; `up` and `down` are for DeepSpeed to split."""

    def __init__(self, *, auto: bool) -> None:
        """Draw it."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.split = nn.Identity() if auto else Split()
        self.up = nn.Linear(WIDTH, 10)
        self.fused = nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(10, WIDTH, bias=False)
        self.mix = nn.Linear(24, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.arange(3.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        x = self.split(self.embed(tokens))
        x = x + self.down(torch.tanh(self.up(x))) + self.mix(torch.tanh(self.fused(x)))
        out: torch.Tensor = self.norm(x) @ self.embed.weight.T
        return out


class Expert(nn.Module):
    """An expert with a buffer and a frozen parameter."""

    def __init__(self) -> None:
        """Draw it."""
        super().__init__()
        self.up = nn.Linear(WIDTH, 5)
        self.down = nn.Linear(5, WIDTH, bias=False)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("seen", torch.arange(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers."""
        out: torch.Tensor = self.down(torch.tanh(self.up(x)))
        return out


class Mixtures(nn.Module):
    """Two mixtures of four experts; their outputs' auxiliary losses are left out."""

    def __init__(self, degree: int) -> None:
        """Draw it."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layers = (MoE(WIDTH, Expert(), 4, degree, min_capacity=0, use_rts=False) for _ in "12")
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.arange(3.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)[0]
        out: torch.Tensor = self.norm(x) @ self.embed.weight.T
        return out


AUTO = {
    "autotp_size": 2,
    "partition_config": {
        "use_default_specs": False,
        "layer_specs": [
            {"patterns": [r".*up\.weight$"], "partition_type": "column"},
            {
                "patterns": [r".*fused\.weight$"],
                "partition_type": "column",
                "shape": [[12, 4, 8], -1],
                "partition_dim": 0,
            },
            {"patterns": [r".*(down|mix)\.weight$"], "partition_type": "row"},
        ],
    },
}


TOLD = {
    "universal_checkpoint_version": 0.2,
    "tp_replicated_parameter_patterns": [
        r"embed\.weight", r"split\.bias", r"split.norm\..*", "up", "fused", "down", "mix", "norm",
    ],
    "parameter_with_row_parallelism_patterns": [r"split\.back$"],
}  # fmt: skip
"""What a script tells of a model that splits itself; `inner` and `shift` by leaving them out."""


def engine_of(run: Parallel) -> Any:
    """A DeepSpeed engine of a run."""
    grid = None
    if not run.auto and not run.experts:
        topology = PipeModelDataParallelTopology(max(1, run.stages), run.tensor, run.data)
        grid = PipelineParallelGrid(topology)
        Split.GROUP = grid.get_slice_parallel_group() if run.tensor > 1 else None
    torch.manual_seed(3)
    net = pipeline(topology, apart=run.apart) if run.stages else Net(auto=run.auto)
    if run.experts:
        net = Mixtures(run.experts)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2 if run.stages else 1,
        "zero_optimization": {"stage": run.zero},
        "use_data_before_expert_parallelism": run.data_first,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "torch_adam": True}},
    }
    if run.bf16:
        config["bf16"] = {"enabled": True}
    if run.separate:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if run.auto:
        config["tensor_parallel"] = AUTO
    mpu = None if run.stages else grid
    trained: Any = [each for each in net.parameters() if each.requires_grad]
    if run.experts:
        trained = split_params_into_different_moe_groups_for_optimizer(
            {"params": trained, "name": "all"}
        )
    engine, *_ = deepspeed.initialize(model=net, model_parameters=trained, config=config, mpu=mpu)
    return engine


def batches(number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens of a data-parallel rank, without end."""
    chance = torch.Generator().manual_seed(number)
    while True:
        tokens = torch.randint(0, VOCABULARY, (2, 6), generator=chance)
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(engine: Any, run: Parallel) -> None:
    """A few steps."""
    data = batches(torch.distributed.get_rank(engine.optimizer.dp_process_group))
    for _ in range(STEPS):
        if run.stages:
            engine.train_batch(data)
        else:
            tokens, following = next(data)
            engine.backward(loss_of(engine(tokens), following))
            engine.step()


def whole(parameter: Any, slot: str | None, group: Any) -> torch.Tensor:
    """One parameter's fp32 master or slot, from the data-parallel ranks."""
    mapping, mine = parameter._hp_mapping, None
    if mapping is not None:
        mine = mapping.lp_fragment_address.start, mapping.get_hp_fragment(slot).detach()
    parts: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(parts, mine, group=group)
    ordered = sorted((each for each in parts if each is not None), key=lambda each: each[0])
    return torch.cat([each for _, each in ordered]).reshape(parameter.shape)


def unique(name: str, run: Parallel) -> str:
    """A name with the number of its expert among all; ranks count theirs from 0."""
    if not run.experts:
        return name
    rank = groups._get_expert_parallel_rank(f"ep_size_{run.experts}")

    def renumbered(found: re.Match[str]) -> str:
        return f"deepspeed_experts.{int(found[1]) + rank * 4 // run.experts}."

    return re.sub(r"deepspeed_experts\.(\d+)\.", renumbered, name)


def gathered(engine: Any, run: Parallel) -> dict[str, torch.Tensor]:
    """Every tensor of this model-parallel rank, whole over the data-parallel ones."""
    found: dict[str, torch.Tensor] = {}
    optimizer = engine.optimizer
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    base = optimizer.optimizer.state
    for local, parameter in engine.module.named_parameters():
        name, group = unique(local, run), optimizer.dp_process_group
        if parameter.requires_grad:
            if is_moe_param(parameter):
                group = groups._get_expert_data_parallel_group(parameter.group_name)
            for slot in (None, "exp_avg", "exp_avg_sq"):
                full = whole(parameter, slot, group)
                found[f"{name}|{slot or 'param'}"] = full
            found[f"{name}|step"] = next(iter(base.values()))["step"]
        else:
            found[f"{name}|param"] = parameter
    for name, buffer in engine.module.named_buffers():
        found[f"{unique(name, run)}|param"] = buffer
    return {key: value.detach().clone().contiguous() for key, value in found.items()}


def world_of(run: Parallel) -> int:
    """All ranks."""
    return run.data if run.experts else run.model * run.data


def rank_of(rank: int, run: Parallel, folder: Path) -> None:
    """Be one rank."""
    world = world_of(run)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    deepspeed.init_distributed(
        "gloo",
        verbose=False,
        auto_mpi_discovery=False,
        init_method=f"file://{folder}/{run.name}.store",
        rank=rank,
        world_size=world,
    )
    engine = engine_of(run)
    train(engine, run)
    client: dict[str, Any] = {"note": {"tokens": [5]}}
    if run.told:
        client["universal_checkpoint_info"] = TOLD
    engine.save_checkpoint(folder / run.name, tag="step2", client_state=client)
    held = gathered(engine, run)
    data = torch.distributed.get_rank(engine.optimizer.dp_process_group)
    if run.experts:
        name = f"ep_size_{run.experts}"
        if groups._get_expert_data_parallel_rank(name) == 0:
            mine = groups._get_expert_parallel_rank(name)
            save_file(held, folder / f"{run.name}-{mine}.safetensors")
    elif data == 0:
        model = engine.mpu.get_model_parallel_rank()
        save_file(held, folder / f"{run.name}-{model}.safetensors")
    torch.distributed.barrier()


def main() -> int:
    """All runs, those of deepspeed_job.py too, one after the other."""
    folder = Path(sys.argv[1])
    parallel = [
        [partial(rank_of, rank, run, folder) for rank in range(world_of(run))] for run in PARALLEL
    ]
    return run_all([*ranks_of_runs(folder), *parallel])


if __name__ == "__main__":
    sys.exit(main())
