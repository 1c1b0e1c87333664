"""A top-k router that may know what its experts' GPUs cost, in four modes.

    off    choice by score plus a bias that balances loads (Wang et al. 2024, loss-free balancing)
    soft   softmax(x.w - strength * cost): the published formula. With balancing by bias it does
           nothing to loads, since the bias takes the term back; give `bias_rate=0`
    tilt   loss-free balancing towards loads that lean to cheap experts: the mode to use
    dual   choice by score - strength * cost, and prices that only ever push down what is over
           `load_cap`

Where all costs are 0, every mode computes exactly what `off` does, bit for bit. The bias is moved
once per step from the counts of the *global* batch, so it is the same in every layout.

Shape suffixes: N tokens, D model width, X experts, P experts per token.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import torch_compat

LOAD_CAP = 1.15
"""The most that an expert's load is steered above the mean (docs/experts.md)."""

MOST_STRENGTH = 8.0
MOST_SCORE = 2.0
"""Scores of costs are within +-2; a factor exp(-8 * 4) is as good as none."""

LEAST_RANGE = 0.1
"""In deviations, from the cheapest to the dearest expert: less is noise.

Scores of GPUs that differ span 2 at least, so this is the case only where each expert lies on GPUs
of all kinds, or where a group of one kind is a part of a mixed run. Then nobody has to lean.
"""

ALIKE = "all experts cost the same, as each lies on GPUs that together cost the same"

BEGIN = {"bias_X": 0.0, "lean_X": 0.0, "factor_X": 1.0, "counts_X": 0.0}
"""What a router's buffers are at first."""

_OF_ALL_MODULES = torch_compat.hooks_of_all_modules()


class RouterMode(StrEnum):
    """How costs enter the choice."""

    OFF = "off"
    SOFT = "soft"
    TILT = "tilt"
    DUAL = "dual"


class Routed(NamedTuple):
    """What a router says of N tokens: chosen experts, their weights, and all scores."""

    chosen_NP: Tensor
    weights_NP: Tensor
    scores_NX: Tensor


class EnergyRouter(nn.Module):
    """Scores tokens, chooses their experts, and keeps loads where they should be.

    Its buffers go into the checkpoint. They stay in fp32 whatever the module is cast to: steps of
    a bias of 0.001 vanish in bf16.
    """

    bias_X: Tensor
    lean_X: Tensor
    factor_X: Tensor
    counts_X: Tensor

    def __init__(
        self,
        dim: int,
        experts: int,
        experts_per_token: int,
        *,
        mode: RouterMode | str = RouterMode.OFF,
        score: str = "softmax",
        normalize: bool = False,
        bias_rate: float = 1e-3,
        load_cap: float = LOAD_CAP,
        timesteps: int = 0,
    ) -> None:
        """Make the gate.

        Args:
            dim: model width.
            experts: of this layer.
            experts_per_token: how many each token uses.
            mode: see the module.
            score: "softmax" or "sigmoid", of the gate's outputs.
            normalize: whether a token's weights sum to 1.
            bias_rate: step of the bias; 0 leaves balancing to an auxiliary loss, or to nobody.
            load_cap: the most that a load is steered above the mean.
            timesteps: for diffusion models whose choice sees the denoising step: how many there
                are. Each has an offset of its own for every expert, 0 at first.

        Raises:
            InputInvalid: a number or a name is none that there is.
        """
        super().__init__()
        _check(experts, experts_per_token, score, load_cap)
        if bias_rate < 0 or timesteps < 0:
            raise InputInvalid(f"router: bias_rate {bias_rate} or timesteps {timesteps} below 0")
        try:
            self.mode = RouterMode(mode)
        except ValueError:
            raise InputInvalid(
                f"router: mode {mode!r} is not one of {', '.join(RouterMode)}"
            ) from None
        self.experts_per_token, self.score, self.normalize = experts_per_token, score, normalize
        self.bias_rate, self.load_cap = bias_rate, load_cap
        self.gate = nn.Linear(dim, experts, bias=False)
        self.timesteps = nn.Embedding(timesteps, experts) if timesteps else None
        if self.timesteps is not None:
            nn.init.zeros_(self.timesteps.weight)
        for name in ("bias_X", "lean_X", "factor_X"):
            self.register_buffer(name, torch.full((experts,), BEGIN[name]))
        self.register_buffer("counts_X", torch.zeros(experts, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor, timestep: Tensor | None = None) -> Routed:
        """Choose for every token.

        Args:
            x: (..., D); all leading axes are tokens.
            timestep: (...), the denoising step of every token, where the router has such.
        """
        logits_NX, spare = self._logits(x, timestep)
        scores_NX = (
            functional.softmax(logits_NX, dim=-1)
            if self.score == "softmax"
            else torch.sigmoid(logits_NX)
        )
        shift_X = self.bias_X - self.lean_X if self.mode is RouterMode.DUAL else self.bias_X
        # Into the memory of the logits, which nobody needs any more: a fresh table takes longer.
        table_NX = logits_NX.detach() if spare else None
        del logits_NX
        with torch.no_grad():
            chosen_NP = torch.topk(
                torch.add(scores_NX, shift_X, out=table_NX), self.experts_per_token
            ).indices
        weights_NP = scores_NX.gather(1, chosen_NP)
        if self.normalize:
            weights_NP = weights_NP / weights_NP.sum(dim=-1, keepdim=True).clamp_min(1e-20)
        if torch.is_grad_enabled():
            # Recomputation counts every token twice; only shares of the sum matter.
            self.counts_X += _counted(chosen_NP, self.counts_X)
        return Routed(chosen_NP, weights_NP, scores_NX)

    def _logits(self, x: Tensor, timestep: Tensor | None) -> tuple[Tensor, bool]:
        """Give the logits of every token and expert, and whether their memory may be written to."""
        logits_NX = self.gate(x).flatten(0, -2)
        unseen = not torch.compiler.is_compiling() and not torch_compat.has_modes()
        unseen = unseen and type(logits_NX) is Tensor
        own = unseen and not self._is_watched()
        if self.timesteps is not None and timestep is not None:
            logits_NX, own = logits_NX + self.timesteps(timestep.flatten()), unseen
        leans = self.mode is RouterMode.SOFT
        if logits_NX.dtype in (torch.float16, torch.bfloat16):
            # 16 bits less 32 are 32, in one pass.
            logits_NX = logits_NX - self.lean_X if leans else logits_NX.float()
            own = unseen
        elif leans:
            logits_NX = logits_NX.sub_(self.lean_X) if own else logits_NX - self.lean_X
        return logits_NX, own and logits_NX.dtype == torch.float32

    def _is_watched(self) -> bool:
        """Return whether somebody else may hold what the gate gave.

        A hook of the gate may, and so may a gate of another kind, for its gradient or as its input.
        """
        hooked = torch_compat.is_hooked(self.gate) or any(_OF_ALL_MODULES)
        return hooked or type(self.gate) is not nn.Linear

    @torch.no_grad()
    def set_costs(self, costs: Sequence[float], strength: float) -> str:
        """Take the costs of the experts' GPUs, as scores within +-2, equal on all ranks.

        Training is never stopped by them: what cannot be used counts as no costs at all.

        Returns:
            Why there are none; "" where they are used.
        """
        reason = unusable(costs, strength, len(self.bias_X))
        given = [0.0] * len(self.bias_X) if reason else [float(each) for each in costs]
        # Adding 0 makes -0 a 0: strength 0 leaves the bits of a checkpoint as no costs do.
        lean = torch.tensor([strength * each + 0.0 if each else 0.0 for each in given])
        if self.mode is RouterMode.DUAL and lean.any() and not self.lean_X.any():
            # A price is never positive; a common shift changes no choice.
            self.bias_X -= self.bias_X.max()
        self.lean_X.copy_(lean)
        factors = load_factors(given, 0.0 if reason else strength, self.load_cap)
        self.factor_X.copy_(torch.tensor(factors, dtype=torch.float64))
        return reason

    @torch.no_grad()
    def rebalance(self, global_counts_X: Tensor) -> None:
        """Move the bias one step, from how many tokens of the global batch each expert got."""
        counts_X = global_counts_X.to(self.bias_X.device, torch.float64)
        self.counts_X.zero_()
        if self.bias_rate == 0:
            return
        target_X = counts_X.mean() * (
            self.factor_X.double() if self.mode is RouterMode.TILT else torch.ones_like(counts_X)
        )
        step_X = self.bias_rate * torch.sign(target_X - counts_X)
        if self.mode is RouterMode.DUAL:
            over_X = self.bias_rate * torch.sign(self.load_cap * counts_X.mean() - counts_X)
            price_X = (self.bias_X + over_X).clamp_max(0.0)
            step_X = torch.where(self.lean_X.any(), price_X - self.bias_X, step_X)
        self.bias_X += step_X.to(self.bias_X)

    def balance_loss(self, routed: Routed, counts_X: Tensor | None = None) -> Tensor:
        """Auxiliary loss (Fedus et al. 2021, eq. 4), which in mode `tilt` leans as the bias does.

        Args:
            routed: what `forward` gave.
            counts_X: of the global batch, to be independent of the layout; else of these tokens.
        """
        if counts_X is None:
            counts_X = _counted(routed.chosen_NP, self.counts_X)
        share_X = counts_X / counts_X.sum().clamp_min(1)
        mean_X = routed.scores_NX.sum(dim=0) / max(1, len(routed.scores_NX))
        if self.mode is RouterMode.TILT:
            share_X = share_X / self.factor_X
        return len(mean_X) * (share_X.to(mean_X) * mean_X).sum()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "EnergyRouter":
        before = {name: each for name, each in self._buffers.items() if each is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = self._buffers[name]
            if new is None:
                continue
            if old.is_meta and not new.is_meta:
                # It got its memory (`to_empty`), which holds whatever was there before.
                self._buffers[name] = torch.full_like(new, BEGIN[name], dtype=old.dtype)
            elif new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def _load_from_state_dict(self, *words: Any) -> None:
        super()._load_from_state_dict(*words)
        if self.counts_X.is_meta and not self.bias_X.is_meta:
            # Assigned from a checkpoint, which has no counts.
            self.counts_X = torch.zeros_like(self.counts_X, device=self.bias_X.device)


def unusable(costs: Sequence[float], strength: float, experts: int) -> str:
    """Say why scores of costs cannot be used; "" where they can."""
    try:
        numbers = [float(each) for each in costs]
        known = math.isfinite(strength) and all(math.isfinite(each) for each in numbers)
    except (TypeError, ValueError, OverflowError):
        return "the expert costs are no numbers"
    if len(numbers) != experts:
        return f"{len(numbers)} expert costs for {experts} experts"
    if not known:
        return "an expert cost, or the strength, is not finite"
    if not 0 <= strength <= MOST_STRENGTH:
        return f"the strength {strength:g} is not between 0 and {MOST_STRENGTH:g}"
    if any(abs(each) > MOST_SCORE * (1 + 1e-6) for each in numbers):
        return f"an expert cost is beyond +-{MOST_SCORE:g}"
    return ALIKE if any(numbers) and max(numbers) - min(numbers) < LEAST_RANGE else ""


def load_factors(scores: Sequence[float], strength: float, cap: float) -> tuple[float, ...]:
    """Give each expert's target load over the mean: exp(-strength * score), at most `cap`.

    What the cap takes off is dealt to those below it, in proportion. Equal scores give exactly 1.
    """
    lowest = min(scores)
    raw = [math.exp(-strength * (each - lowest)) for each in scores]
    capped: set[int] = set()
    while True:
        free = [at for at in range(len(raw)) if at not in capped]
        rest = (len(raw) - cap * len(capped)) / math.fsum(raw[at] for at in free)
        over = {at for at in free if raw[at] * rest > cap}
        if not over or over == set(free):
            return tuple(cap if at in capped else each * rest for at, each in enumerate(raw))
        capped |= over


def _counted(chosen_NP: Tensor, like_X: Tensor) -> Tensor:
    """Count rows by expert; unlike bincount, of a shape that a compiler knows."""
    rows_M = chosen_NP.flatten()
    return torch.zeros_like(like_X).scatter_add(0, rows_M, torch.ones_like(rows_M))


def _check(experts: int, experts_per_token: int, score: str, load_cap: float) -> None:
    if not 1 <= experts_per_token <= experts:
        raise InputInvalid(
            f"router: each token uses {experts_per_token} of {experts} experts; from 1 to all"
        )
    if score not in ("softmax", "sigmoid"):
        raise InputInvalid(f"router: score {score!r} is neither softmax nor sigmoid")
    if not (math.isfinite(load_cap) and load_cap >= 1):
        raise InputInvalid(f"router: load_cap {load_cap} is below 1, which no expert can keep to")
