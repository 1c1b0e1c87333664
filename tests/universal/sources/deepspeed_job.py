"""Trains a tiny model with a real DeepSpeed under every ZeRO stage; saves, and tells what it held.

deepspeed_parallel_job.py starts its ranks. Per run: FOLDER/<run>/latest, FOLDER/<run>/step2/...
(the checkpoint) and FOLDER/<run>.safetensors: "<name>|<state>" -> tensor, gathered in memory by the
training ranks through DeepSpeed's own API.

DeepSpeed is imported once; ranks are forked from there. Its shared-memory operator, which it would
compile on first use, is declared incompatible: gloo does the same.
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import save_file
from torch import nn

import tests.deepspeed_once  # noqa: F401 - what ranks would import for themselves
from tests.universal.deepspeed_runs import RUNS, Run

STEPS = 2


class Net(nn.Module):
    """Odd sizes, so that ranks get uneven parts and padding; a tied head, a buffer, frozen ones."""

    def __init__(self) -> None:
        """Draw it."""
        super().__init__()
        self.embed = nn.Embedding(23, 7)
        self.inner = nn.Linear(7, 9)
        self.back = nn.Linear(9, 7, bias=False)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 23, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Parameter(torch.randn(3, 5), requires_grad=False)
        self.register_buffer("counts", torch.arange(7.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        x = self.embed(tokens)
        logits: torch.Tensor = self.head(self.norm(x + self.back(torch.tanh(self.inner(x)))))
        return logits


def engine_of(run: Run) -> Any:
    """A DeepSpeed engine with two parameter groups."""
    torch.manual_seed(3)
    net = Net()
    trained = [each for each in net.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in trained if each.ndim == 1], "weight_decay": 0.0},
    ]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": run.stage},
        "zero_allow_untested_optimizer": True,
    }
    if run.bf16:
        config["bf16"] = {"enabled": True}
    if run.separate:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    config["zero_optimization"]["elastic_checkpoint"] = run.elastic
    made: Any = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
    if run.slots != ("momentum_buffer",):
        made = torch.optim.AdamW(groups, lr=0.02)
    engine, *_ = deepspeed.initialize(model=net, optimizer=made, config=config)
    return engine


def train(engine: Any) -> None:
    """A few steps, every rank on its own tokens."""
    for step in range(STEPS):
        chance = torch.Generator().manual_seed(10 * step + torch.distributed.get_rank())
        tokens = torch.randint(0, 23, (2, 6), generator=chance)
        logits = engine(tokens[:, :-1]).flatten(0, 1).float()
        engine.backward(nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()))
        engine.step()


def whole(parameter: Any, slot: str | None) -> torch.Tensor:
    """One parameter's fp32 master or slot, from all ranks."""
    if hasattr(parameter, "ds_id"):
        found: torch.Tensor = safe_get_full_fp32_param(parameter)
        return found if slot is None else safe_get_full_optimizer_state(parameter, slot)
    # Put together here: DeepSpeed adds zeros to the fragments, which turns -0.0 into 0.0.
    mapping, mine = parameter._hp_mapping, None
    if mapping is not None:
        mine = mapping.lp_fragment_address.start, mapping.get_hp_fragment(slot).detach()
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, mine)
    ordered = sorted((each for each in parts if each is not None), key=lambda each: each[0])
    return torch.cat([each for _, each in ordered]).reshape(parameter.shape)


def gathered(engine: Any, run: Run) -> dict[str, torch.Tensor]:
    """Every tensor whole, as DeepSpeed itself puts it together."""
    found: dict[str, torch.Tensor] = {}
    base = engine.optimizer.optimizer
    if run.stage < 3:
        # A torch optimizer makes its slots in its first step, after DeepSpeed looked for them.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            for slot in (None, *run.slots):
                found[f"{name}|{slot or 'param'}"] = whole(parameter, slot)
            if "exp_avg" in run.slots:
                found[f"{name}|step"] = next(iter(base.state.values()))["step"]
        else:
            with deepspeed.zero.GatheredParameters([parameter], enabled=run.stage == 3):
                found[f"{name}|param"] = parameter.detach().clone()
    for name, buffer in engine.module.named_buffers():
        found[f"{name}|param"] = buffer
    return {key: value.detach().clone().contiguous() for key, value in found.items()}


def rank_of(rank: int, run: Run, folder: Path) -> None:
    """Be one rank."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(run.ranks))
    deepspeed.init_distributed(
        "gloo",
        verbose=False,
        auto_mpi_discovery=False,
        init_method=f"file://{folder}/{run.name}.store",
        rank=rank,
        world_size=run.ranks,
    )
    engine = engine_of(run)
    train(engine)
    engine.save_checkpoint(folder / run.name, tag="step2", client_state={"note": {"tokens": [5]}})
    held = gathered(engine, run)
    if rank == 0:
        save_file(held, folder / f"{run.name}.safetensors")
    torch.distributed.barrier()


def start(work: Callable[[], None]) -> int:
    """Fork a rank; it ends without unwinding."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    return pid


def run_all(runs: Sequence[Sequence[Callable[[], None]]]) -> int:
    """All runs, one after the other, each with its ranks; return how many ranks failed."""
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed collects garbage again and again: what was imported is set aside for all ranks.
    gc.collect()
    gc.freeze()
    failed = 0
    for ranks in runs:
        pids = [start(work) for work in ranks]
        failed += sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)
    return failed


def ranks_of_runs(folder: Path) -> list[list[Callable[[], None]]]:
    """The ranks of every run of RUNS."""
    return [[partial(rank_of, rank, run, folder) for rank in range(run.ranks)] for run in RUNS]
