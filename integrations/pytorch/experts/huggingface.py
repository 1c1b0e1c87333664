"""Lets the mixtures of Hugging Face's Mixtral, Qwen2-MoE, Qwen3-MoE and DeepSeek lean.

Their blocks ask a `gate` for (logits, weights, chosen experts). A hook on the gate answers with a
choice that leans, made from the same logits by the model's own rules: softmax or sigmoid, groups,
normalized weights, scale. The package itself is not imported: the model brings it.

Invariant: in mode `off`, and in every mode while nothing leans, the hook gives back what the gate
said: the block computes what it does without us, bit for bit. Tensors are those of the checkpoint
and two buffers on each gate, in fp32 if the model is cast before.

Shape suffixes: L mixtures of the model, N tokens, X experts, P experts per token, G groups.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.experts.router import (
    LOAD_CAP,
    RouterMode,
    load_factors,
    unusable,
)
from wattmesh.reconfig import torch_compat

GATES = frozenset(
    {
        "MixtralTopKRouter",
        "Qwen2MoeTopKRouter",
        "Qwen3MoeTopKRouter",
        "DeepseekV2TopkRouter",
        "DeepseekV3TopkRouter",
    }
)
BLOCKS = frozenset(
    {
        "MixtralSparseMoeBlock",
        "Qwen2MoeSparseMoeBlock",
        "Qwen3MoeSparseMoeBlock",
        "DeepseekV2Moe",
        "DeepseekV2MoE",
        "DeepseekV3MoE",
    }
)
BUFFERS = ("lean_bias_X", "lean_X")

TESTED = "5.24"
"""Version of transformers whose classes this was tested on."""


class HuggingFaceRouters:
    """All mixtures of a model as one thing that takes costs, as `hand_to` wants it."""

    def __init__(
        self,
        parts: Iterable[nn.Module],
        *,
        mode: RouterMode | str = RouterMode.TILT,
        bias_rate: float = 1e-3,
        load_cap: float = LOAD_CAP,
    ) -> None:
        """Hook the gates of a model, or of a pipeline stage's parts.

        Args:
            parts: of the model.
            mode: as of `EnergyRouter`.
            bias_rate: step of the bias that `rebalance` moves in `tilt` and `dual`.
            load_cap: the most that a load is steered above the mean.

        Raises:
            InputInvalid: there is no such mixture, or it is not as this version knows it.
        """
        self.mode = RouterMode(mode)
        self._rate, self._cap = bias_rate, load_cap
        self._leans: bool | None = False
        self._gates: list[Any] = list(_gates(parts))
        if not self._gates:
            raise InputInvalid(
                "no mixture of Mixtral, Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 or DeepSeek-V3 is in "
                "this model"
            )
        if any("lean_X" in torch_compat.buffers(gate) for gate in self._gates):
            raise InputInvalid("the mixtures of this model have such hooks already; hook them once")
        for gate in self._gates:
            zeros_X = torch.zeros(gate.weight.shape[0], device=gate.weight.device)
            for name in BUFFERS:
                gate.register_buffer(name, zeros_X.clone())
            gate.lean_counts_X = zeros_X
            gate.register_forward_hook(self._answer)
            gate.register_load_state_dict_pre_hook(_without_a_lean)
            gate.register_load_state_dict_post_hook(self._loaded)

    @property
    def gates(self) -> tuple[Any, ...]:
        """The gates, in the order of their layers."""
        return tuple(self._gates)

    @property
    def leans(self) -> bool:
        """Whether any gate is answered for now."""
        return self._leaning_now()

    @contextmanager
    def upright(self) -> Iterator[None]:
        """Give back what the gates say in the block: the model as it is without us."""
        self._leans = False
        try:
            yield
        finally:
            self._leans = None

    def set_costs(self, costs: Sequence[float], strength: float) -> str:
        """Take costs as `EnergyRouter.set_costs` does; without a lean, biases are 0 again."""
        self._leans = None
        experts = {_experts(gate) for gate in self._gates}
        reason = "mixtures have different numbers of experts" if len(experts) > 1 else ""
        reason = reason or unusable(costs, strength, min(experts))
        given = [0.0] * min(experts) if reason else [float(each) for each in costs]
        lean = torch.tensor([strength * each if each else 0.0 for each in given])
        for gate in self._gates:
            if reason or not lean.any():
                gate.lean_X.zero_()
                gate.lean_bias_X.zero_()
            else:
                gate.lean_X.copy_(lean)
        return reason

    def counts(self) -> Tensor:
        """Return the tokens that each expert got since the last `rebalance`, (L, X)."""
        return torch.stack([gate.lean_counts_X for gate in self._gates])

    @torch.no_grad()
    def rebalance(self, global_counts_LX: Tensor) -> None:
        """Move the biases one step, from the counts of the global batch, once per step."""
        for gate, counts_X in zip(self._gates, global_counts_LX.double(), strict=True):
            gate.lean_counts_X.zero_()
            if not gate.lean_X.any() or self.mode not in (RouterMode.TILT, RouterMode.DUAL):
                continue
            aim_X: Tensor | float = self._cap
            if self.mode is RouterMode.TILT:
                # From the buffer: a launch that was told no costs goes on as the one before.
                factors = load_factors(gate.lean_X.tolist(), 1.0, self._cap)
                aim_X = torch.tensor(factors, dtype=torch.float64, device=counts_X.device)
            target_X = counts_X.mean() * aim_X
            bias_X = gate.lean_bias_X + self._rate * torch.sign(target_X - counts_X)
            prices = self.mode is RouterMode.DUAL
            gate.lean_bias_X.copy_(bias_X.clamp_max(0.0) if prices else bias_X)

    def _answer(self, gate: Any, _: Any, said: Any) -> Any:
        """Return the gate's own choice of experts, or the leaning one, and count the rows."""
        if not isinstance(said, tuple) or len(said) != 3:
            raise InputInvalid(
                f"a {type(gate).__name__} of this version of transformers does not give (logits, "
                f"weights, experts); {TESTED} was tested"
            )
        logits_NX, weights_NP, chosen_NP = said
        if self._leaning_now():
            weights_NP, chosen_NP = self._leaning(gate, logits_NX, weights_NP, chosen_NP)
            said = (logits_NX, weights_NP, chosen_NP)
        if torch.is_grad_enabled():
            rows_M = chosen_NP.detach().flatten()
            if gate.lean_counts_X.device != rows_M.device:  # the model was moved, or got its memory
                gate.lean_counts_X = torch.zeros(_experts(gate), device=rows_M.device)
            gate.lean_counts_X += torch.bincount(rows_M, minlength=_experts(gate))
        return said

    def _leaning_now(self) -> bool:
        """Return whether anything leans; buffers are read after a load and new costs only."""
        if self._leans is None:
            self._leans = any(bool(gate.lean_X.any()) for gate in self._gates)
        return self._leans and self.mode is not RouterMode.OFF

    def _loaded(self, *_: Any) -> None:
        self._leans = None

    def _leaning(
        self, gate: Any, logits_NX: Tensor, weights_NP: Tensor, chosen_NP: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Choose anew from the gate's logits, by the model's own rules."""
        logits_NX = logits_NX.float()
        if self.mode is RouterMode.SOFT:
            logits_NX = logits_NX - gate.lean_X
        correction_X = getattr(gate, "e_score_correction_bias", None)
        scores_NX = logits_NX.softmax(-1) if correction_X is None else logits_NX.sigmoid()
        shift_X = gate.lean_bias_X - (gate.lean_X if self.mode is RouterMode.DUAL else 0.0)
        if correction_X is not None:
            shift_X = shift_X + correction_X
        choice_NX = _within_groups(
            gate, scores_NX.detach() + shift_X, by_two=correction_X is not None
        )
        chosen_NP = torch.topk(choice_NX, chosen_NP.shape[-1], sorted=False).indices
        found_NP = scores_NX.gather(1, chosen_NP)
        if getattr(gate, "norm_topk_prob", type(gate).__name__ == "MixtralTopKRouter"):
            found_NP = found_NP / (found_NP.sum(-1, keepdim=True) + 1e-20)
        found_NP = found_NP * getattr(gate, "routed_scaling_factor", 1.0)
        return found_NP.to(weights_NP.dtype), chosen_NP


def _within_groups(gate: Any, choice_NX: Tensor, *, by_two: bool) -> Tensor:
    """Leave the experts of the best groups, where the model chooses groups first (DeepSeek)."""
    groups = getattr(gate, "num_group", None)
    if not groups or getattr(gate, "topk_method", "") == "greedy":
        return choice_NX
    each_NGX = choice_NX.view(len(choice_NX), groups, -1)
    # Two by two as DeepSeek-V3 does it, by the best one as V2.
    score_NG = each_NGX.topk(2, dim=-1)[0].sum(-1) if by_two else each_NGX.max(-1).values
    best = torch.topk(score_NG, gate.topk_group, dim=-1, sorted=False).indices
    kept_NG = torch.zeros_like(score_NG, dtype=torch.bool).scatter(1, best, True)
    left_NGX = each_NGX.masked_fill(~kept_NG.unsqueeze(-1), float("-inf"))
    return left_NGX.flatten(-2)


def _without_a_lean(
    gate: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any, **__: Any
) -> None:
    """Let a checkpoint from before the hooks be loaded: nothing leans in it."""
    for name in BUFFERS:
        own, weight = torch_compat.buffers(gate)[name], state_dict.get(f"{prefix}weight")
        if weight is not None and own is not None:
            # On the weight's device: what is on none yet gets its memory from what is loaded.
            zeros = torch.zeros_like(own, device=weight.device)
            state_dict.setdefault(f"{prefix}{name}", zeros)


def _experts(gate: Any) -> int:
    """Count by what is never sharded: FSDP1 leaves a part of `weight` between two passes."""
    return len(gate.lean_X)


def _gates(parts: Iterable[nn.Module]) -> Iterator[Any]:
    """Find the gates of all known blocks.

    Raises:
        InputInvalid: a block's gate is not of a class that is known.
    """
    for block in (module for part in parts for module in part.modules()):
        if type(block).__name__ not in BLOCKS:
            continue
        gate = getattr(block, "gate", None)
        weight = getattr(gate, "weight", None)
        if type(gate).__name__ not in GATES or not isinstance(weight, Tensor) or weight.dim() != 2:
            raise InputInvalid(
                f"the gate of a {type(block).__name__} is a {type(gate).__name__} in this version "
                f"of transformers; {TESTED} was tested, where it is one of "
                f"{', '.join(sorted(GATES))}"
            )
        yield gate
