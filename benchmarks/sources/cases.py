"""What is saved: a small model with odd sizes, in many layouts, dtypes, optimizers and forms.

Every case is written by those whose format it is: torch's checkpoint, its safetensors and zstd
writers, its Hugging Face writer, Accelerate's functions, transformers.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

LAYOUTS = {"fsdp4": (4, 1), "fsdp2-tp2": (2, 2), "replicated4": (4, 1)}
"""Ranks of data and tensor parallelism; the last keeps plain tensors, as DDP does."""

SHARDED = ("fsdp4", "fsdp2-tp2")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _adafactor(params: Any) -> torch.optim.Optimizer:
    # Only here: a second of imports.
    from transformers.optimization import Adafactor  # noqa: PLC0415

    make: Any = Adafactor
    made: torch.optim.Optimizer = make(params, lr=1e-2, relative_step=False)
    return made


OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=False),
    "sgd": lambda params: torch.optim.SGD(params, lr=1e-2, foreach=False),
    "sgd-momentum": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, foreach=False),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2, foreach=False),
    "adafactor of transformers": _adafactor,
}


FACTORED = ("adafactor", "adafactor of transformers")
"""Only for plain tensors: torch 2.13 cannot step its Adafactor on DTensors."""

FORMS = ("flat", "nested", "numbered", "numbered, named")
"""Forms of an optimizer's state: by parameter, the two of torch's own state dict."""

SPECIALS = (
    "a parameter without gradient",
    "an average beside",
    "an average beside, declared",
    "two models",
    "two optimizers",
    "complex and float8 buffers",
    "torch's call of Accelerate",
    "torch's call of Lightning",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One checkpoint.

    Attributes:
        producer: what writes it.
        form: of the optimizer's state, or what is special.
        ask: the reader is expected to ask first, by a sentence that contains this.
    """

    producer: str
    layout: str
    dtype: str
    optimizer: str
    form: str
    ask: str = ""

    @property
    def folder(self) -> str:
        """A folder's name."""
        told = (self.producer, self.layout, self.dtype, self.optimizer, self.form)
        return "-".join(told).replace(" ", "_").replace(",", "").replace("'", "")


def cases() -> Iterator[Case]:
    """Every case."""
    for told in itertools.product(LAYOUTS, DTYPES, OPTIMIZERS, FORMS):
        layout, dtype, optimizer, form = told
        if layout in SHARDED and optimizer in FACTORED:
            continue
        yield Case(
            producer="torch", layout=layout, dtype=dtype, optimizer=optimizer, form=form,
            ask="[[numbered]]" if form == "numbered" else "",
        )  # fmt: skip
    writers = {"torch safetensors": "", "torch zstd": "--unpack", "torch Hugging Face": "--shards"}
    for producer, layout, dtype in itertools.product(writers, SHARDED, DTYPES):
        form = "model" if "Face" in producer else "flat"
        yield Case(producer=producer, layout=layout, dtype=dtype, optimizer="adamw", form=form,
                   ask=writers[producer])  # fmt: skip
    for form, layout in itertools.product(SPECIALS, SHARDED):
        ask = {"an average beside": "--model", "two models": "--model"}.get(form, "")
        yield Case(producer="torch", layout=layout, dtype="float32", optimizer="adamw", form=form,
                   ask=ask)  # fmt: skip
    for layout in SHARDED:
        yield Case(producer="accelerate", layout=layout, dtype="float32", optimizer="adamw",
                   form="side by side")  # fmt: skip
    for dtype, form in itertools.product(DTYPES, ("one file", "sharded index")):
        yield Case(producer="transformers", layout="1 rank", dtype=dtype, optimizer="none",
                   form=form)  # fmt: skip
    for form in ("numbered", "numbered, named"):
        yield Case(producer="transformers", layout="1 rank", dtype="float32", optimizer="adamw",
                   form=f"with optimizer.pt, {form}",
                   ask="[[numbered]]" if form == "numbered" else "")  # fmt: skip


class Net(nn.Module):
    """Odd sizes, a buffer, two layers of equal shape."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        """Draw it."""
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(10, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.up = nn.Linear(6, 14)
        self.norm = nn.LayerNorm(14)
        self.register_buffer("counts", torch.arange(5.0))
        self.to(dtype)


@dataclass
class Trained:
    """A model and its optimizers after two steps; `names` of the parameters by identity."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note the names."""
        self.names = {id(p): name for name, p in self.model.named_parameters()}

    @property
    def order(self) -> list[str]:
        """Names of the parameters in the order of their numbers."""
        groups = (group for each in self.optimizers for group in each.param_groups)
        return [self.names[id(p)] for group in groups for p in group["params"]]


def step(trained: Trained, without: str = "") -> Trained:
    """Two steps on made-up gradients, equal on all ranks that share a shard."""
    for _ in range(2):
        for name, parameter in trained.model.named_parameters():
            if name != without:
                parameter.grad = parameter.detach().clone() * 0.5 + 0.125
        for optimizer in trained.optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return trained
