"""Tiny language models of transformers' own classes, trained by a script's functions.

The same functions train in one process without us (`alone`), and on ranks that are moved (`main`).

Shape suffixes: B samples of a batch, S positions, N tokens of a batch, V words.
"""

import json
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.utils.data import Dataset
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaForCausalLM
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from wattmesh.integrations.pytorch import huggingface
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.integrations.pytorch.huggingface import sharding
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.layout import Layout

BATCH, LENGTH, WORDS, SAMPLES = 8, 12, 50, 36
"""BATCH is global; SAMPLES make an epoch of four steps and a half; WORDS are not divided by 4."""

KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Has:
    """What the job has; travels as JSON in the environment variable HF_JOB.

    Attributes:
        turns: (step, layout) of every switch that is ordered.
        heads: query heads, and those of keys and values.
        whole_attention: leave it out of the plan, for fewer heads than tp ranks.
        optimizer: "" | "fused" | "master": torch's AdamW, or one that keeps copies in fp32.
        scaled: the loss is scaled by torch's GradScaler, which grows every second step.
        mixed: products in bf16 of parameters in `dtype`, by FSDP2.
        kill_at: rank 1 kills itself once, after this step was logged.
        spoil: "" or what is broken on purpose.
    """

    folder: str = ""
    out: str = ""
    kind: str = "llama"
    layout: str = "dp4"
    turns: list[tuple[int, str]] = field(default_factory=list)
    steps: int = 8
    layers: int = 1
    heads: tuple[int, int] = (8, 4)
    dtype: str = "float64"
    tied: bool = True
    whole_attention: bool = False
    dropout: float = 0.0
    scaled: bool = False
    mixed: bool = False
    optimizer: str = ""
    kill_at: int = 0
    spoil: str = ""

    @classmethod
    def from_environment(cls) -> Self:
        """Read what this process has."""
        return cls(**json.loads(os.environ["HF_JOB"]))

    def to_text(self) -> str:
        """Write it for the environment."""
        return json.dumps(asdict(self))


def config_of(has: Has) -> PreTrainedConfig:
    """A configuration that is tiny."""
    given: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": has.layers,
        "num_attention_heads": has.heads[0],
        "num_key_value_heads": has.heads[1],
        "head_dim": 4,
        "vocab_size": WORDS,
        "max_position_embeddings": 32,
        "tie_word_embeddings": has.tied,
        "attention_dropout": has.dropout,
        "use_cache": False,
    }
    made: PreTrainedConfig = KINDS[has.kind][0](**given)
    return made


def make_model(has: Has) -> Any:
    """Make the model, the same on every rank."""
    torch.manual_seed(0)
    model = KINDS[has.kind][1](config_of(has)).to(getattr(torch, has.dtype))
    if has.dtype == "float64":
        _compute_norms_exactly(model)
    if has.whole_attention:
        model.tp_plan = {key: each for key, each in model.tp_plan.items() if "attn" not in key}
    if has.spoil == "unsummed":
        sharding._SumGradients._sum = _as_it_came  # type: ignore[method-assign]
    return model.train()


def _as_it_came(self: Any, gradient: Tensor) -> Tensor:
    del self
    return gradient


def _compute_norms_exactly(model: nn.Module) -> None:
    """Keep norms in fp64: transformers computes them in fp32, whatever the parameters are."""
    for each in model.modules():
        if type(each).__name__.endswith("RMSNorm"):
            each.forward = partial(_norm, each)


def _norm(module: Any, x_BSD: Tensor) -> Tensor:
    scale = torch.rsqrt(x_BSD.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    scaled: Tensor = module.weight * (x_BSD * scale)
    return scaled


class MasterAdamW(torch.optim.Optimizer):
    """AdamW in fp32 of parameters in bf16, with fp32 copies of its own."""

    def __init__(self, groups: Any, lr: float, eps: float) -> None:
        """Keep nothing yet."""
        super().__init__(groups, {"lr": lr, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step the copies, and round the parameters from them."""
        del closure
        for group in self.param_groups:
            for each in (each for each in group["params"] if each.grad is not None):
                state = self.state[each]
                if not state:
                    state["master"] = each.detach().float()
                    state["exp_avg"] = torch.zeros_like(state["master"])
                    state["exp_avg_sq"] = torch.zeros_like(state["master"])
                gradient = each.grad.float()
                state["exp_avg"].mul_(0.9).add_(gradient, alpha=0.1)
                state["exp_avg_sq"].mul_(0.99).add_(gradient * gradient, alpha=0.01)
                state["master"].mul_(1 - group["lr"] * group["weight_decay"])
                ratio = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])
                state["master"].sub_(ratio * group["lr"])
                each.copy_(state["master"])


def make_optimizer(has: Has, model: nn.Module) -> Any:
    """AdamW in two groups, and a learning rate that falls."""
    flat = [each for each in model.parameters() if each.dim() < 2]
    wide = [each for each in model.parameters() if each.dim() >= 2]
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer
    if has.optimizer == "master":
        optimizer = MasterAdamW(groups, lr=1e-2, eps=1e-4)
    else:
        optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-4, fused=has.optimizer == "fused")
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)


class Sentences(Dataset[Tensor]):
    """Each sample is drawn from its place."""

    def __len__(self) -> int:
        """An epoch."""
        return SAMPLES

    def __getitem__(self, place: int) -> Tensor:
        """A sentence in which each word follows from the one before."""
        drawn = torch.Generator().manual_seed(place)
        start, step = torch.randint(WORDS, (2,), generator=drawn).tolist()
        words_S: Tensor = (start + torch.arange(LENGTH) * (1 + step % 3)) % WORDS
        return words_S


def make_loader(has: Has, first: int, rank: int, ranks: int) -> Iterable[Any]:
    """This rank's batches."""
    late = 1 if has.spoil == "skewed" and ranks == 1 else 0
    return huggingface.in_order(Sentences(), BATCH, shuffle_seed=5)(first + late, rank, ranks)


def make_extra(has: Has) -> dict[str, torch.amp.GradScaler]:
    """What the script keeps besides."""
    found = {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)}
    return found if has.scaled else {}


def train_step(
    model: Any, optimizer: Any, schedule: Any, batch_BS: Tensor, scaler: Any = None
) -> Tensor:
    """One optimizer step of microbatches of two samples; ranks synchronize at the last one."""
    sharded = isinstance(model, FSDPModule)
    parts = torch.split(batch_BS, 2)
    total = torch.zeros((), dtype=torch.float64)
    for number, part_BS in enumerate(parts, start=1):
        if sharded:
            model.set_requires_gradient_sync(number == len(parts))
        logits_NV = model(input_ids=part_BS).logits[:, :-1].flatten(0, 1)
        logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        loss = nn.functional.cross_entropy(logits_NV, part_BS[:, 1:].flatten()) / len(parts)
        torch.autograd.backward(scaler.scale(loss) if scaler else loss)
        total += loss.detach()
    if scaler:
        scaler.unscale_(optimizer)
    if sharded:
        huggingface.clip_grad_norm(model, 0.5)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return total


def alone(has: Has) -> tuple[dict[int, float], float]:
    """Train in this process without anything of ours; the losses, and the average's sum."""
    model = make_model(has)
    optimizer, schedule = make_optimizer(has, model)
    average = begin_average([model])
    batches: Iterator[Any] = iter(make_loader(has, 0, 0, 1))
    losses = {}
    for step in range(1, has.steps + 1):
        losses[step] = float(train_step(model, optimizer, schedule, next(batches).batch))
        move_average([model], average, 0.9)
    return losses, sum_of(average)


def sum_of(average: dict[str, Tensor]) -> float:
    """One number that any change of the average would change."""
    whole = [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in average.values()
    ]
    return sum(float(each.double().square().sum()) for each in whole)


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    has = Has.from_environment()
    out, rank = Path(has.out), int(os.environ["RANK"])
    if has.spoil == "untied":
        sharding._tie_again = lambda modules, names: None
    script = Script(Turn(step=step, layout=Layout.from_text(to)) for step, to in has.turns)
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    session = huggingface.attach(
        "hf",
        partial(make_model, has),
        partial(make_optimizer, has),
        partial(make_loader, has),
        global_batch=BATCH,
        seq_len=LENGTH,
        layout=Layout.from_text(has.layout),
        checkpoint_dir=has.folder,
        steps=has.steps,
        mp_policy=bf16 if has.mixed else None,
        ema_decay=0.9,
        extra=partial(make_extra, has),
        boundary_every=1,
        reporter=script if rank == 0 else None,
    )
    average = 0.0

    def scaled_step(model: Any, optimizer: Any, schedule: Any, batch_BS: Tensor) -> Tensor:
        scaler = session.state.extra.get("scaler")
        return train_step(model, optimizer, schedule, batch_BS, scaler)

    for loss in huggingface.train(session, scaled_step):
        step, layout = session.position.step, str(session.generation.layout)
        if step == has.steps:
            average = sum_of(session.state.averages["ema"])
        if session.leads:
            line = {"step": step, "loss": loss, "layout": layout}
            if has.scaled:
                line["scale"] = session.state.extra["scaler"].state_dict()["scale"]
            with (out / "steps.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        mark = out / "killed"
        if rank == 1 and session.position.step == has.kill_at and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        (out / "ema").write_text(repr(average))
        ends = [[each[0], str(each[1]), each[2]] for each in script.ends()]
        (out / "switches.json").write_text(json.dumps(ends))
    return 0
