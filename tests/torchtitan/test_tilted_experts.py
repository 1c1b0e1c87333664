"""torchtitan's own MoE under its own balancing hook leans to cheap experts, or is left as it is."""

import sys
import warnings
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.experts.paired_probe import paired_probe
from wattmesh.integrations.pytorch.experts.router import load_factors
from wattmesh.integrations.pytorch.experts.tilted_counts import TiltedCounts

ASYNC_DISPATCH = "torchtitan.distributed.minimal_async_ep"


class _NotHere(ModuleType):
    """A part of torchtitan that needs triton, which CPUs have not; its MoE only names it."""

    def __getattr__(self, name: str) -> object:
        """Give something for any name that is imported."""
        if name.startswith("__"):
            raise AttributeError(name)
        return None


with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
    # torchtitan compiles attention when it is imported, by parts of torch that torch deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    if find_spec("triton") is None:
        patch.setitem(sys.modules, ASYNC_DISPATCH, _NotHere(ASYNC_DISPATCH))
    from torchtitan.components.optimizer import optimizer as titan_optimizer
    from torchtitan.models.common.linear import Linear
    from torchtitan.models.common.moe import (
        GroupedExperts,
        MoE,
        RoutedExperts,
        TokenChoiceTopKRouter,
    )
    from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

DIM, EXPERTS = 16, 4
COSTS = (-1.0, -1.0, 1.0, 1.0)

# torchtitan asks CPUs for an autocast to fp32, which they warn of.
pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")


class Block(nn.Module):
    """A layer as torchtitan's hook looks for it."""

    moe_enabled = True

    def __init__(self, **limits: int) -> None:
        """Make the real mixture."""
        super().__init__()
        self.moe = MoE.Config(
            num_experts=EXPERTS,
            load_balance_coeff=2e-3,
            router=TokenChoiceTopKRouter.Config(
                num_experts=EXPERTS,
                gate=Linear.Config(in_features=DIM, out_features=EXPERTS),
                top_k=1,
                **limits,
            ),
            routed_experts=RoutedExperts.Config(
                inner_experts=GroupedExperts.Config(dim=DIM, hidden_dim=16, num_experts=EXPERTS),
                token_dispatcher=LocalTokenDispatcher.Config(num_experts=EXPERTS, top_k=1),
            ),
        ).build()


class Part(nn.Module):
    """A pipeline stage's part of a model."""

    def __init__(self, layers: int = 1, **limits: int) -> None:
        """Make its layers."""
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleDict({str(at): Block(**limits) for at in range(layers)})
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    @property
    def moe(self) -> Any:
        """Give the mixture of the first layer."""
        return cast(Any, self.layers["0"]).moe


def balanced(
    costs: tuple[float, ...] | None, strength: float, steps: int = 300
) -> tuple[Part, Tensor]:
    """Step with torchtitan's hook; give the model, and its loads over the last third."""
    part = Part()
    frozen = torch.optim.SGD(part.parameters(), lr=0.0)
    dims = SimpleNamespace(get_optional_mesh=lambda _: None, ep_enabled=False, tp=1)
    titan_optimizer.register_moe_load_balancing_hook(cast(Any, frozen), [part], cast(Any, dims))
    tilted = None
    if costs is not None:
        tilted = TiltedCounts([part])
        assert tilted.set_costs(costs, strength) == ""
    draw, loads = torch.Generator().manual_seed(1), torch.zeros(EXPERTS)
    for step in range(steps):
        with torch.no_grad():
            part.moe(torch.randn(1, 128, DIM, generator=draw))
        if step >= 2 * steps // 3:
            loads += part.moe.tokens_per_expert_E
        if tilted is not None:
            tilted.before_step()
        frozen.step()
    return part, loads / loads.mean()


def test_loads_go_to_their_targets() -> None:
    """As the factors say, by torchtitan's router, counts, bias and hook."""
    _, loads = balanced(COSTS, 0.1)
    factors = torch.tensor(load_factors(COSTS, 0.1, 1.15))
    torch.testing.assert_close(loads, factors, atol=0.04, rtol=0)
    _, even = balanced(None, 0.0)
    torch.testing.assert_close(even, torch.ones(EXPERTS), atol=0.04, rtol=0)


def test_without_costs_its_bias_is_the_same_to_the_bit() -> None:
    """Neutral costs, and costs that cannot be used after good ones."""
    plain, _ = balanced(None, 0.0, steps=20)
    neutral, _ = balanced((0.0,) * EXPERTS, 1.0, steps=20)
    assert torch.equal(plain.moe.expert_bias_E, neutral.moe.expert_bias_E)
    tilted = TiltedCounts([neutral])
    assert tilted.set_costs(COSTS, 0.5) == ""
    assert "not finite" in tilted.set_costs((float("nan"),) * EXPERTS, 0.5)
    neutral.moe.tokens_per_expert_E += torch.tensor([3.0, 1.0, 0.0, 0.0])
    tilted.before_step()
    assert neutral.moe.tokens_per_expert_E.tolist() == [3.0, 1.0, 0.0, 0.0]


def test_a_model_without_such_blocks_is_refused() -> None:
    """Before training begins."""
    with pytest.raises(InputInvalid, match="no block of this model"):
        TiltedCounts([nn.Linear(2, 2)])


def leaning(part: Part, shift: float = 0.05) -> TiltedCounts:
    """Lean a mixture by its bias, as a hundred steps would."""
    tilted = TiltedCounts([part])
    assert tilted.set_costs(COSTS, 0.1) == ""
    part.moe.expert_bias_E.copy_(torch.tensor([shift, shift, -shift, -shift]))
    return tilted


@pytest.mark.parametrize("limits", [{}, {"num_expert_groups": 2, "num_limited_groups": 1}])
def test_a_pair_is_measured_with_its_bias_and_with_one_that_does_not_lean(
    limits: dict[str, int],
) -> None:
    """By torchtitan's router: loads of the plain probe are those of the other over the factors."""
    part, draw = Part(**limits), torch.Generator().manual_seed(5)
    x, loads = torch.randn(1, 4096, DIM, generator=draw), list[Tensor]()

    def probe(_: Any) -> float:
        before = part.moe.tokens_per_expert_E.clone()
        y = part.moe(x)
        loads.append(part.moe.tokens_per_expert_E - before)
        return float(y.detach().square().mean())

    tilted, state = leaning(part), cast(Any, None)
    before = {name: each.clone() for name, each in part.state_dict().items()}
    measure = paired_probe(probe, lambda _: [tilted])
    leans, plain = measure(state) or (0.0, 0.0)
    assert leans != plain
    factors = torch.tensor(load_factors(COSTS, 0.1, 1.15))
    wanted = loads[0] / factors
    wanted *= loads[0].sum() / wanted.sum()
    assert float((loads[1] - wanted).abs().max() / loads[1].mean()) < 0.03
    assert float((loads[0] - wanted).abs().max() / loads[1].mean()) > 0.05
    after = part.state_dict()
    assert all(torch.equal(each, after[name]) for name, each in before.items())
    assert probe(None) == leans
    tilted.set_costs((0.0,) * EXPERTS, 0.1)
    assert measure(state) == (leans, leans)


class Around(nn.Module):
    """What is compiled with a router in it."""

    def __init__(self, moe: Any) -> None:
        """Keep the mixture."""
        super().__init__()
        self.moe = moe

    def forward(self, x: Tensor) -> Tensor:
        """Ask its router."""
        scores: Tensor = self.moe.router(x, self.moe.expert_bias_E)[0]
        return scores


def test_a_compiled_mixture_gives_no_pair(caplog: pytest.LogCaptureFixture) -> None:
    """Its router was compiled before: nobody sees what it chose."""
    part = Part()
    tilted = leaning(part)
    compiled: Any = torch.compile(Around(part.moe), backend="eager")
    x = torch.randn(1, 64, DIM)

    def probe(_: Any) -> float:
        return float(compiled(x).detach().sum())

    with torch.no_grad():
        probe(None)
    assert paired_probe(probe, lambda _: [tilted])(cast(Any, None)) is None
    assert "was not seen to choose" in caplog.text
