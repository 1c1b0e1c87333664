"""What the router costs beside a plain one: gate, softmax, bias, top-k, weights and counts.

Both have the same gate and take turns on the same tokens (ours, plain, plain, ours), as many more
as a turn is shorter. The figure is the median over the fours of turns, by processor time (on a GPU
by its own clock), so both are compared at one moment. Where memory happens to lie alone makes 2 %,
so tokens and modules are made anew several times. `plain` beside itself shows how far off it is.
"""

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattmesh.integrations.pytorch.experts.router import EnergyRouter, RouterMode

DIM = 1024
PER_TOKEN = 8
CASES = ((4096, 64), (4096, 256), (32768, 64))
LEAST_TURNS = 40
PLACES = 8
SCORES = LEAST_TURNS * 32768 * 64
"""Scores of all turns of a case together."""


class PlainRouter(nn.Module):
    """Loss-free balancing as it is written everywhere."""

    bias_X: Tensor
    counts_X: Tensor

    def __init__(self, experts: int) -> None:
        """Make the gate."""
        super().__init__()
        self.gate = nn.Linear(DIM, experts, bias=False)
        self.register_buffer("bias_X", torch.zeros(experts))
        self.register_buffer("counts_X", torch.zeros(experts, dtype=torch.int64))

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Choose."""
        scores_NX = functional.softmax(self.gate(x_ND), dim=-1)
        chosen_NP = torch.topk(scores_NX.detach() + self.bias_X, PER_TOKEN).indices
        self.counts_X += torch.bincount(chosen_NP.flatten(), minlength=len(self.bias_X))
        return chosen_NP, scores_NX.gather(1, chosen_NP)


def overhead_rows(device: str = "cpu") -> list[dict[str, Any]]:
    """Measure every mode in every case, and the plain router beside itself."""
    torch.set_num_threads(1)
    rows = []
    for tokens, experts in CASES:
        turns = max(LEAST_TURNS, SCORES // (tokens * experts)) // PLACES
        found: dict[str, list[float]] = {}
        for _ in range(PLACES):
            x_ND = torch.randn(tokens, DIM, device=device)
            plain = PlainRouter(experts).to(device)
            for name, ours in _routers(experts).items():
                ours.to(device).gate = plain.gate
                found.setdefault(name, []).extend(_fours(ours, plain, x_ND, turns))
        rows += [
            {
                "router": f"{name}, {tokens} tokens, {experts} experts",
                "router_overhead": statistics.median(each),
            }
            for name, each in found.items()
        ]
    return rows


def _routers(experts: int) -> dict[str, nn.Module]:
    made: dict[str, nn.Module] = {"plain": PlainRouter(experts)}
    for mode in (RouterMode.SOFT, RouterMode.TILT, RouterMode.DUAL):
        made[mode] = router = EnergyRouter(DIM, experts, PER_TOKEN, mode=mode)
        router.set_costs([(-1.0) ** at for at in range(experts)], 1e-3)
    return made


def _fours(ours: nn.Module, plain: nn.Module, x_ND: Tensor, turns: int) -> list[float]:
    found = []
    for _ in range(turns):
        before, *theirs, after = (_turn_s(each, x_ND) for each in (ours, plain, plain, ours))
        found.append((before + after) / sum(theirs) - 1)
    return found


def _turn_s(module: nn.Module, x_ND: Tensor) -> float:
    if x_ND.is_cuda:
        timed: Any = torch.cuda.Event
        begin, end = (timed(enable_timing=True) for _ in range(2))
        begin.record()
        module(x_ND)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000
    began = time.process_time()
    module(x_ND)
    return time.process_time() - began
