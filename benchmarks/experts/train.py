"""Trains a small mixture-of-experts language model with one router, and records what it chose.

The example's model (`examples/pretrain`) on the source of Python's standard library, of which the
last eighth is held back. One process, one thread, fp32. All variants of a seed go on from one
state that was trained without costs, as a live job would: beginnings that differ by a rounding end
percents apart in runs as short as these.

Shape suffixes: B batch, S sequence, D model width, N tokens, P experts per token, X experts.
"""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from examples.pretrain.config import ModelConfig, TrainConfig
from examples.pretrain.data import Corpus, standard_library
from examples.pretrain.experts import MixtureOfExperts
from examples.pretrain.model import Block, LanguageModel, Where
from examples.pretrain.parallel import draw
from wattmesh.integrations.pytorch.context_parallel.context import Context
from wattmesh.integrations.pytorch.experts.router import EnergyRouter, Routed, RouterMode

EXPERTS = 16
PER_TOKEN = 2
CONFIG = TrainConfig(
    model=ModelConfig(
        dim=64,
        layers=2,
        heads=4,
        kv_heads=2,
        hidden=32,
        seq_len=64,
        experts=EXPERTS,
        experts_per_token=PER_TOKEN,
    ),
    global_batch=8,
    learning_rate=3e-3,
    corpus_bytes=1 << 20,
)
HELD_BACK = 8
"""One of so many parts of the text is held back, the last one."""

HELD_BATCHES = 32
RECORDED_BATCHES = 16

BIAS_RATE = 3e-3
"""Three times the usual: a run of some hundred steps has to reach balance, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One router to train with.

    Attributes:
        costs: of every expert; empty for none.
        auxiliary: weight of the auxiliary balancing loss.
        per_token: experts that a token uses.
    """

    name: str
    mode: RouterMode = RouterMode.OFF
    strength: float = 0.0
    costs: tuple[float, ...] = ()
    bias_rate: float = BIAS_RATE
    auxiliary: float = 0.0
    per_token: int = PER_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """What came of it.

    Attributes:
        losses: of every step. `held_loss`: on text held back, nats per byte.
        chosen: by layer, the experts of every recorded token, (N, P).
        digest: of all parameters' and buffers' bits.
    """

    variant: Variant
    seed: int
    losses: tuple[float, ...]
    held_loss: float
    chosen: tuple[NDArray[np.int64], ...]
    digest: int


class RoutedMixture(MixtureOfExperts):
    """The example's mixture, with our router instead of its own."""

    def __init__(self, variant: Variant) -> None:
        """Make it as the variant says."""
        super().__init__(CONFIG.model)
        self.experts_per_token = variant.per_token
        self.router = EnergyRouter(  # type: ignore[assignment]
            CONFIG.model.dim,
            CONFIG.model.experts,
            variant.per_token,
            mode=variant.mode,
            bias_rate=variant.bias_rate,
        )
        self.routed: Routed | None = None

    @property
    def energy_router(self) -> EnergyRouter:
        """The router."""
        router: object = self.router
        assert isinstance(router, EnergyRouter)
        return router

    def choose(self, x_BSD: Tensor, level_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose by our router."""
        self.routed = self.energy_router(x_BSD)
        return self.routed.chosen_NP, self.routed.weights_NP


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained: the model, its mixtures, its optimizer, its text, and its router."""

    model: LanguageModel
    mixtures: list[RoutedMixture]
    optimizer: torch.optim.Optimizer
    corpus: Corpus
    variant: Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps without costs, which all variants share, and steps of each variant."""

    shared: int
    own: int


def build(variant: Variant, seed: int) -> tuple[LanguageModel, list[RoutedMixture]]:
    """Build the model; equal seeds begin equally, whatever the variant."""
    config = _seeded(seed)
    model = LanguageModel(config)
    mixtures = []
    for layer in model.layers.values():
        assert isinstance(layer, Block)
        mixture = RoutedMixture(variant)
        layer.feed_forward = mixture
        mixtures.append(mixture)
    with torch.no_grad():
        draw(model, config)
    context = Context.deal(config.model.seq_len, 1, 0, None)
    model.where = Where.make(config.model, context, context.positions_S, torch.float32)
    return model, mixtures


def train(variant: Variant, seed: int, steps: Steps) -> Trained:
    """Train, then evaluate on what was held back, and record what tokens choose."""
    torch.set_num_threads(1)
    config = _seeded(seed)
    learn, held = _corpora(seed)
    model, mixtures = build(variant, seed)
    optimizer = _optimizer(model)
    model_state, optimizer_state = _shared_state(seed, steps.shared)
    model.load_state_dict(model_state)
    optimizer.load_state_dict(copy.deepcopy(optimizer_state))
    for mixture in mixtures:
        if variant.costs:
            reason = mixture.energy_router.set_costs(variant.costs, variant.strength)
            assert not reason, reason
    losses = _advance(Job(model, mixtures, optimizer, learn, variant), steps.shared, steps.own)
    with torch.no_grad():
        batch = config.global_batch
        held_losses = [_loss(model, held, at * batch).item() for at in range(HELD_BATCHES)]
        chosen = [_chosen(model, mixtures, learn, at * batch) for at in range(RECORDED_BATCHES)]
    return Trained(
        variant=variant,
        seed=seed,
        losses=tuple(losses),
        held_loss=sum(held_losses) / len(held_losses),
        chosen=tuple(np.concatenate(each) for each in zip(*chosen, strict=True)),
        digest=digest(model),
    )


@cache
def _shared_state(seed: int, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train without costs; give the states of model and optimizer."""
    learn, _ = _corpora(seed)
    plain = Variant(name="shared")
    model, mixtures = build(plain, seed)
    optimizer = _optimizer(model)
    _advance(Job(model, mixtures, optimizer, learn, plain), 0, steps)
    return model.state_dict(), optimizer.state_dict()


def _advance(job: Job, first: int, count: int) -> list[float]:
    """Do steps `first` to `first + count`, and give their losses.

    The rate warms up at the very beginning and falls to 0 over the second half of later steps.
    """
    losses = []
    for step in range(first, first + count):
        rise = min(1.0, (step + 1) / CONFIG.warmup_steps)
        fall = min(1.0, 2 * (first + count - step) / count) if first else 1.0
        for group in job.optimizer.param_groups:
            group["lr"] = CONFIG.learning_rate * min(rise, fall)
        loss = _loss(job.model, job.corpus, step * CONFIG.global_batch)
        losses.append(loss.item())
        for mixture in job.mixtures:
            if job.variant.auxiliary and mixture.routed is not None:
                balance = mixture.energy_router.balance_loss(mixture.routed)
                loss = loss + job.variant.auxiliary * balance
        job.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), CONFIG.clip_norm)
        job.optimizer.step()
        for mixture in job.mixtures:
            mixture.energy_router.rebalance(mixture.counts_X)
            mixture.counts_X.zero_()
    return losses


def _optimizer(model: LanguageModel) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=CONFIG.learning_rate, weight_decay=0.01)


def in_child(words: tuple[Variant, int, Steps]) -> Trained:
    """Train in a worker process, politely."""
    os.nice(19 - os.nice(0))
    return train(*words)


def _seeded(seed: int) -> TrainConfig:
    return TrainConfig(
        model=CONFIG.model,
        global_batch=CONFIG.global_batch,
        learning_rate=CONFIG.learning_rate,
        corpus_bytes=CONFIG.corpus_bytes,
        seed=seed,
    )


def _corpora(seed: int) -> tuple[Corpus, Corpus]:
    text = torch.frombuffer(bytearray(standard_library(CONFIG.corpus_bytes)), dtype=torch.uint8)
    cut = len(text) - len(text) // HELD_BACK
    length = CONFIG.model.seq_len
    # Held-back samples are the same for all seeds, so that only the training differs.
    return Corpus(text[:cut].long(), length, seed), Corpus(text[cut:].long(), length, 0)


def _loss(model: LanguageModel, corpus: Corpus, first: int) -> Tensor:
    inputs_BS, targets_BS = corpus.batch(first, CONFIG.global_batch)
    logits_BSV = model(inputs_BS, torch.arange(first, first + CONFIG.global_batch))
    return functional.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())


def _chosen(
    model: LanguageModel, mixtures: Sequence[RoutedMixture], corpus: Corpus, first: int
) -> list[NDArray[np.int64]]:
    _loss(model, corpus, first)
    return [each.routed.chosen_NP.numpy() for each in mixtures if each.routed is not None]


def digest(model: LanguageModel) -> int:
    """Sum up all bits of all parameters and kept buffers, each with a weight of its own."""
    total = 0
    for at, tensor in enumerate(model.state_dict().values()):
        if tensor.dtype == torch.float32:
            bits = tensor.view(torch.int32).long() & 0xFFFFFFFF
            weights = torch.arange(1, bits.numel() + 1)
            total += (at + 1) * int((bits.flatten() * weights % 1_000_003).sum())
    return total
