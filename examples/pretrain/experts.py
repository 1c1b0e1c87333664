"""A mixture of experts without dropped tokens, balanced by biases instead of an auxiliary loss.

Every token uses its best `experts_per_token` experts by score plus bias. The bias affects only the
choice, not the weights (Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing"). It is updated once
per step from the *global* batch's counts, so it is the same in every layout.

Shape suffixes: B batch, S sequence, N tokens (B * S), M rows (a token once for each of its
    experts), D model width, F hidden width, X experts (L: this rank's), P experts per token.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.pretrain.config import ModelConfig
from wattmesh.integrations.pytorch.expert_bottleneck import NarrowMap
from wattmesh.integrations.pytorch.expert_parallel import ExpertParallel
from wattmesh.integrations.pytorch.experts.router import EnergyRouter, Routed
from wattmesh.integrations.pytorch.gradients import shard_of


class StackedExperts(nn.Module):
    """SwiGLU experts, applied one after the other; their weights are stacked along dim 0."""

    def __init__(self, config: ModelConfig) -> None:
        """Make `config.experts` experts."""
        super().__init__()
        wide = (config.experts, config.hidden, config.dim)
        self.gate = nn.Parameter(torch.empty(wide))
        self.up = nn.Parameter(torch.empty(wide))
        self.down = nn.Parameter(torch.empty(config.experts, config.dim, config.hidden))

    def forward(self, rows_MD: Tensor, counts_L: Tensor) -> Tensor:
        """Apply each expert to its rows: (M, D) in and out, sorted by expert."""
        gate_LFD, up_LFD, down_LDF = (shard_of(each) for each in (self.gate, self.up, self.down))
        done = []
        for expert, part_MD in enumerate(torch.split(rows_MD, counts_L.tolist())):
            hidden_MF = functional.silu(part_MD @ gate_LFD[expert].T) * (part_MD @ up_LFD[expert].T)
            done.append(hidden_MF @ down_LDF[expert].T)
        return torch.cat(done)


class MixtureOfExperts(nn.Module):
    """Router and experts; `parallel` decides which rank holds which expert."""

    bias_X: Tensor
    counts_X: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Make the router and all experts."""
        super().__init__()
        self.experts_per_token = config.experts_per_token
        self._make_router(config)
        self.experts = StackedExperts(config)
        self.parallel = ExpertParallel()
        self.maps: tuple[NarrowMap, ...] = ()
        if config.bottleneck:
            features = config.dim // config.bottleneck
            self.there, self.back = (NarrowMap(config.dim, features) for _ in range(2))
            self.maps = (self.there, self.back)
            self.parallel = ExpertParallel(there=self.there, back=self.back)
        counts_X = torch.zeros(config.experts, dtype=torch.int64)
        self.register_buffer("counts_X", counts_X, persistent=False)

    def _make_router(self, config: ModelConfig) -> None:
        self.router = nn.Linear(config.dim, config.experts, bias=False)
        self.register_buffer("bias_X", torch.zeros(config.experts))

    def routing(self) -> tuple[nn.Linear | nn.Embedding, ...]:
        """List the modules that every rank applies whole, to its own tokens."""
        return (self.router,)

    def choose(self, x_BSD: Tensor, level_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose every token's experts: their numbers and their weights, (N, P) each."""
        scores_NX = functional.softmax(self.router(x_BSD), dim=-1).flatten(0, 1)
        chosen_NP = torch.topk(scores_NX.detach() + self.bias_X, self.experts_per_token).indices
        return chosen_NP, scores_NX.gather(1, chosen_NP)

    def forward(self, x_BSD: Tensor, level_B: Tensor | None = None) -> Tensor:
        """Send every token through its experts: (B, S, D) in and out.

        `level_B`: the noise level of each sample, of a diffusion model.
        """
        chosen_NP, weights_NP = self.choose(x_BSD, level_B)
        rows_M = chosen_NP.flatten()
        order_M = torch.argsort(rows_M, stable=True)
        counts_X = torch.bincount(rows_M, minlength=len(self.counts_X))
        if torch.is_grad_enabled():
            # Recomputation counts every token twice; only the comparison with the mean matters.
            self.counts_X += counts_X
        tokens_M = order_M // self.experts_per_token
        x_ND = x_BSD.flatten(0, 1)
        done_MD = self.parallel(self.experts, x_ND[tokens_M], counts_X)
        weighted_MD = done_MD * weights_NP.flatten()[order_M, None]
        return torch.zeros_like(x_ND).index_add(0, tokens_M, weighted_MD).view_as(x_BSD)

    def rebalance(self, global_counts_X: Tensor, rate: float) -> None:
        """Raise the bias of experts below the mean count of the global batch, lower the others."""
        above_X = global_counts_X.mean() - global_counts_X
        self.bias_X += rate * torch.sign(above_X).to(self.bias_X)
        self.counts_X.zero_()


class TimedMixtureOfExperts(MixtureOfExperts):
    """The mixture of a diffusion model: which experts a token gets depends on the noise level."""

    def _make_router(self, config: ModelConfig) -> None:
        self.router = EnergyRouter(  # type: ignore[assignment]
            config.dim,
            config.experts,
            config.experts_per_token,
            timesteps=config.noise_levels + 1,
        )

    @property
    def energy_router(self) -> EnergyRouter:
        """The router."""
        router: object = self.router
        assert isinstance(router, EnergyRouter)
        return router

    def routing(self) -> tuple[nn.Linear | nn.Embedding, ...]:
        """List the gate and its offsets by level."""
        assert self.energy_router.timesteps is not None
        return (self.energy_router.gate, self.energy_router.timesteps)

    def choose(self, x_BSD: Tensor, level_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Choose every token's experts from what it is and its sample's level."""
        assert level_B is not None
        level_BS = level_B[:, None].expand(x_BSD.shape[:2])
        routed: Routed = self.energy_router(x_BSD, level_BS)
        return routed.chosen_NP, routed.weights_NP

    def rebalance(self, global_counts_X: Tensor, rate: float) -> None:
        """Move the router's bias by its own rule."""
        self.energy_router.bias_rate = rate
        self.energy_router.rebalance(global_counts_X)
        self.counts_X.zero_()


def make_mixture(config: ModelConfig) -> MixtureOfExperts:
    """Make the mixture of a layer: one that sees noise levels, if the model has such."""
    return TimedMixtureOfExperts(config) if config.noise_levels else MixtureOfExperts(config)
