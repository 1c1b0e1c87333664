"""The cancellation theorem, tried: what a lean on cheap experts does, with and without balancing.

    python -m examples.routing [--steps 400] [--strength 0.1]

Six experts, two for each token; three lie on cheap GPUs. Loads are those of the last fifth of the
steps, over even ones. `same begin` counts the choices that differ between the router with the term
whose bias begins at strength * cost, and the router without it.

Shape suffixes: N tokens, D model width, X experts, P experts per token.
"""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from wattmesh.integrations.pytorch.experts.router import EnergyRouter, RouterMode

COSTS = (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0)
CHEAP = slice(0, 3)
DIM, PER_TOKEN, TOKENS = 8, 2, 256
RATE = 2e-3


def main() -> int:
    """Print the loads of each router."""
    asked = argparse.ArgumentParser(prog="python -m examples.routing")
    asked.add_argument("--steps", type=int, default=400)
    asked.add_argument("--strength", type=float, default=0.1)
    chosen = asked.parse_args()
    if chosen.steps < 5 or not 0 <= chosen.strength <= 8:
        asked.error("--steps is at least 5, and --strength is between 0 and 8")
    print(f"load of the cheap experts over an even one, strength {chosen.strength:g}")
    for name, mode, rate in (
        ("no term, balanced", RouterMode.OFF, RATE),
        ("published term, not balanced", RouterMode.SOFT, 0.0),
        ("published term, balanced", RouterMode.SOFT, RATE),
        ("tilted targets, balanced", RouterMode.TILT, RATE),
    ):
        print(f"  {name:30}{cheap_load(mode, rate, chosen.steps, chosen.strength):.3f}")
    differ, of = differing_choices(chosen.steps, chosen.strength)
    print(f"same begin: {differ} of {of} choices differ")
    return 0


def cheap_load(mode: RouterMode, rate: float, steps: int, strength: float) -> float:
    """Mean load of the cheap experts over an even one, late in so many steps."""
    found = _router(mode, rate)
    found.set_costs(COSTS, strength)
    late_X = torch.zeros(len(COSTS))
    for step, x_ND in enumerate(_batches(steps)):
        found(x_ND)
        if step >= steps - steps // 5:
            late_X += found.counts_X
        found.rebalance(found.counts_X.clone())
    return float(late_X[CHEAP].mean() / late_X.mean())


def differing_choices(steps: int, strength: float) -> tuple[int, int]:
    """Count the choices that differ with the term, its bias begun at strength * cost; and all."""
    lean_X = strength * torch.tensor(COSTS)
    plain, leaning = (_router(RouterMode.OFF, RATE) for _ in range(2))
    leaning.bias_X += lean_X
    differ = of = 0
    for x_ND in _batches(steps):
        # The published formula chooses by score - strength * cost + bias.
        scores_NX = functional.softmax(leaning.gate(x_ND), dim=-1)
        mine_NP = torch.topk(scores_NX - lean_X + leaning.bias_X, PER_TOKEN).indices
        theirs_NP = plain(x_ND).chosen_NP
        differ += int((mine_NP.sort().values != theirs_NP.sort().values).sum())
        of += mine_NP.numel()
        leaning.rebalance(torch.bincount(mine_NP.flatten(), minlength=len(COSTS)))
        plain.rebalance(plain.counts_X.clone())
    return differ, of


def _router(mode: RouterMode, rate: float) -> EnergyRouter:
    torch.manual_seed(0)
    return EnergyRouter(DIM, len(COSTS), PER_TOKEN, mode=mode, bias_rate=rate)


def _batches(count: int) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return (torch.randn(TOKENS, DIM, generator=draw) for _ in range(count))


if __name__ == "__main__":
    raise SystemExit(main())
